"""Cache facts about a file, valid while its size and its time are the same."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from windtunnel.core.errors import UserError
from windtunnel.records.files import file_digest, read_json, write_json

MEMORY = Path(".cache/windtunnel/resolve.json")
# Raised where what is remembered changes its form or its meaning: the digest of a module, what counts as an import.
FORM = 1
# A file that is younger when it is read may change once more within the same tick of its file system's clock.
SETTLED = 2.0
Finding = TypeVar("Finding")


class _MemoryFile(BaseModel):
    """The file. files: size, time, inode and finding, by what it is and of which file."""

    form: int
    files: dict[str, list[object]]


class Memory:
    """Findings about files, kept between runs in `path`; a damaged or older file only costs time."""

    def __init__(self, path: Path = MEMORY) -> None:
        self._path = path
        self._known: dict[str, list[object]] = {}
        self._changed = False
        try:
            stored = _MemoryFile.model_validate(read_json(path))
        except (UserError, ValidationError):
            return
        if stored.form == FORM:
            self._known = stored.files

    def of(self, what: str, path: Path, find: Callable[[Path], Finding]) -> Finding:
        """Return the result of `find`, cached as `what`, for a file; a list, a text or a number. Raises OSError where it is missing."""
        key, facts = f"{what} {os.path.abspath(path)}", path.stat()
        mark = [facts.st_size, facts.st_mtime_ns, facts.st_ino]
        entry = self._known.get(key)
        if entry is not None and entry[:3] == mark:
            return entry[3]  # type: ignore[return-value]  # what `find` gave before, through JSON
        value = find(path)
        if time.time() - facts.st_mtime > SETTLED:
            self._known[key] = [*mark, value]
            self._changed = True
        return value

    def digest(self, path: Path) -> str:
        """sha256 of a file's bytes, or of the names and bytes of all files below a folder."""
        if not path.is_dir():
            return self.of("sha256", path, file_digest)
        return combined(
            {p.relative_to(path).as_posix(): self.digest(p) for p in sorted(path.rglob("*")) if p.is_file()}
        )

    def keep(self) -> None:
        """Write new findings for the next run."""
        if self._changed:
            write_json(_MemoryFile(form=FORM, files=self._known).model_dump(), self._path)


def combined(digests: dict[str, str]) -> str:
    """One digest of several under their names."""
    import hashlib

    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
