"""End a process by its result, or by one line and an exit code, whatever happened.

0 done, 2 refused (a UserError), 30 something outside failed (a disk, a server), 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from windtunnel.core.errors import INFRASTRUCTURE, USER_ERROR, InfrastructureError, UserError, shown
from windtunnel.core.references import is_users_file, users_place
from windtunnel.runtime.credentials import without_credentials
from windtunnel.runtime.missing_package import missing_package

if TYPE_CHECKING:
    import psutil

KEPT = "interrupted; what is finished is kept, `dvc repro` continues"
# Something may swallow the exception that a signal raises (a destructor, a library's callback): then the process ends
# so many seconds later all the same. What is in memory alone needs less to be written.
GRACE = 5.0
# A terminal's Ctrl-C reaches the parent and the child of a stage, and the parent forwards it: within so many seconds it is one.
_SAME_SIGNAL = 0.5
_CLOCK_STEP = 60.0  # seconds by which a clock is set at most while a command runs
_MARK = "WINDTUNNEL_STARTED_BY"  # an environment variable: daemons leave the tree of processes, not their environment
# Of the disk or the rights on it, not of our making.
_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.EFBIG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. A KeyboardInterrupt, so that libraries let it pass as one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Ending:
    """State of the signal handlers: whether work is in progress, the signal that ended it, and the mark of child processes."""

    working = False
    signal: int | None = None
    since = 0.0
    mark: str | None = None


def handle_signals(handler: Callable[[int, FrameType | None], None] | None = None) -> None:
    """From now on Ctrl-C and SIGTERM end this process by one line and the exit code 130 or 143, or are given to `handler`.

    Called before anything slow is imported. Under DVC the death of DVC counts as SIGTERM, so that a stage whose
    pipeline was killed does not go on alone for hours.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # SIGINT is ignored where a shell started us in the background: that stays.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler or _on_signal)
    sys.unraisablehook = _on_unraisable
    if "DVC_STAGE" in os.environ:
        threading.Thread(target=end_with_dvc, daemon=True).start()


@contextmanager
def user_errors() -> Iterator[None]:
    """Run the work of a process: what goes wrong in it becomes one line on stderr and the exit code (SystemExit).

    That are a UserError, an interruption, a disk that is full or read-only, memory that is short, and whatever the
    user's own modules raise, `sys.exit` among it: code 0 from them would be taken for a result.
    """
    _Ending.working = True
    try:
        yield
        if _Ending.signal is not None:  # something swallowed the exception
            raise Interrupted(_Ending.signal)
    except Interrupted as error:
        end_interrupted(error.number)
    except (Exception, SystemExit) as error:
        if _Ending.signal is not None:  # something made another error of the interruption
            end_interrupted(_Ending.signal)
        if isinstance(error, SystemExit):
            # rich's way to end where a reader such as `head` has left
            if isinstance(error.__context__, BrokenPipeError):
                raise
            line = f"{_last_place(error)}: called sys.exit({error.code!r}); nothing was finished"
            raise SystemExit(_said(UserError(line))) from error
        user_error = as_user_error(error)
        if user_error is None:
            raise
        raise SystemExit(_said(user_error)) from error
    finally:
        _Ending.working = False


def as_user_error(error: Exception) -> UserError | None:
    """Return the UserError for an error of the disk, of memory, of the user's code or of a missing package; None for any other."""
    if isinstance(error, UserError):
        return error
    if any(f"{kind.__module__}.{kind.__name__}" == "dvc.exceptions.DvcException" for kind in type(error).__mro__):
        return UserError(f"DVC: {error}".splitlines()[0])
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UserError(f"{shown(str(error.filename))}: is too long for the name of a file")
    if isinstance(error, OSError) and is_of_the_disk(error):
        return InfrastructureError(f"{error.filename or 'a file'}: {error.strerror}; what is finished is kept")
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        line = str(error).partition("\n")[0][:200]
        return InfrastructureError(f"memory is short ({line}); fewer samples, or a smaller batch_size, need less")
    if location := users_place(error):
        line = (str(error).strip() or "no reason given").splitlines()[0][:200]
        return UserError(f"{location}{type(error).__name__}: {line}")
    return missing_package(error)


def end_interrupted(number: int) -> None:
    """End now, with the line and the exit code of signal `number`."""
    _end_now(f"\nwindtunnel: {KEPT}", 128 + number)


def end_refused(line: str) -> None:
    """End now, from any thread, as a UserError of this line would."""
    _end_now(f"windtunnel: {without_credentials(str(UserError(line)))}", USER_ERROR)


def _end_now(line: str, code: int) -> None:
    """End this process and those that it started.

    Not by SystemExit: the interpreter would wait for threads and processes that have hours to go.
    """
    _end_children()
    with contextlib.suppress(Exception):  # stderr may be gone with the terminal
        print(line, file=sys.__stderr__, flush=True)  # sys.stderr may be a library's output, put aside while it imports
        sys.stdout.flush()
    os._exit(code)


def is_ending() -> bool:
    """Return True from the first Ctrl-C or SIGTERM on: whatever is raised now may be that signal in another form."""
    return _Ending.signal is not None


def is_of_the_disk(error: BaseException) -> bool:
    """Return True for an error of the disk, or of the rights on it, after which nothing can be written either."""
    return isinstance(error, OSError) and error.errno in _DISK


def is_working() -> bool:
    """Return True inside `user_errors`: a command or a stage, which may be ended by a line."""
    return _Ending.working


@contextmanager
def deaf_children() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C, which a terminal sends to all of them: their parent ends them.

    The signal is held back from this thread too, and delivered at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    # Started with the first process, and CPython 3.11 to 3.13 let go of the signal when they have started it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def no_main_module() -> Iterator[None]:
    """Start processes that do not import their parent's main module first.

    It brings torch and all, seconds for each process, and a script of the user's without a guard would run again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _Ending.signal is not None and time.monotonic() - _Ending.since < _SAME_SIGNAL:
        return
    # At once where there is nothing to tell yet, or any more; where it is asked a second time; and in an import, which C++ code
    # such as torch's does not survive half done: it takes what was cut short for missing, aborts or reads freed memory.
    if not _Ending.working or _Ending.signal is not None or _is_importing(frame):
        end_interrupted(number)
    _Ending.signal, _Ending.since = number, time.monotonic()
    timer = threading.Timer(GRACE, end_interrupted, (number,))
    timer.daemon = True
    timer.start()
    raise Interrupted(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _on_unraisable(raised: sys.UnraisableHookArgs) -> None:
    """Send the signal once more: Python drops exceptions raised in destructors and weak-reference callbacks."""
    number = _Ending.signal
    if isinstance(raised.exc_value, Interrupted) and number is not None:
        _Ending.signal = None
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()  # when the callback is over
    else:
        sys.__unraisablehook__(raised)


def marked_environment() -> dict[str, str]:
    """Return an environment with a mark by which this process finds and ends its children, daemons included."""
    _Ending.mark = _Ending.mark or f"{os.getpid()}-{time.time_ns()}"
    return {**os.environ, _MARK: _Ending.mark}


def end_left_behind(folder: Path) -> int:
    """End the daemons in `folder` whose command, `marked_environment` its own, was killed; return how many there were."""
    import psutil

    orphans, ancestors = [], {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            if (
                process.pid not in ancestors
                and (mark := _mark_of(process))
                and Path(process.cwd()).is_relative_to(folder.resolve())
            ):
                starter, _, since = mark.partition("-")
                # A process clearly younger than the mark only has the number of the starter; clocks are set now and then.
                latest = int(since) / 1e9 + _CLOCK_STEP
                if not psutil.pid_exists(int(starter)) or psutil.Process(int(starter)).create_time() > latest:
                    orphans.append(process)
    _end(orphans)
    return len(orphans)


def _mark_of(process: psutil.Process) -> str:
    """Return the mark of the command that started a process, or an empty string."""
    import psutil

    try:
        return str(process.environ().get(_MARK, ""))
    except (psutil.Error, OSError):  # of another user, or gone
        return ""


def _end_children() -> None:
    with contextlib.suppress(Exception):  # psutil itself may be half imported: then nobody was started yet
        import psutil

        children = psutil.Process().children(recursive=True)
        if _Ending.mark is not None:
            ours = [p for p in psutil.process_iter() if p.pid != os.getpid() and _mark_of(p) == _Ending.mark]
            children = list({*children, *ours})
        _end(children)


def _end(processes: list[psutil.Process]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=2)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def end_with_dvc() -> None:
    """Wait until DVC, which may have a shell between itself and this process, is gone; then end as SIGTERM would."""
    import psutil

    above = []
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process().parent()
        while parent is not None:
            above.append(parent)
            if parent.name() not in {"sh", "bash", "dash", "zsh", "ksh", "fish"}:
                break
            parent = parent.parent()
    while all(process.is_running() for process in above):
        threading.Event().wait(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _said(error: UserError) -> int:
    print(f"windtunnel: {without_credentials(str(error))}", file=sys.stderr, flush=True)
    return INFRASTRUCTURE if isinstance(error, InfrastructureError) else USER_ERROR


def _last_place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_users_file(frame.filename)] or frames
    return f"{users[-1].filename}, line {users[-1].lineno}"
