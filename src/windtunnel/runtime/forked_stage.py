"""Run an entry's stage in a child process, so that a stage killed by a signal or ended by a time limit still leaves a record."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from windtunnel.runtime.shutdown import end_with_dvc, handle_signals
from windtunnel.runtime.watchdog import new_note, report_to, time_limit_reason

_PR_SET_PDEATHSIG = 1  # prctl: the signal that the kernel sends when the parent dies
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def fork_worker() -> str:
    """Fork this process and handle its signals. Return "" in the child, which does the work.

    The parent forwards Ctrl-C and SIGTERM, and exits with the child's exit code. Only where a signal killed the child (the system
    does so where memory is short), or a time limit ended it, it returns, with the reason. Linux only: "" elsewhere, without a fork.
    """
    if sys.platform != "linux":
        handle_signals()
        return ""
    parent, note = os.getpid(), new_note()
    # A signal that comes before both processes have their handlers is delivered afterwards.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call
            os._exit(128 + signal.SIGTERM)
        handle_signals()
        report_to(note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return ""

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    if "DVC_STAGE" in os.environ:
        threading.Thread(target=end_with_dvc, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    reason = time_limit_reason(note) if code > 0 else ""
    if code >= 0 and not reason:
        os._exit(code)
    handle_signals()
    if reason:
        return reason
    hint = ", as the system does where memory is short" if -code == signal.SIGKILL else ""
    return f"its process was ended by {signal.Signals(-code).name}{hint}"
