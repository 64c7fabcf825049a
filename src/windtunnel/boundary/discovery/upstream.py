"""The DVC stages that a repository has already: which of them makes a file."""

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from windtunnel.boundary.discovery.walk import read_or_skip
from windtunnel.boundary.text import read_yaml
from windtunnel.core.errors import UserError


def outputs(root: Path, files: Iterable[Path]) -> dict[Path, str]:
    """Return the outputs of the stages of dvc.yaml files: path relative to `root` -> name of the stage.

    Outputs whose path is a template of DVC's are left out; a file that is no YAML makes nothing.
    """
    return {path: label for file in files for path, label in read_or_skip(file, partial(_outputs, root)) or []}


def _outputs(root: Path, file: Path) -> list[tuple[Path, str]]:
    content = read_yaml(root / file)
    stages = content.get("stages") if isinstance(content, Mapping) else None
    if stages is not None and not isinstance(stages, Mapping):
        raise UserError(f"stages: is a {type(stages).__name__}, no map of stages")
    return [
        (
            Path(os.path.normpath(file.parent / _folder(stage) / path)),
            str(name) if file.parent == Path() else f"{file.as_posix()}:{name}",
        )
        for name, stage in (stages or {}).items()
        for path in _outs(stage)
    ]


def maker(path: Path, makers: Mapping[Path, str]) -> str:
    """Return the stage that makes `path`, or a folder that it is in; empty where none does."""
    return next((makers[folder] for folder in (path, *path.parents) if folder in makers), "")


def _folder(stage: object) -> str:
    folder = stage.get("wdir", "") if isinstance(stage, Mapping) else ""
    return "" if "${" in str(folder) else str(folder)


def _outs(stage: object) -> list[str]:
    rows = stage.get("outs") if isinstance(stage, Mapping) else None
    listed = rows if isinstance(rows, list) else []
    paths = [next(iter(row), None) if isinstance(row, Mapping) else row for row in listed]
    return [path for path in paths if isinstance(path, str) and "${" not in path and path.isprintable()]
