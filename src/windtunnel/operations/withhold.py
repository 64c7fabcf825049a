"""Results that are not whole for a reason that may pass stay on this machine: DVC has nothing of them to push."""

from __future__ import annotations

from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.operations.dvc_lock import LockedStage, read_lock
from windtunnel.params.resolved import Resolved, read_resolved
from windtunnel.records.layout import LOCK, RESOLVED


def withhold_failed_entries() -> list[str]:
    """Take entries that run again (`Resolved.has_failed`) out of dvc.lock and out of DVC's cache of runs; return their labels.

    `dvc push --run-cache` sends what these two name. Nothing is deleted from disk, so the report and `windtunnel show` still
    have the record of the failure.
    """
    failed = [one.label for path in RESOLVED.glob("*/*.json") if (one := _read(path)) and one.has_failed]
    if not failed or not LOCK.is_file():
        return failed
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo
    from dvc.utils.serialize import modify_yaml

    locked = {label: stage for label, stage in read_lock(LOCK).items() if label in failed}
    if not locked:
        return failed
    try:
        with Repo() as repo:
            _forget_runs(Path(repo.stage_cache.cache_dir), locked)
    except NotDvcRepoError:
        return failed
    with modify_yaml(LOCK) as content:
        for label in locked:
            content["stages"].pop(label, None)
    return failed


def _forget_runs(runs: Path, locked: dict[str, LockedStage]) -> None:
    """Remove the records of runs that left the outputs of these stages; each is a small YAML file."""
    digests = [file.md5 for stage in locked.values() for file in stage.outs if file.md5]
    for path in runs.glob("*/*/*"):
        if path.is_file() and any(digest in path.read_text(encoding="utf-8") for digest in digests):
            path.unlink()


def _read(path: Path) -> Resolved | None:
    try:
        return read_resolved(path.parent.name, path.stem)
    except UserError:  # of another version
        return None
