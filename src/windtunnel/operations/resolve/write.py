"""Write the resolved files that changed, and results of which only the figures changed are set aside."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.operations.resolve.redraw import forget_others, keep_for_redrawing
from windtunnel.params.resolved import Resolved, read_resolved, resolved_file
from windtunnel.records.files import write_json
from windtunnel.records.layout import RESOLVED


def write_all(stages: Iterable[Resolved], root: Path = RESOLVED) -> list[str]:
    """Write what changed and remove what is no more; the labels of what was written."""
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
