"""Calls of the user's code, watched: none hangs for ever, and none ends its process unseen.

The user's model may sleep for ever in C, call `os._exit(0)` or crash the interpreter. Only another process sees that:
`windtunnel check` works in one of its own (`run_watched`), and so does the stage of an entry (`fork_worker`). A stage ends itself
where a call takes too long, by one line, instead of holding a schedule for ever. Code in C that hangs while it holds the
interpreter's lock lets no thread of Python's say so: then a thread of C's ends the process, and tells where it was. The parent of
an entry's stage reads from shared memory that a time limit ended it, and records that.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import mmap
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from windtunnel.core.errors import USER_ERROR, InfrastructureError, UserError
from windtunnel.runtime.console import warn
from windtunnel.runtime.shutdown import as_user_error, deaf_children, end_refused, handle_signals, is_working

# multiprocessing is imported where it is used: until a stage handles signals, each import is time in which Ctrl-C is a traceback.
if TYPE_CHECKING:
    import multiprocessing as mp
    from multiprocessing.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")
# A stage asks for whole batches, and hours of work are behind it: it waits longer than `windtunnel check` does.
STAGE_FACTOR = 10
_LAST_WORD = 5.0  # seconds that a process may take to end after its last word
_LOOK_EVERY = 0.25  # seconds
_TRIAL = 0.1  # seconds of `ending_in_fork`
_FORKED_MEMORY = 2**31  # resident bytes of a process whose fork takes about as long
_GRACE = 1.0  # seconds that the watching thread may be late
_NOTE = 1024  # bytes
_PR_SET_PDEATHSIG = 1  # prctl: the signal that the kernel sends when the parent dies
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EndedError(UserError):
    """A process that `run_watched` started ended before it returned."""


@dataclass(slots=True)
class _WatchedCall:
    what: str
    seconds: float
    key: str
    began: float
    told: bool = False

    @property
    def limit(self) -> float:
        """Seconds after which a stage ends."""
        return STAGE_FACTOR * self.seconds

    @property
    def reason(self) -> str:
        return f"{self.what} has not answered in {self.limit:g} s, {STAGE_FACTOR} times {self.key} ({self.seconds:g} s)"


_watcher: Connection | None = None  # in a process that `run_watched` started: the way to the one that watches it
_calls: list[_WatchedCall] = []  # of a stage; of calls inside calls, the innermost counts
_thread: threading.Thread | None = None
_is_armed = False
_note: mmap.mmap | None = None  # the call that is waited for, as `fork_worker` reads it in the parent


@contextmanager
def limited(what: str, seconds: float, key: str) -> Iterator[None]:
    """Run a call of the user's code that may take `seconds` where `windtunnel check` makes it; `key` of params.yaml raises the limit.

    A stage prints a line after as long, and gives it ten times that.
    """
    begin(what, seconds, key)
    try:
        yield
    finally:
        end()


def begin(what: str, seconds: float, key: str) -> None:
    """Begin what `limited` limits, for a call that `end` ends elsewhere."""
    global _thread
    if _watcher:
        _watcher.send(("begin", f"{what} has not answered in {seconds:g} s; {key} gives it more", seconds))
        return
    if _thread is None and is_working():
        _thread = threading.Thread(target=_watch, daemon=True)
        _thread.start()
    _calls.append(_WatchedCall(what, seconds, key, time.monotonic()))
    if _thread and not _is_armed:
        _arm(_calls[-1])


def end() -> None:
    """Note that the call that began last is over."""
    if _watcher:
        _watcher.send(("end",))
    else:
        _calls.pop()


def is_watched() -> bool:
    """Return True in a process that `run_watched` started, which is ended by the one that watches it."""
    return _watcher is not None


def _arm(call: _WatchedCall | None) -> None:
    """End the process from C unless this is called again before: nothing of Python ran so long. None: no call."""
    global _is_armed
    if call is None:
        faulthandler.cancel_dump_traceback_later()
    else:
        faulthandler.dump_traceback_later(call.limit + _GRACE, exit=True, file=2)
    _is_armed = call is not None
    if _note is not None:
        text = f"{call.began + call.limit} {call.reason}" if call else ""
        _note[:] = text.encode()[:_NOTE].ljust(_NOTE, b"\0")


def _watch() -> None:
    while True:
        time.sleep(_LOOK_EVERY)
        call = _calls[-1] if _calls and is_working() else None
        _arm(call)
        if call is None:
            continue
        waited = time.monotonic() - call.began
        if waited > call.limit:
            end_refused(f"{call.reason}; what is finished is kept, and a larger {call.key} gives it more")
        elif waited > call.seconds and not call.told:
            call.told = True
            warn(f"{call.what} has not answered for {call.seconds:g} s; it is given {call.limit:g} s")


def ends_with_parent() -> Callable[[], None]:
    """Return what a child calls first (as `preexec_fn`), so that SIGTERM ends it when this process dies. Linux only."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def end_too() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call
            os._exit(128 + signal.SIGTERM)

    return end_too


def fork_worker() -> str:
    """Fork this process and handle its signals. Return "" in the child, which does the work.

    The parent forwards Ctrl-C and SIGTERM, and exits with the child's exit code. Only where a signal killed the child (the system
    does so where memory is short), or a time limit ended it, it returns, with the reason. Linux only: "" elsewhere, without a fork.
    """
    global _note
    if sys.platform != "linux":
        handle_signals()
        return ""
    end_too, note = ends_with_parent(), mmap.mmap(-1, _NOTE)
    # A signal that comes before both processes have their handlers is delivered afterwards.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        end_too()
        handle_signals()
        _note = note
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return ""

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    handle_signals(forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ends, _, reason = note[:].rstrip(b"\0").decode(errors="ignore").partition(" ")
    if code < 0:
        hint = ", as the system does where memory is short" if -code == signal.SIGKILL else ""
        reason = f"its process was ended by {signal.Signals(-code).name}{hint}"
    elif code == 0 or not ends or time.monotonic() < float(ends):
        os._exit(code)
    handle_signals()
    return reason


def run_watched(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `work` in a process of its own and return what it returns. Its UserError is raised here; so is one for any other end.

    What it prints appears as if it were called. Raises UserError too where a call inside `limited` takes too long.
    """
    import multiprocessing as mp

    # fork starts at once; where it is not safe (macOS, Windows), a new interpreter imports everything again.
    context: mp.context.DefaultContext = mp.get_context("fork" if sys.platform == "linux" else "spawn")  # type: ignore[assignment]  # typeshed: a choice of literals
    ours, theirs = context.Pipe()
    process = context.Process(target=_watched, args=(theirs, ours, work, args, kwargs))
    sys.stdout.flush()
    with deaf_children():
        process.start()
    theirs.close()
    try:
        result: R = _listen(ours, process)
        return result
    finally:
        process.kill()
        process.join()


def _listen(connection: Connection, process: mp.process.BaseProcess) -> Any:
    """Wait until the process returns, ends without a result, or one of its calls exceeds its limit."""
    waiting: list[tuple[str, float]] = []  # of calls inside calls, the limit of the innermost counts
    while True:
        remaining = max(0.0, waiting[-1][1] - time.monotonic()) if waiting else None
        if not connection.poll(remaining):
            raise UserError(waiting[-1][0])
        try:
            word, *details = connection.recv()
        except EOFError:
            break
        if word == "begin":
            waiting.append((details[0], time.monotonic() + details[1]))
        elif word == "end":
            waiting.pop()
        elif word == "refused":
            raise (InfrastructureError if details[1] else UserError)(details[0])
        else:
            process.join(_LAST_WORD)
            return details[0]
    process.join(_LAST_WORD)
    raise EndedError(
        f"code of yours ended the process {_ending(process.exitcode)} before anything was known; nothing was checked"
    )


def _ending(code: int | None) -> str:
    if code is None:
        return "in an unknown way"
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def ending_in_fork(work: Callable[[], object]) -> str:
    """Try `work` in a fork and return how it ended the process there (`with exit code 0`, `by SIGSEGV`), "" where it did not.

    What it returns, raises and changes is lost. After `_TRIAL` seconds it is given up: it may wait for a lock that another
    thread held at the fork. Linux only, and where a fork is quick: "" elsewhere, without one.
    """
    import multiprocessing as mp

    import psutil
    import torch

    if sys.platform != "linux" or psutil.Process().memory_info().rss > _FORKED_MEMORY:
        return ""
    (ours, theirs), end_too = mp.Pipe(duplex=False), ends_with_parent()
    with ours, theirs, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads
        try:
            child = os.fork()
        except OSError:  # too little memory, or too many processes
            return ""
        if child == 0:
            with suppress(BaseException):
                end_too()
                _be_silent(ours.fileno())
                torch.set_num_threads(1)  # the others do not exist in the fork
                work()
            theirs.send_bytes(b"returned")
            os._exit(0)
        theirs.close()
        is_late = not ours.poll(_TRIAL)
        try:
            has_ended = not is_late and not ours.recv_bytes()
        except EOFError:
            has_ended = True
    code = None
    with suppress(ChildProcessError, ProcessLookupError):  # the caller ignores SIGCHLD, or waits for every child
        if is_late:  # after its word it ends, and where SIGCHLD is ignored its number may soon be another process's
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _ending(code) if has_ended else ""


def _be_silent(unwritable: int) -> None:
    """Write nothing to the terminal of the process that this one was forked from, and no core file."""
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (1, 2):
        os.dup2(unwritable, number)
    sys.stdout = sys.stderr = io.StringIO()


def _watched(
    connection: Connection,
    theirs: Connection,
    work: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """In the process of its own."""
    global _watcher
    theirs.close()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(lambda: os._exit(USER_ERROR))
    _watcher = connection
    try:
        returned = work(*args, **kwargs)
        sys.stdout.flush()
        connection.send(("done", returned))
    except SystemExit as error:
        connection.send(("refused", f"code of yours called sys.exit({error.code!r}); nothing was checked", False))
    except (KeyboardInterrupt, GeneratorExit) as error:  # Ctrl-C ends this process as signals do by default
        connection.send(("refused", f"code of yours raised {type(error).__name__}; nothing was checked", False))
    except Exception as error:
        user_error = as_user_error(error)
        if user_error is None:
            raise
        connection.send(("refused", str(user_error), isinstance(user_error, InfrastructureError)))


def end_with_parent(end: Callable[[], None]) -> None:
    """Call `end` in a thread once the process that started this one by multiprocessing has died: nobody waits for it."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        end()

    threading.Thread(target=wait, daemon=True).start()
