"""Summarise dvc.lock per stage, as the few tags by which a run is found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.operations.dvc_lock import LockedStage, read_lock


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of dvc.lock: `hash` is over its command, dependencies and params, what DVC's own cache goes by."""

    name: str
    hash: str
    outs: Mapping[str, str]


def read_stages(path: Path) -> list[StageState]:
    """The stages of a dvc.lock in the order of the file; none where there is no such file or it is damaged.

    Assessed without DVC there are none: the digests of the artifacts still identify the run.
    """
    return [_stage(name, stage) for name, stage in read_lock(path, exact=True).items()]


def _stage(name: str, stage: LockedStage) -> StageState:
    noted = stage.model_dump(exclude_unset=True)
    key = json.dumps([noted.get(part) for part in ("cmd", "deps", "params")], sort_keys=True, default=str)
    return StageState(name, hashlib.sha256(key.encode()).hexdigest()[:32], stage.md5_of_outs)
