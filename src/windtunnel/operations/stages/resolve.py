"""Stage `resolve`: write the inputs that decide each stage's result, if they changed. Always runs, in a second or two.

Results of which only the figures changed are set aside.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.operations.dvc_files import read_lock
from windtunnel.operations.resolve.build import resolve_all
from windtunnel.params.resolved import Resolved, read_resolved, resolved_file
from windtunnel.records.digests import KEPT, digests_file, result_digests, set_aside
from windtunnel.records.files import file_digest, read_json, write_json
from windtunnel.records.layout import LOCK, RESOLVED, ROBUSTNESS


def main() -> None:
    """Write reports/resolved."""
    changed = write_all(resolve_all())
    if changed:
        print(f"resolve: {', '.join(changed)}")


def write_all(stages: Iterable[Resolved], root: Path = RESOLVED) -> list[str]:
    """Write changed files, remove obsolete ones, and return the labels of the written ones."""
    paths = {resolved_file(stage.stage, stage.name, root): stage for stage in stages}
    keep_for_redrawing([stage for stage in paths.values() if _looks_different(stage, root)], root)
    forget_others({stage.digest for stage in paths.values()})
    for path in [*root.rglob("*.json")]:
        if path not in paths:
            path.unlink()
    for stage in paths.values():
        if stage.stage == "summary":
            # A params file of dvc.yaml, so that `dvc params diff` shows the epsilon behind the name of a budget.
            write_json({"resolved": {"budget": stage.work.entry["budget"]}}, root / "budget.yaml")
    return [stage.label for stage in paths.values() if stage.write(root)]


def _looks_different(now: Resolved, root: Path) -> bool:
    """Return True if only the figures of a stage changed since the last resolve."""
    try:
        before = read_resolved(now.stage, now.name, root)
    except UserError:
        return False
    return (
        now.stage != "clean" and not before.has_failed and before.digest == now.digest and before.drawing != now.drawing
    )


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
        if ran_with == file_digest(file, "md5") and _whole(stage.name):
            set_aside(ROBUSTNESS / stage.name, stage.digest)


def forget_others(digests: set[str]) -> None:
    """Remove the results set aside for a stage whose cache key has changed."""
    for folder in KEPT.glob("*"):
        if folder.name not in digests:
            shutil.rmtree(folder)


def _whole(name: str) -> bool:
    try:
        return read_json(digests_file(name)) == result_digests(ROBUSTNESS / name)
    except UserError:
        return False
