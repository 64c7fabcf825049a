"""DVC's own files after a kill: what is damaged, the command that repairs it, and the repair itself.

DVC 3.67 writes `.dvc/tmp/rwlock` and `dvc.lock` in place: SIGKILL at the wrong moment leaves them empty or cut, and every
`dvc repro` after it ends with an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.boundary.files import is_file, open_file, read_text
from windtunnel.boundary.text import read_json_map
from windtunnel.core.errors import UserError
from windtunnel.core.repository import dvc_root
from windtunnel.operations.dvc_lock import parse_lock, read_lock

RWLOCK, LOCK, RUNNING = Path(".dvc/tmp/rwlock"), Path("dvc.lock"), Path(".dvc/tmp/lock")


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
            subprocess.run(["git", "checkout", "--", str(LOCK)], cwd=root, check=False, capture_output=True)
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
    done = subprocess.run(
        ["git", "cat-file", "-e", f"HEAD:./{LOCK}"],
        cwd=root,
        check=False,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return done.returncode == 0


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
