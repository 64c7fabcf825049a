"""A worker in a process of its own, as the driver sees it."""

import threading

from windtunnel.runtime.executors.processes import _Process


def test_a_worker_that_is_ended_while_its_parcel_is_still_being_sent_leaves_no_traceback(monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    worker = _Process()
    started, ended = threading.Event(), threading.Event()
    written = worker.channel._send

    def slowly(buffer, *more):  # the pipe takes a part of it; then the driver ends the worker
        started.set()
        ended.wait(60)
        written(buffer, *more)

    monkeypatch.setattr(worker.channel, "_send", slowly)
    before = set(threading.enumerate())
    worker.load(bytes(1 << 20))
    assert started.wait(60)
    worker.end()
    ended.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert not raised
