"""DVC's own files: dvc.lock read as types, and what a kill has damaged, with the command that repairs it and the repair itself.

DVC 3.67 writes `.dvc/tmp/rwlock` and `dvc.lock` in place: SIGKILL at the wrong moment leaves them empty or cut, and every
`dvc repro` after it ends with an error.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from windtunnel.boundary.files import is_file, open_file, path_text, read_text
from windtunnel.boundary.text import parse_yaml, read_json_map
from windtunnel.core.errors import UserError
from windtunnel.core.references import dvc_root
from windtunnel.records.files import RUNTIME_FILE, file_digest
from windtunnel.records.layout import LOCK, REPORTS

RWLOCK, RUNNING = Path(".dvc/tmp/rwlock"), Path(".dvc/tmp/lock")
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


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that stops DVC. `command` repairs it; nothing is lost by it, for results lie in DVC's cache."""

    path: Path
    what: str
    command: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; repair it by: windtunnel repair (or: {self.command})"


def damaged_files(root: Path = Path()) -> list[Damage]:
    """List the damaged DVC files of the project `root`; nothing while DVC runs, for then they are being written."""
    if _is_running(root):
        return []
    damaged = []
    rwlock = _of_dvc(root) / RWLOCK
    if is_file(rwlock) and not _is_json(rwlock):
        shown = Path(os.path.relpath(rwlock, root))
        damaged.append(Damage(shown, "is empty or cut, left by a kill", f"rm {shown}"))
    if is_file(root / LOCK) and not _is_lock(root / LOCK):
        command = f"git checkout -- {LOCK}" if _committed(root) else f"rm {LOCK}"
        damaged.append(Damage(LOCK, "is empty or cut, left by a kill", command))
    return damaged


def require_whole_files() -> None:
    """Raise UserError, a line per file, where a kill has damaged DVC's files in the current directory."""
    if damaged := damaged_files():
        raise UserError("\n".join(map(str, damaged)))


def repair(root: Path = Path()) -> list[Damage]:
    """Repair what is damaged, and say what it was.

    The list of who reads and writes is made again by the next DVC. A lock file comes back as it was committed, or goes
    away: what was finished since is found in the cache of runs. The damaged file stays beside it as `<name>.damaged`.
    """
    damaged = damaged_files(root)
    for damage in damaged:
        path = root / damage.path
        if damage.path == LOCK:
            shutil.copyfile(path, path.with_name(f"{path.name}.damaged"))
        path.unlink()
        if damage.path == LOCK and _committed(root):
            git_output("checkout", "--", str(LOCK), folder=root)
    return damaged


def drop_stale_stages() -> list[str]:
    """Remove the stages from dvc.lock that dvc.yaml no longer has, and return their names; DVC itself keeps them for ever.

    Their outputs stay in DVC's cache. Nothing is removed while DVC runs, nor where dvc.yaml does not resolve, which DVC
    reports.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.utils.serialize import modify_yaml

    if _is_running(Path()) or not is_file(LOCK) or not Path("dvc.yaml").is_file():
        return []
    try:
        with Repo() as repo:
            dvc_yaml = os.path.abspath("dvc.yaml")
            labels = {stage.name for stage in repo.index.stages if os.path.abspath(stage.path) == dvc_yaml}
    except DvcException:
        return []
    stale = [name for name in read_lock(LOCK) if name not in labels]
    if stale:
        with modify_yaml(LOCK) as content:
            for name in stale:
                del content["stages"][name]
    return stale


def _of_dvc(root: Path) -> Path:
    """Return the folder of DVC's own files: at the root of its repository, of which the project may be a folder."""
    return dvc_root(root) or root


def _is_running(root: Path) -> bool:
    """Return True if a DVC process holds its lock here; a kill lets go of it."""
    path = _of_dvc(root) / RUNNING
    if not is_file(path):
        return False
    with open_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _is_json(path: Path) -> bool:
    with contextlib.suppress(UserError):
        return bool(read_json_map(path)) or True
    return False


def _is_lock(path: Path) -> bool:
    try:
        content = parse_lock(path)
    except UserError:
        return False
    return isinstance(content, dict) and isinstance(content.get("stages", {}), dict)


def _committed(root: Path) -> bool:
    return git_output("cat-file", "-e", f"HEAD:./{LOCK}", folder=root) is not None


def git_output(*arguments: str, folder: Path | None = None) -> str | None:
    """Return what a command of git prints in a folder (the current directory); None where it fails."""
    done = subprocess.run(["git", *arguments], cwd=folder, check=False, capture_output=True)
    return None if done.returncode else done.stdout.decode("utf-8", "surrogateescape")


def missing_references(graph: Path, params: Mapping[str, object]) -> list[str]:
    """Return a line for each key of data, model and generators that dvc.yaml names and params.yaml does not have."""
    if not graph.is_file():
        return []
    named = dict.fromkeys(re.findall(r"\$\{((?:data|model|generators)\.\w+)\}", read_text(graph)))
    blocks = {key: params.get(key.partition(".")[0]) for key in named}
    return [
        f"{graph.name}: reads {key}, which params.yaml does not have, so dvc repro would stop; `windtunnel init` in the "
        f"repository's root brings {graph.name} up to date"
        for key, block in blocks.items()
        if not isinstance(block, Mapping) or block.get(key.partition(".")[2]) is None
    ]
