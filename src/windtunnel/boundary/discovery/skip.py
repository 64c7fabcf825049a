"""Files that `windtunnel init` comes across and cannot read: each is skipped with one line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from windtunnel.boundary.files import path_text
from windtunnel.core.references import first_line

T = TypeVar("T")
_MAX_LINES = 20
_skipped: dict[Path, str] = {}


def skip(path: Path, reason: str) -> None:
    """Print one line for a file that is not used, once for each file and for the first of many alone."""
    if path in _skipped:
        return
    _skipped[path] = reason
    if len(_skipped) <= _MAX_LINES:
        print(f"windtunnel: init: skipped {path_text(path)}: {reason}", file=sys.stderr)
    elif len(_skipped) == _MAX_LINES + 1:
        print("windtunnel: init: skipped further files that cannot be read", file=sys.stderr)


def read_or_skip(path: Path, read: Callable[[Path], T]) -> T | None:
    """Return `read(path)`; skip the file and return None where that raises, whatever it is."""
    try:
        return read(path)
    except Exception as error:  # parsers of zip, PNG, protobuf, pickle and YAML raise what they like for damaged files
        skip(path, first_line(error).rpartition(f"{path_text(path)}: ")[2])
        return None
