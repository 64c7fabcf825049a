"""A project on disk: what would be written, as a diff; writing it; and taking it back."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.core.files import replacing
from windtunnel.core.repository import dvc_root, repository

PARAMS, GRAPH, RECORD = "params.yaml", "dvc.yaml", ".windtunnel.json"
_FIXED = {
    ".gitignore": (
        "# What a run makes beside reports/, and what is of this machine alone; dvc.lock is committed, results lie in DVC's cache.\n"
        "/.cache/\n/mlflow.db*\n/mlartifacts/\n__pycache__/\n/dvc_plots/\n"
        # What `report` and `evidence` write here by default.
        "/report/\n/evidence.zip\n/windtunnel.local.yaml\n"
    ),
    ".dvcignore": "# Volatile facts (time, host) beside each assessment: no part of any output.\nruntime.json\n",
    # `windtunnel champion --fetch` puts what the gate compares with here.
    "champion/.gitignore": "*\n!.gitignore\n",
    "reports/.gitignore": "*\n!.gitignore\n",
}
# Made by runs, and by commands that say nothing else, in the project's folder.
_OF_RUNS = (
    "reports", "champion", ".cache", "mlartifacts", "mlflow.db*", "dvc.lock*", "dvc_plots", "__pycache__", "report", "evidence.zip",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What `windtunnel init` would do. files: their content, by path within `folder`. makes: `git`, `dvc`, which are not there yet.

    kept: files of an earlier init that the user has changed since, and which stay as they are.
    """

    folder: Path
    files: Mapping[str, str]
    makes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def changes(self) -> list[str]:
        """The files that would be written."""
        return [name for name, text in self.files.items() if _read(self.folder / name) != text]

    def diff(self, shown: Path) -> Iterator[str]:
        """The lines of a unified diff; `shown`: how the folder is called in it."""
        for name in self.changes():
            old, path = _read(self.folder / name), (shown / name).as_posix()
            yield from difflib.unified_diff(
                (old or "").splitlines(),
                self.files[name].splitlines(),
                path if old is not None else "/dev/null",
                path,
                lineterm="",
            )


def plan(folder: Path, params: str, graph: str) -> Plan:
    """What has to be written for a project in `folder`. params.yaml, once there, is the user's and stays.

    dvc.yaml is written again unless the user has changed it. Raises UserError where `folder` holds something else.
    """
    record = read_record(folder)
    if not record and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"init: {folder.name} is there already, and was not made by windtunnel init; --folder names another"
        )
    written = record.files if record else {}
    files = {PARAMS: params, GRAPH: graph, **_FIXED}
    kept = [
        name for name, digest in written.items()
        if name in files and (text := _read(folder / name)) is not None and _digest(text) != digest
    ]  # fmt: skip
    files = {name: text for name, text in files.items() if name not in kept and not (name == PARAMS and record)}
    missing = {"git": repository(folder) is None, "dvc": dvc_root(folder) is None}
    return Plan(folder, files, tuple(name for name, lacks in missing.items() if lacks), tuple(kept))


def apply(wanted: Plan, root: Path) -> None:
    """Carry out a plan; what git or DVC lack is made at `root`. Raises InfrastructureError where one of them fails."""
    if "git" in wanted.makes:
        _run("git", "init", "--quiet", cwd=root)
    if "dvc" in wanted.makes:
        _run(sys.executable, "-m", "dvc", "init", "--quiet", cwd=repository(root) or root)
    before = read_record(wanted.folder) or InitRecord()
    for name in wanted.changes():
        with replacing(wanted.folder / name) as temporary:
            temporary.write_text(wanted.files[name], encoding="utf-8")
    files = {**before.files, **{name: _digest(text) for name, text in wanted.files.items()}}
    record = InitRecord(files=files, makes=tuple(sorted({*before.makes, *wanted.makes})))
    content = json.dumps(record.model_dump(mode="json"), indent=2) + "\n"
    if _read(wanted.folder / RECORD) != content:
        with replacing(wanted.folder / RECORD) as temporary:
            temporary.write_text(content, encoding="utf-8")


class InitRecord(BaseModel):
    """What init notes of itself: digests of the files that it wrote, by name, and which of `git` and `dvc` it made."""

    files: dict[str, str] = Field(default_factory=dict)
    makes: tuple[str, ...] = ()


def read_record(folder: Path) -> InitRecord | None:
    """What an earlier init wrote down of itself; None where there was none. Raises UserError for a damaged record."""
    text = _read(folder / RECORD)
    if text is None:
        return None
    try:
        return InitRecord.model_validate_json(text)
    except ValidationError as error:
        why = error.errors()[0]["msg"].lower()
        raise UserError(f"{folder / RECORD}: is damaged ({why}); git checkout brings it back") from error


@dataclass(frozen=True, slots=True)
class Removal:
    """What taking a project back removes. folder: its own files and folders there. changed: those of them that the user has changed.

    of_dvc: what `dvc init` made for this project at the root of the repository, where nothing else uses DVC. stays: the user's files.
    """

    folder: Path
    own: tuple[Path, ...]
    changed: tuple[str, ...]
    of_dvc: tuple[Path, ...]
    stays: tuple[Path, ...]


def removal(folder: Path) -> Removal:
    """What would be removed. Raises UserError where `folder` was not made by init."""
    record = read_record(folder)
    if not record:
        raise UserError(f"init --remove: {folder.name} was not made by windtunnel init; there is nothing to take back")
    written = record.files
    tops = {*(name.split("/")[0] for name in written), *_OF_RUNS, RECORD}
    inside = sorted(folder.iterdir())
    own = tuple(path for path in inside if any(path.match(top) for top in tops))
    changed = [
        n for n, digest in written.items() if (text := _read(folder / n)) is not None and _digest(text) != digest
    ]
    return Removal(
        folder, own, tuple(changed), tuple(_own_dvc(folder)) if "dvc" in record.makes else (),
        tuple(path for path in inside if path not in own),
    )  # fmt: skip


def remove(found: Removal) -> None:
    """Take a project back."""
    for path in found.own:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if not found.stays:
        found.folder.rmdir()
    root = repository(found.folder)
    for path in found.of_dvc:
        if root is not None:  # `dvc init` has put its files into git's index
            _run("git", "rm", "-r", "--cached", "--quiet", "--ignore-unmatch", str(path), cwd=root)
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _own_dvc(folder: Path) -> Iterator[Path]:
    """DVC's files above a project that alone uses them."""
    root = dvc_root(folder)
    if root is None or any(_others(root, folder)):
        return
    yield from (path for path in (root / ".dvc", root / ".dvcignore") if path.exists())


def _others(root: Path, folder: Path) -> Iterator[Path]:
    for pattern in ("dvc.yaml", "*.dvc"):
        yield from (path for path in root.rglob(pattern) if path != root / ".dvc" and not path.is_relative_to(folder))


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"init: {_shown(command)}: {' '.join(done.stderr.split())[:300]}")


def _shown(command: Sequence[str]) -> str:
    return " ".join(command).removeprefix(f"{sys.executable} -m ")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
