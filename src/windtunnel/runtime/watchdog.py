"""Calls of the user's code in a stage: one that never returns ends the stage, by one line, instead of holding a schedule for ever.

`windtunnel check` tries a model on a few samples. It may hang at the next one, or at a server that has gone since. Code in C
that hangs while it holds the interpreter's lock lets no thread of Python's say so: then a thread of C's ends the process, and
tells where it was.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from dataclasses import dataclass

from windtunnel.runtime.shutdown import end_refused, is_working

# A stage asks for whole batches, and hours of work are behind it: it waits longer than `windtunnel check` does.
STAGE_FACTOR = 10
_LOOK_EVERY = 0.25  # seconds
_GRACE = 1.0  # seconds that this thread may be late


@dataclass(slots=True)
class _Call:
    what: str
    seconds: float
    key: str
    began: float
    told: bool = False


class _Timer:
    armed = False


_calls: list[_Call] = []  # of calls inside calls, the innermost counts
_started = threading.Event()


def begin(what: str, seconds: float, key: str) -> None:
    """A call begins that `windtunnel check` would give `seconds`; a line is said after as long, and the end is ten times that."""
    if not _started.is_set() and is_working():
        _started.set()
        threading.Thread(target=_watch, daemon=True).start()
    _calls.append(_Call(what, seconds, key, time.monotonic()))
    if _started.is_set() and not _Timer.armed:
        _arm(seconds)


def end() -> None:
    """The call that began last is over."""
    _calls.pop()


def _arm(seconds: float) -> None:
    """The process ends in C's hands unless this is called again before: nothing of Python's ran so long."""
    faulthandler.dump_traceback_later(STAGE_FACTOR * seconds + _GRACE, exit=True, file=2)
    _Timer.armed = True


def _watch() -> None:
    while True:
        time.sleep(_LOOK_EVERY)
        call = _calls[-1] if _calls else None
        if call is None or not is_working():
            faulthandler.cancel_dump_traceback_later()
            _Timer.armed = False
            continue
        _arm(call.seconds)
        waited, limit = time.monotonic() - call.began, STAGE_FACTOR * call.seconds
        if waited > limit:
            end_refused(
                f"{call.what} has not answered in {limit:g} s, {STAGE_FACTOR} times {call.key} ({call.seconds:g} s); what is "
                f"finished is kept, and a larger {call.key} gives it more"
            )
        elif waited > call.seconds and not call.told:
            call.told = True
            print(
                f"windtunnel: {call.what} has not answered for {call.seconds:g} s; it is given {limit:g} s",
                file=sys.stderr,
                flush=True,
            )
