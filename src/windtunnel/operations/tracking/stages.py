"""What dvc.lock says of each stage, as the few tags by which a run is found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of dvc.lock: `hash` is over its command, dependencies and params, what DVC's own cache goes by."""

    name: str
    hash: str
    outs: Mapping[str, str]


def read_stages(path: Path) -> list[StageState]:
    """The stages of a dvc.lock in the order of the file; none where there is no such file or it is damaged."""
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError, UnicodeDecodeError):
        return []  # assessed without DVC: the digests of the artifacts still identify the run
    stages = content.get("stages", {}) if isinstance(content, dict) else {}
    return [_stage(name, stage) for name, stage in stages.items()]


def _stage(name: str, stage: Mapping[str, object]) -> StageState:
    key = json.dumps([stage.get(part) for part in ("cmd", "deps", "params")], sort_keys=True, default=str)
    outs = stage.get("outs") or []
    assert isinstance(outs, list)
    return StageState(
        name, hashlib.sha256(key.encode()).hexdigest()[:32], {str(o["path"]): str(o.get("md5", "")) for o in outs}
    )
