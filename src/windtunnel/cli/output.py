"""Options that name a file to write: refused before any work where it would replace something else."""

from __future__ import annotations

from pathlib import Path

import click

from windtunnel.boundary.writing import check_output


class OutputFile(click.Path):
    """A file to write. `suffixes`: what a file that is there already may end in to be replaced; any output's if empty."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path, dir_okay=False)
        self.suffixes = suffixes

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path. Raises UserError where nothing may be written there."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click's own type is wider
        return check_output(path, where=param.opts[0] if param else "output:", suffixes=self.suffixes)
