"""Results that are to be drawn again and not computed again, set aside before DVC takes the outputs of their stage away."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.operations.dvc_lock import read_lock
from windtunnel.params.resolved import Resolved, resolved_file
from windtunnel.records.digests import digests_file, result_digests
from windtunnel.records.files import read_json
from windtunnel.records.layout import LOCK, ROBUSTNESS
from windtunnel.records.redraw_cache import KEPT, set_aside


def keep_for_redrawing(stages: Iterable[Resolved], root: Path) -> None:
    """Set aside the results of `stages`, whose resolved files in `root` are still those of before.

    A result counts only if dvc.lock says that it is of that very file, and if it is as the stage left it.
    """
    chosen = list(stages)
    if not chosen:
        return
    lock = read_lock(LOCK)
    for stage in chosen:
        file = resolved_file(stage.stage, stage.name, root)
        ran_with = lock[stage.label].md5_of_deps.get(file.as_posix()) if stage.label in lock else None
        if ran_with == hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() and _whole(stage.name):
            set_aside(ROBUSTNESS / stage.name, stage.digest)


def forget_others(digests: set[str]) -> None:
    """Remove what was set aside for a stage that is resolved otherwise now."""
    for folder in KEPT.glob("*"):
        if folder.name not in digests:
            shutil.rmtree(folder)


def _whole(name: str) -> bool:
    try:
        return read_json(digests_file(name)) == result_digests(ROBUSTNESS / name)
    except UserError:
        return False
