"""Stage `resolve`: write the inputs that decide each stage's result, if they changed. Always runs, in a second or two."""

from __future__ import annotations

from windtunnel.operations.resolve.build import resolve_all
from windtunnel.operations.resolve.write import write_all


def main() -> None:
    """Write reports/resolved."""
    changed = write_all(resolve_all())
    if changed:
        print(f"resolve: {', '.join(changed)}")
