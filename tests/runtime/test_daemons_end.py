"""A command that is ended takes the daemons with it that what it started has started."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from windtunnel.operations import experiments
from windtunnel.operations.experiments import Experiment, run_experiments
from windtunnel.runtime.shutdown import end_left_behind

# As DVC starts its queue workers: in a session of their own, their parent gone.
STARTER = """
import subprocess, sys
worker = "import time; time.sleep(600)"
daemon = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(daemon.pid, flush=True)
"""
COMMAND = f"""
import subprocess, sys, time
from windtunnel.runtime.shutdown import handle_signals, marked_environment, user_errors
handle_signals()
with user_errors():
    subprocess.run([sys.executable, "-c", {STARTER!r}], env=marked_environment(), check=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_daemons_and_nobody_else_s_processes(number):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        daemon = psutil.Process(int(process.stdout.readline()))
        time.sleep(0.2)
        os.kill(process.pid, number)
        assert process.wait(timeout=120) == 128 + number
        assert psutil.wait_procs([daemon], timeout=60)[1] == []
        assert other.poll() is None
    finally:
        other.kill()
        process.kill()


def test_the_next_command_ends_the_daemons_of_a_killed_one_and_nobody_else_s(tmp_path):
    """SIGKILL lets a sweep end nothing: DVC's queue worker would hold DVC's lock against the next sweep."""

    def started() -> tuple[subprocess.Popen[str], psutil.Process]:
        process = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert process.stdout is not None
        return process, psutil.Process(int(process.stdout.readline()))

    unmarked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=tmp_path)
    (killed, left), (alive, working) = started(), started()
    try:
        killed.kill()
        killed.wait()
        assert end_left_behind(tmp_path / "elsewhere") == 0
        assert end_left_behind(tmp_path) == 1
        assert psutil.wait_procs([left], timeout=60)[1] == []
        assert working.is_running()
        assert unmarked.poll() is None
    finally:
        for process in (alive, unmarked, working):
            process.kill()


def test_a_sweep_drops_what_an_ended_one_has_left_in_the_queue_and_starts_with_the_mark(monkeypatch):
    called = []
    monkeypatch.setattr(experiments, "_queued", lambda: ["sweep-b"])
    monkeypatch.setattr(experiments, "_drop_orphans", lambda: called.append(("drop", "orphans")))
    monkeypatch.setattr(experiments, "kept_experiments", lambda: {"sweep-a": "1", "sweep-b": "2"})
    monkeypatch.setattr(experiments, "_dvc", lambda *words: called.append(words[:2]))
    monkeypatch.setattr(experiments.subprocess, "run", lambda words, **kwargs: called.append(kwargs["env"]))
    assert run_experiments([Experiment("sweep-a", ()), Experiment("sweep-b", ())], 1) == []
    assert called[:2] == [("queue", "remove"), ("drop", "orphans")]
    assert "WINDTUNNEL_STARTED_BY" in called[-1]
