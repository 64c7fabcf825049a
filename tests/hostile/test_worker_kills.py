"""Workers and drivers of a job on a Ray cluster are killed at random: the bytes are those of a run that nobody touched.

WINDTUNNEL_WORKER_KILLS="60 20" sets how many workers and drivers; docs/benchmarks/scale.md says what that gave.
"""

import os
import subprocess
import sys

import psutil
import pytest

KILLS = os.environ.get("WINDTUNNEL_WORKER_KILLS", "1 1")
BYSTANDER = """
import os, sys, ray
ray.init(address="local", num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)

class Actor:
    def pid(self):
        return os.getpid()

actor = ray.remote(Actor).remote()
print(ray.get(actor.pid.remote()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def actor_of_another_cluster(tmp_path):
    """As another test, or another person, on this machine has them."""
    script = tmp_path / "bystander.py"
    script.write_text(BYSTANDER)
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield psutil.Process(int(process.stdout.readline()))
        process.communicate("")


@pytest.mark.integration
def test_random_kills_on_a_ray_cluster_leave_nothing_behind(tmp_path, request):
    pytest.importorskip("ray", reason="Ray is not installed")
    bystander = request.getfixturevalue("actor_of_another_cluster")
    from tests.hostile.worker_kills import worker_kills

    workers, drivers = map(int, KILLS.split())
    tally = worker_kills(workers, drivers, 1, tmp_path)
    assert not tally.failures
    assert tally.kills == {"worker": workers, "driver": drivers}
    assert bystander.is_running()
    assert bystander.cmdline()[0].startswith("ray::Actor")  # what the kills look for, but of this cluster
