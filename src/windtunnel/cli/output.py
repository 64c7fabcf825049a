"""Options that name a file or a folder to write: refused before any work where it would replace something else."""

from __future__ import annotations

from pathlib import Path

import click

from windtunnel.boundary.writing import check_output, check_output_folder


class OutputFile(click.Path):
    """A file to write. `suffixes`: what a file that is there already may end in to be replaced; any output's if empty."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path, dir_okay=False)
        self.suffixes = suffixes

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path. Raises UserError where nothing may be written there."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click's own type is wider
        return check_output(path, where=param.opts[0] if param else "output:", suffixes=self.suffixes)


class OutputFolder(click.Path):
    """A folder to write `files` into; one without files in it where none are named."""

    def __init__(self, *files: str) -> None:
        super().__init__(path_type=Path)
        self.files = files

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path. Raises UserError where nothing may be written there."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click's own type is wider
        return check_output_folder(path, self.files, where=param.opts[0] if param else "output:")
