"""A project on disk: what would be written, as a diff; writing it; and taking it back."""

import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader
from pydantic import BaseModel, Field, ValidationError

from windtunnel.boundary.files import is_file, read_text
from windtunnel.boundary.text import parse_json
from windtunnel.boundary.writing import check_output, remove_inside
from windtunnel.core.errors import InfrastructureError, UserError, shown, unfit
from windtunnel.core.references import dvc_root, repository
from windtunnel.records.files import replacing

PARAMS, GRAPH, RECORD = "params.yaml", "dvc.yaml", ".windtunnel.json"
CI_SERVICES = ("github", "gitlab")
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


def ci_files(folder: Path, service: str) -> dict[str, str]:
    """Return the files of a CI service (github, gitlab) by path relative to `folder`: scripts in it, and what the service reads.

    `.gitlab-ci.yml` is only there where the repository has none: it includes the file in `folder`. Raises UserError for a path that
    a shell or YAML would read otherwise.
    """
    top = repository(folder) or folder.parent
    name = folder.absolute().relative_to(top).as_posix()
    if not re.fullmatch(r"[\w.][\w./-]*", name):
        raise UserError(
            f"init: --ci {service}: {shown(name)} would stand in shell commands of the workflow; its path has letters, digits, . _ - alone"
        )
    workflow = _template(f"{service}.yml").replace("__FOLDER__", name)
    scripts = ("assess.sh", f"comment_{service}.sh")
    files = {f"ci/{script}": _template(script) for script in scripts}
    if service == "github":
        return {**files, _outside(folder, top / ".github/workflows/windtunnel.yml"): workflow}
    files["ci/gitlab.yml"] = workflow
    include, text = top / ".gitlab-ci.yml", f"include: [{{local: /{name}/ci/gitlab.yml}}]\n"
    return {**files, _outside(folder, include): text} if _read(include) in (None, text) else files


def _template(name: str) -> str:
    return PackageLoader("windtunnel.operations.project", "templates/ci").get_source(
        Environment(autoescape=True), name
    )[0]


def _at(folder: Path, name: str) -> Path:
    """Return the path of a file of a project, whose name may lead out of the folder, also where there is no folder yet."""
    return Path(os.path.normpath(folder / name))


def _outside(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path, folder.absolute())).as_posix()


# Made by runs, and by commands that say nothing else, in the project's folder.
_OF_RUNS = "reports champion .cache mlartifacts mlflow.db* dvc.lock* dvc_plots __pycache__ report evidence.zip".split()


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of `windtunnel init`. files: their content, by path within `folder`. makes: `git`, `dvc`, which are not there yet.

    kept: files of an earlier init that the user has changed since, and which stay as they are.
    """

    folder: Path
    files: Mapping[str, str]
    makes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def changes(self) -> list[str]:
        """Return the files that would be written."""
        return [name for name, text in self.files.items() if _read(_at(self.folder, name)) != text]

    def diff(self, shown: Path) -> Iterator[str]:
        """Yield the lines of a unified diff; `shown`: how the folder is called in it."""
        for name in self.changes():
            old, path = _read(_at(self.folder, name)), _at(shown, name).as_posix()
            yield from difflib.unified_diff(
                (old or "").splitlines(),
                self.files[name].splitlines(),
                path if old is not None else "/dev/null",
                path,
                lineterm="",
            )


def plan(folder: Path, params: str, graph: str, service: str | None = None) -> Plan:
    """Return the files to write for a project in `folder`. params.yaml, once there, is the user's and stays.

    dvc.yaml is written again unless the user has changed it. service: the CI service (github, gitlab) whose files belong to it; the
    files of an earlier init are brought up to date without. A folder that init did not make is taken where it holds a params.yaml
    and none of the other files. Raises UserError where `folder` holds something else.
    """
    if folder.is_symlink():
        raise UserError(f"init: {folder.name} is a link, and nothing is written through one; --folder names another")
    record = read_record(folder)
    has_params = is_file(folder / PARAMS)
    if not record and folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not has_params)):
        raise UserError(
            f"init: {folder.name} is there already, without a {PARAMS}, and was not made by windtunnel init; --folder names another"
        )
    clashes = [name for name in (GRAPH, *_FIXED) if not record and (folder / name).exists()]
    if clashes:
        raise UserError(
            f"init: {folder.name}/{clashes[0]} is there already, and was not made by windtunnel init; --folder names another"
        )
    written = record.files if record else {}
    services = {service} if service else {name for name in CI_SERVICES if f"ci/comment_{name}.sh" in written}
    files = {PARAMS: params, GRAPH: graph, **_FIXED}
    for of_service in sorted(services):
        files |= ci_files(folder, of_service)
    for name, content in files.items():
        if name.startswith("../") and name not in written and _read(_at(folder, name)) not in (None, content):
            raise UserError(f"init --ci: {_at(folder, name)} is there already, and was not made by windtunnel init")
    user_files = [
        name
        for name, digest in written.items()
        if name in files and (text := _read(_at(folder, name))) not in (None, files[name]) and _digest(text) != digest
    ]
    files = {
        name: text for name, text in files.items() if name not in user_files and not (name == PARAMS and has_params)
    }
    missing = {"git": repository(folder) is None, "dvc": dvc_root(folder) is None}
    return Plan(folder, files, tuple(name for name, lacks in missing.items() if lacks), tuple(user_files))


def apply(changes: Plan, root: Path) -> None:
    """Carry out a plan; what git or DVC lack is made at `root`. Raises InfrastructureError where one of them fails."""
    if "git" in changes.makes:
        _run("git", "init", "--quiet", cwd=root)
    if "dvc" in changes.makes:
        _run(sys.executable, "-m", "dvc", "init", "--quiet", cwd=repository(root) or root)
    before = read_record(changes.folder) or InitRecord()
    for name in changes.changes():
        _write(changes, name, changes.files[name], root)
    files = {**before.files, **{name: _digest(text) for name, text in changes.files.items()}}
    record = InitRecord(files=files, makes=tuple(sorted({*before.makes, *changes.makes})))
    content = json.dumps(record.model_dump(mode="json"), indent=2) + "\n"
    if _read(changes.folder / RECORD) != content:
        _write(changes, RECORD, content, root)


def _write(project: Plan, name: str, text: str, root: Path) -> None:
    """Write a file of the project; never through a link out of its folder."""
    inside = project.folder if project.folder.exists() and not name.startswith("../") else repository(root) or root
    path = _at(project.folder.absolute(), name)
    with replacing(check_output(path, where="init:", inside=inside, of_project=True)) as temporary:
        temporary.write_text(text, encoding="utf-8")


class InitRecord(BaseModel):
    """Return the record of an init: digests of the files that it wrote, by name, and which of `git` and `dvc` it made."""

    files: dict[str, str] = Field(default_factory=dict)
    makes: tuple[str, ...] = ()


def read_record(folder: Path) -> InitRecord | None:
    """Read the record of an earlier init; None where there was none. Raises UserError for a damaged record."""
    text = _read(folder / RECORD)
    if text is None:
        return None
    try:
        return InitRecord.model_validate(parse_json(text, "it"))
    except (UserError, ValidationError) as error:
        why = unfit(error.errors()[0]) if isinstance(error, ValidationError) else error
        raise UserError(f"{folder / RECORD}: is damaged ({why}); git checkout brings it back") from error


@dataclass(frozen=True, slots=True)
class Removal:
    """The plan of taking a project back.

    Attributes:
        folder: the project.
        own: files that init created and nobody changed since, and what runs made there.
        changed: files that init created and the user has changed; they stay.
        of_dvc: what `dvc init` made for this project at the root of the repository, where nothing else uses DVC, and files of CI.
        stays: everything else in the folder.
    """

    folder: Path
    own: tuple[Path, ...]
    changed: tuple[str, ...]
    of_dvc: tuple[Path, ...]
    stays: tuple[Path, ...]


def removal(folder: Path) -> Removal:
    """Return what would be removed. Raises UserError where `folder` was not made by init.

    The record may come from a stranger, with a repository. So nothing that it names is removed but the files that init writes,
    with the content that it wrote, and what runs make only beside a reports/.gitignore of init's.
    """
    record = None if folder.is_symlink() else read_record(folder)
    if not record:
        raise UserError(f"init --remove: {folder.name} was not made by windtunnel init; there is nothing to take back")
    of_ci = [name for service in CI_SERVICES for name in ci_files(folder, service)]
    outside = [name for name in of_ci if name.startswith("../")]
    names = [name for name in (PARAMS, GRAPH, *_FIXED, *of_ci) if name in record.files and is_file(_at(folder, name))]
    names = list(dict.fromkeys(names))
    created = {name for name in names if _digest(_read(_at(folder, name)) or "") == record.files[name]}
    genuine = _read(folder / "reports/.gitignore") == _FIXED["reports/.gitignore"]
    inside = sorted(folder.iterdir())
    runs = [path for path in inside if genuine and any(path.match(pattern) for pattern in _OF_RUNS)]
    removable = [*(folder / name for name in sorted(created.difference(outside))), *runs, folder / RECORD]
    beyond = tuple(_at(folder, name) for name in outside if name in created)
    changed = tuple(name for name in names if name not in created and folder / name.split("/")[0] not in runs)
    tops = {path.relative_to(folder).parts[0] for path in removable}
    of_dvc = _own_dvc(folder) if "dvc" in record.makes else []
    return Removal(
        folder,
        tuple(removable),
        changed,
        (*beyond, *of_dvc),
        tuple(path for path in inside if path.name not in tops and path.name not in changed),
    )


def remove(removal_plan: Removal) -> None:
    """Take a project back."""
    for path in removal_plan.own:
        remove_inside(path, removal_plan.folder)
    for name in ("ci", "champion", "reports", "."):
        with suppress(OSError):  # not empty: what is left is the user's
            (removal_plan.folder / name).rmdir()
    root = repository(removal_plan.folder)
    for path in removal_plan.of_dvc:
        if root is not None:  # `dvc init` has put its files into git's index
            _run("git", "rm", "-r", "--cached", "--quiet", "--ignore-unmatch", str(path), cwd=root)
        remove_inside(path, path.parent)


def _own_dvc(folder: Path) -> list[Path]:
    """Return DVC's files above a project that alone uses them, if as `dvc init` made them: nobody has set a remote or a cache."""
    root = dvc_root(folder)
    if root is None or (root / ".dvc").is_symlink() or (_read(root / ".dvc/config") or "").strip():
        return []
    uses = (path for pattern in ("dvc.yaml", "*.dvc") for path in root.rglob(pattern))
    if any(path != root / ".dvc" and not path.is_relative_to(folder) for path in uses):
        return []
    return [path for path in (root / ".dvc", root / ".dvcignore") if path.exists()]


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = " ".join(command).removeprefix(f"{sys.executable} -m ")
        raise InfrastructureError(f"init: {shown}: {' '.join(done.stderr.split())[:300]}")


def _read(path: Path) -> str | None:
    return read_text(path) if is_file(path) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
