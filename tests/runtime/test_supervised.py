"""The child process of an entry's stage: its parent returns why it ended too early."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from windtunnel.runtime import supervised

SCRIPT = """
import ctypes, os, signal, time
from windtunnel.runtime import supervised
from windtunnel.runtime.supervised import fork_worker
from windtunnel.runtime.shutdown import user_errors

supervised._GRACE = 0.3
if reason := fork_worker():
    print("recorded:", reason)
    raise SystemExit(0)
with user_errors():
    supervised.begin("the model", {seconds}, "model.time_limit")
    {hangs}
    supervised.end()
    {after}
"""


def _run(hangs: str, seconds: float = 0.03, after: str = "pass") -> subprocess.CompletedProcess[str]:
    code = SCRIPT.format(hangs=hangs, seconds=seconds, after=after)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="stages fork on Linux alone")
@pytest.mark.parametrize("hangs", ["time.sleep(60)", "ctypes.PyDLL(None).sleep(60)"])
def test_a_call_over_its_time_limit_is_a_reason_to_record(hangs):
    done = _run(hangs)
    expected = "recorded: the model has not answered in 0.3 s, 10 times model.time_limit (0.03 s)"
    assert done.stdout.strip() == expected, done.stderr
    assert done.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="stages fork on Linux alone")
@pytest.mark.parametrize(
    ("hangs", "after", "code"), [("os._exit(7)", "pass", 7), ("pass", "time.sleep(0.5); raise KeyError", 1)]
)
def test_another_end_keeps_its_exit_code(hangs, after, code):
    done = _run(hangs, 0.03, after)
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.skipif(sys.platform != "linux", reason="stages fork on Linux alone")
def test_a_signal_is_a_reason_to_record():
    done = _run("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.stdout.startswith(
        "recorded: its process was ended by SIGKILL, as the system does where memory is short"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a child that its parent died")
def test_a_killed_retraining_takes_what_it_started_along():
    sleeper = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    code = f"from pathlib import Path; from windtunnel.cli.tracking import _run; _run({sleeper!r}, Path())"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
        child = psutil.Process(int(driver.stdout.readline()))
        os.kill(driver.pid, signal.SIGKILL)
    assert child.wait(timeout=60) is None or not child.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux alone")
def test_a_trial_in_a_fork_tells_how_it_ended_the_process_and_waits_no_longer_than_its_limit(monkeypatch, capfd):
    monkeypatch.setattr(supervised, "_FORKED_MEMORY", 2**62)
    monkeypatch.setattr(supervised, "_TRIAL", 20.0)
    assert supervised.ending_in_fork(lambda: os._exit(7)) == "with exit code 7"
    assert supervised.ending_in_fork(os.abort) == "by SIGABRT"
    assert supervised.ending_in_fork(lambda: print("seen") or 1 / 0) == ""
    monkeypatch.setattr(supervised, "_TRIAL", 0.1)
    started = time.monotonic()
    assert supervised.ending_in_fork(lambda: time.sleep(30)) == ""
    assert time.monotonic() - started < 10
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(supervised, "_TRIAL", 20.0)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    killed = []
    monkeypatch.setattr(supervised.os, "kill", lambda *call: killed.append(call))
    try:
        assert supervised.ending_in_fork(lambda: os._exit(7)) == "in an unknown way"
        assert supervised.ending_in_fork(lambda: None) == ""
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not killed  # by then the number may be another process's
