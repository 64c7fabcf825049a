"""What was resolved, on disk: what changed is written, and results of which only the figures changed are set aside."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.operations.resolve.redraw import forget_others, keep_for_redrawing
from windtunnel.params.resolved import Resolved, read_resolved, resolved_file
from windtunnel.records.files import write_json
from windtunnel.records.layout import RESOLVED


def write_all(found: Iterable[Resolved], root: Path = RESOLVED) -> list[str]:
    """Write what changed and remove what is no more; the labels of what was written."""
    wanted = {resolved_file(one.stage, one.name, root): one for one in found}
    keep_for_redrawing([one for one in wanted.values() if _looks_different(one, root)], root)
    forget_others({one.digest for one in wanted.values()})
    for path in [*root.rglob("*.json")]:
        if path not in wanted:
            path.unlink()
    for one in wanted.values():
        if one.stage == "summary":
            # A params file of dvc.yaml, so that `dvc params diff` shows the epsilon behind the name of a budget.
            write_json({"budget": one.work.entry["budget"]}, root / "budget.yaml")
    return [one.label for one in wanted.values() if one.write(root)]


def _looks_different(now: Resolved, root: Path) -> bool:
    """Whether only the figures of a stage changed since it was resolved last."""
    try:
        before = read_resolved(now.stage, now.name, root)
    except UserError:
        return False
    return (
        now.stage != "clean" and not before.has_failed and before.digest == now.digest and before.drawing != now.drawing
    )
