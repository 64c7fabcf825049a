"""dvc.lock, read as types: what each stage ran with, and what it left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from windtunnel.boundary.files import path_text, read_text
from windtunnel.boundary.text import parse_yaml
from windtunnel.core.errors import UserError
from windtunnel.records.files import RUNTIME_FILE, file_digest
from windtunnel.records.layout import REPORTS

MAX_BYTES = 2**24  # of a dvc.lock


class LockedFile(BaseModel):
    """A dependency or an output: its path and md5, and what else DVC notes of it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    path: str
    md5: str = ""


class LockedStage(BaseModel):
    """A stage as it ran. params: the values it ran with, by file and key."""

    model_config = ConfigDict(extra="allow", frozen=True)

    cmd: object = None
    deps: tuple[LockedFile, ...] = ()
    outs: tuple[LockedFile, ...] = ()
    params: dict[str, dict[str, object] | None] = {}

    @property
    def own_params(self) -> dict[str, object]:
        """Return the parameters of params.yaml."""
        return self.params.get("params.yaml") or {}

    @property
    def hash(self) -> str:
        """Return the digest of its command, dependencies and params, what DVC's own cache goes by."""
        noted = self.model_dump(exclude_unset=True)
        key = json.dumps([noted.get(part) for part in ("cmd", "deps", "params")], sort_keys=True, default=str)
        return hashlib.sha256(key.encode()).hexdigest()[:32]

    @property
    def md5_of_deps(self) -> dict[str, str]:
        """md5 of what it read, by path."""
        return {file.path: file.md5 for file in self.deps}

    @property
    def md5_of_outs(self) -> dict[str, str]:
        """md5 of what it left, by path."""
        return {file.path: file.md5 for file in self.outs}


class _Lock(BaseModel):
    stages: dict[str, LockedStage] = {}


def parse_lock(path: Path, *, exact: bool = True) -> object:
    """Parse a dvc.lock, which may come from a stranger's repository. Raises UserError where it is missing or damaged."""
    return parse_yaml(read_text(path, max_bytes=MAX_BYTES), path_text(path), fast=not exact)


def read_lock(path: Path, *, exact: bool = False) -> dict[str, LockedStage]:
    """Return the stages of a dvc.lock by label, in its order; none where there is no such file or it is damaged.

    `exact`: values as DVC itself reads them (YAML 1.2), which takes ten times as long.
    """
    try:
        return _Lock.model_validate(parse_lock(path, exact=exact)).stages
    except (UserError, ValidationError):
        return {}


def differing_results(lock: Mapping[str, LockedStage], files: Iterable[Path]) -> Iterator[str]:
    """Yield a phrase for each file that is not what the stages of `lock` left or, between stages, what they read.

    Every byte is read: DVC itself trusts the size and time of a file that it has seen before.
    """
    outs = {out.path: (label, out.md5) for label, stage in lock.items() for out in stage.outs}
    owners: dict[str, list[Path]] = {}
    for file in files:
        folders = [path.as_posix() for path in (file, *file.parents)]
        owner = next((folder for folder in folders if folder in outs), None)
        if owner is None:
            yield f"{file} is no output of a stage"
        else:
            owners.setdefault(owner, []).append(file)
    md5_of = cache(_md5)
    yield from (
        f"{path} is not what {outs[path][0]} left" for path in sorted(owners) if md5_of(Path(path)) != outs[path][1]
    )
    for path in sorted(owners):
        label = outs[path][0]
        for name, md5 in lock[label].md5_of_deps.items():
            if name.startswith(f"{REPORTS}/") and md5 != (outs[name][1] if name in outs else md5_of(Path(name))):
                yield f"{path} was made from another {name} than there is now"


def _md5(path: Path) -> str:
    """Return the md5 of a file or a directory as dvc.lock has it."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if not p.is_dir() and p.name != RUNTIME_FILE)
        rows = [{"md5": _md5(file), "relpath": file.relative_to(path).as_posix()} for file in files]
        rows.sort(key=lambda row: row["relpath"])
        return hashlib.md5(json.dumps(rows, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"
    try:
        return file_digest(path, "md5")
    except OSError:
        return ""
