"""One retraining at a time on one machine; schedules keep it one across machines (see docs/team.md)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from windtunnel.core.errors import InfrastructureError
from windtunnel.records.files import read_own, replacing


class BusyError(InfrastructureError):
    """Another retraining holds the lock."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` or raise BusyError at once, saying who holds it. A kill frees it."""
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / "retrain.holder"
    lock = FileLock(str(folder / "retrain.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise BusyError(f"retrain: not started, since another retraining is running ({who_holds(holder)})") from error
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        with replacing(holder) as temporary:
            temporary.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def who_holds(holder: Path, patience: float = 5.0) -> str:
    """Read the record of the process that holds the lock; it is waited for, since it writes just after it has locked.

    Args:
        holder: the file it writes.
        patience: seconds after which it is only "another process" (one that was killed between the two).

    """
    end = time.monotonic() + patience
    while True:
        try:
            return read_own(holder).decode().strip()
        except FileNotFoundError:
            if time.monotonic() > end:
                return "another process"
        time.sleep(0.02)
