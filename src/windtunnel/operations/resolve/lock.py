"""dvc.lock as resolve reads it: what each stage ran with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


@dataclass(frozen=True, slots=True)
class Ran:
    """One stage of dvc.lock: md5 of its dependencies and outputs by path, and the params it ran with by key."""

    deps: Mapping[str, str]
    outs: Mapping[str, str]
    params: Mapping[str, object]


def read_lock(path: Path) -> dict[str, Ran]:
    """The stages of a dvc.lock by label; none where there is no such file or it is damaged."""
    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError, UnicodeDecodeError):
        return {}
    stages = content.get("stages", {}) if isinstance(content, dict) else {}
    return {label: _ran(stage) for label, stage in stages.items()}


def _ran(stage: Mapping[str, object]) -> Ran:
    def hashes(key: str) -> dict[str, str]:
        rows = stage.get(key) or []
        assert isinstance(rows, list)
        return {str(row["path"]): str(row.get("md5", "")) for row in rows}

    params = stage.get("params") or {}
    assert isinstance(params, dict)
    return Ran(hashes("deps"), hashes("outs"), dict(params.get("params.yaml") or {}))
