"""Workers and drivers of a job on a Ray cluster are killed at random: the bytes are those of a run that nobody touched.

WINDTUNNEL_WORKER_KILLS="60 20" sets how many workers and drivers; docs/scale.md says what that gave.
"""

import os

import pytest

KILLS = os.environ.get("WINDTUNNEL_WORKER_KILLS", "2 1")


@pytest.mark.integration
def test_random_kills_on_a_ray_cluster_leave_nothing_behind(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    from tests.hostile.worker_kills import BATCHES, worker_kills

    workers, drivers = map(int, KILLS.split())
    reduced = workers + drivers < 10
    tally = worker_kills(workers, drivers, 1, tmp_path, batches=16 if reduced else BATCHES)
    assert not tally.failures
    assert tally.kills == {"worker": workers, "driver": drivers}
