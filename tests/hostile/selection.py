"""Which rows of the hostile tables a test run takes: a tenth of each kind, or all with WINDTUNNEL_HOSTILE=all.

WINDTUNNEL_HOSTILE=N takes another tenth for each number N. `python -m benchmarks.hostile` runs all rows and measures them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

CHOICE = os.environ.get("WINDTUNNEL_HOSTILE", "0")
LEAST = 10  # rows of each kind


def selected(rows: Iterable[T], kind: str, name: Callable[[T], str], choice: str = CHOICE) -> list[T]:
    """Return a tenth of the rows of one kind, at least `LEAST`, drawn by the digests of their names."""
    rows = list(rows)
    if choice == "all":
        return rows
    drawn = sorted(rows, key=lambda row: hashlib.sha256(f"{choice} {kind} {name(row)}".encode()).digest())
    chosen = {id(row) for row in drawn[: max(LEAST, -(-len(rows) // 10))]}
    return [row for row in rows if id(row) in chosen]
