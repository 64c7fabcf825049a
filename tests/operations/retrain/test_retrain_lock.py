"""Only one retraining at a time, and the other one says who is first."""

from __future__ import annotations

import os
import threading

import pytest
from filelock import FileLock

from windtunnel.operations import retrain as flow
from windtunnel.operations.retrain import BusyError, only_one


def test_the_second_one_is_refused_and_names_the_first(tmp_path):
    with (
        only_one(tmp_path),
        pytest.raises(BusyError, match=rf"is running \(process {os.getpid()} on "),
        only_one(tmp_path),
    ):
        pass
    with only_one(tmp_path):  # free again
        pass


def test_a_name_that_is_written_a_moment_after_the_lock_was_taken_is_waited_for(tmp_path, monkeypatch):
    """The first process locks, and writes its name after that: the second one may come between."""
    holder = tmp_path / "retrain.holder"
    asked = threading.Event()
    monkeypatch.setattr(flow.time, "sleep", lambda seconds: (asked.set(), threading.Event().wait(seconds)))
    first = threading.Thread(target=lambda: (asked.wait(60), holder.write_text("process 7 on here\n")))
    with FileLock(str(tmp_path / "retrain.lock")):
        first.start()
        with pytest.raises(BusyError, match=r"is running \(process 7 on here\)"), only_one(tmp_path):
            pass
    first.join()


def test_a_holder_that_was_killed_before_it_wrote_its_name_is_another_process(tmp_path):
    assert flow.who_holds(tmp_path / "retrain.holder", patience=0.0) == "another process"
