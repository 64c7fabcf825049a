"""Calls of the user's code in a stage: one that never returns ends the stage, by one line, instead of holding a schedule for ever.

`windtunnel check` tries a model on a few samples. It may hang at the next one, or at a server that has gone since. Code in C
that hangs while it holds the interpreter's lock lets no thread of Python's say so: then a thread of C's ends the process, and
tells where it was. The parent of an entry's stage reads from shared memory that a time limit ended it, and records that.
"""

from __future__ import annotations

import faulthandler
import mmap
import sys
import threading
import time
from dataclasses import dataclass

from windtunnel.runtime.shutdown import end_refused, is_working

# A stage asks for whole batches, and hours of work are behind it: it waits longer than `windtunnel check` does.
STAGE_FACTOR = 10
_LOOK_EVERY = 0.25  # seconds
_GRACE = 1.0  # seconds that this thread may be late
_NOTE = 1024  # bytes


@dataclass(slots=True)
class _WatchedCall:
    what: str
    seconds: float
    key: str
    began: float
    told: bool = False

    @property
    def limit(self) -> float:
        """Seconds after which it ends the process."""
        return STAGE_FACTOR * self.seconds

    @property
    def reason(self) -> str:
        return f"{self.what} has not answered in {self.limit:g} s, {STAGE_FACTOR} times {self.key} ({self.seconds:g} s)"


class _Timer:
    armed = False
    note: mmap.mmap | None = None  # the call that is waited for, as `time_limit_reason` reads it in the parent


_calls: list[_WatchedCall] = []  # of calls inside calls, the innermost counts
_started = threading.Event()


def begin(what: str, seconds: float, key: str) -> None:
    """Watch a call that `windtunnel check` would give `seconds`: print a line after as long, end it after ten times that."""
    if not _started.is_set() and is_working():
        _started.set()
        threading.Thread(target=_watch, daemon=True).start()
    _calls.append(_WatchedCall(what, seconds, key, time.monotonic()))
    if _started.is_set() and not _Timer.armed:
        _arm(_calls[-1])


def end() -> None:
    """Note that the call that began last is over."""
    _calls.pop()


def new_note() -> mmap.mmap:
    """Shared memory for a process to be forked, in which its `report_to` notes the call that is waited for."""
    return mmap.mmap(-1, _NOTE)


def report_to(note: mmap.mmap) -> None:
    """Note the calls of this process in shared memory, which its parent reads."""
    _Timer.note = note


def time_limit_reason(note: mmap.mmap) -> str:
    """Return why a process that failed was over a time limit, from its note; "" where it was not."""
    ends, _, reason = note[:].rstrip(b"\0").decode(errors="ignore").partition(" ")
    return reason if ends and time.monotonic() >= float(ends) else ""


def _arm(call: _WatchedCall | None) -> None:
    """End the process from C unless this is called again before: nothing of Python ran so long. None: no call."""
    if call is None:
        faulthandler.cancel_dump_traceback_later()
    else:
        faulthandler.dump_traceback_later(call.limit + _GRACE, exit=True, file=2)
    _Timer.armed = call is not None
    if _Timer.note is not None:
        text = f"{call.began + call.limit} {call.reason}" if call else ""
        _Timer.note[:] = text.encode()[:_NOTE].ljust(_NOTE, b"\0")


def _watch() -> None:
    while True:
        time.sleep(_LOOK_EVERY)
        call = _calls[-1] if _calls else None
        if call is None or not is_working():
            _arm(None)
            continue
        _arm(call)
        waited = time.monotonic() - call.began
        if waited > call.limit:
            end_refused(f"{call.reason}; what is finished is kept, and a larger {call.key} gives it more")
        elif waited > call.seconds and not call.told:
            call.told = True
            print(
                f"windtunnel: {call.what} has not answered for {call.seconds:g} s; it is given {call.limit:g} s",
                file=sys.stderr,
                flush=True,
            )
