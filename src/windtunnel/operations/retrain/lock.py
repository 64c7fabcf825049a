"""One retraining at a time on one machine; schedules keep it one across machines (see docs/team.md)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from windtunnel.core.errors import InfrastructureError


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
        who = holder.read_text(encoding="utf-8").strip() if holder.is_file() else "another process"
        raise BusyError(f"retrain: not started, since another retraining is running ({who})") from error
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()
