"""The DVC stages that a repository has already: which of them makes a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


def outputs(root: Path, files: Iterable[Path]) -> dict[Path, str]:
    """What the stages of the given dvc.yaml make, by path relative to `root`: the stage as `dvc repro` names it.

    Outputs whose path is a template of DVC's are left out; a file that is no YAML makes nothing.
    """
    found: dict[Path, str] = {}
    for file in files:
        try:
            content = YAML(typ="safe", pure=True).load((root / file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, YAMLError):
            continue
        stages = content.get("stages") if isinstance(content, Mapping) else None
        for name, stage in (stages or {}).items():
            label = name if file.parent == Path() else f"{file.as_posix()}:{name}"
            for path in _outs(stage):
                found[Path(os.path.normpath(file.parent / _folder(stage) / path))] = label
    return found


def maker(path: Path, made: Mapping[Path, str]) -> str:
    """The stage that makes `path`, or a folder that it is in; empty where none does."""
    return next((made[place] for place in (path, *path.parents) if place in made), "")


def _folder(stage: object) -> str:
    folder = stage.get("wdir", "") if isinstance(stage, Mapping) else ""
    return "" if "${" in str(folder) else str(folder)


def _outs(stage: object) -> list[str]:
    rows = stage.get("outs") if isinstance(stage, Mapping) else None
    paths = [next(iter(row)) if isinstance(row, Mapping) else row for row in rows or []]
    return [str(path) for path in paths if "${" not in str(path)]
