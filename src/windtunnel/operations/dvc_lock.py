"""dvc.lock, read as types: what each stage ran with, and what it left."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


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
        """Those of params.yaml."""
        return self.params.get("params.yaml") or {}

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


def read_lock(path: Path, *, exact: bool = False) -> dict[str, LockedStage]:
    """The stages of a dvc.lock by label, in its order; none where there is no such file or it is damaged.

    `exact`: values as DVC itself reads them (YAML 1.2), which takes ten times as long.
    """
    try:
        content = YAML(typ="safe", pure=exact).load(path.read_text(encoding="utf-8"))
        return _Lock.model_validate(content).stages
    except (OSError, YAMLError, UnicodeDecodeError, ValidationError):
        return {}
