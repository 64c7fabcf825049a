"""The git commit that code and params came from: for runtime.json, never for what is cached."""

from __future__ import annotations

import subprocess
from functools import cache


@cache
def commit() -> str:
    """`1a2b3c4d5e6f`, with `-dirty` where tracked files differ from it; empty where this is no git repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
