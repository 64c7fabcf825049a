"""Stage `resolve`: write what decides each stage's result, and only what changed. Always runs, in a second or two."""

from __future__ import annotations

from windtunnel.operations.resolve.build import resolve_all
from windtunnel.operations.resolve.write import write_all


def main() -> None:
    """Write reports/resolved."""
    changed = write_all(resolve_all())
    if changed:
        print(f"resolve: {', '.join(changed)}")
