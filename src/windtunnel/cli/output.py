"""Output of commands: tables that cut nothing, and options that name a file or a folder to write."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windtunnel.boundary.writing import check_output, check_output_folder

Groups = Sequence[tuple[str, Sequence[Sequence[str]]]]
_GAP = 2
_WIDEST = 44  # of a column of words beside others; it wraps

OK, WARN = "[green]✓[/green]", "[yellow]![/yellow]"  # before a line of a check, in the markup of rich


class OutputPath(click.Path):
    """A file to write, or with `is_folder` a folder; refused before any work where it would replace something else.

    names: what a file that is there already may end in to be replaced, any output's if empty. Of a folder: the files to write
    into it; a folder without files in it where none are named.
    """

    def __init__(self, *names: str, is_folder: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=is_folder)
        self.names, self.is_folder = names, is_folder

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path. Raises UserError where nothing may be written there."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click's own type is wider
        where = param.opts[0] if param else "output:"
        if self.is_folder:
            return check_output_folder(path, self.names, where=where)
        return check_output(path, where=where, suffixes=self.names)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which click's own lets pass."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Fails for NaN and infinity."""
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]  # click's own type is narrower
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A heading. `typed`: contains text that a user types, so it is never wrapped; `right`: numbers; `styles`: by a cell's text."""

    name: str
    typed: bool = False
    right: bool = False
    styles: Mapping[str, str] = field(default_factory=dict)

    def cell(self, text: str) -> str:
        """Return a cell's text in the markup of rich."""
        style = self.styles.get(text)
        return f"[{style}]{escape(text)}[/]" if style else escape(text)


def counted(n: int, noun: str) -> str:
    """Return `1 sample`, `0 samples`, `2 samples`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def headings(*names: str, typed: Collection[str] = (), right: Collection[str] = ()) -> tuple[TableColumn, ...]:
    """Return a column for each name; `typed` and `right` tell which of them are `TableColumn.typed` and `right`."""
    return tuple(TableColumn(name, name in typed, name in right) for name in names)


def table_console() -> Console:
    """Return a console as wide as the terminal; where there is none, lines are as long as they need to be."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=100_000, no_color=True)


def print_line(console: Console, line: str) -> None:
    """Print a line in the markup of rich: wrapped between words in a terminal, whole elsewhere."""
    console.print(line, soft_wrap=not console.is_terminal)


def print_table(console: Console, columns: Sequence[TableColumn], groups: Groups, title: str = "") -> None:
    """Print rows in groups, each below its heading (none where empty). Plain text, without markup, in every cell.

    Columns without any text are left out. In a terminal no word is cut: a table that is too wide goes on below itself.
    """
    filled = [i for i in range(len(columns)) if any(row[i] for _, part in groups for row in part)]
    columns = [columns[i] for i in filled]
    groups = [(name, [[row[i] for i in filled] for row in part]) for name, part in groups]
    rows = [row for _, part in groups for row in part]
    if not console.is_terminal:
        lines = "\n".join(_plain(columns, groups, title))
        console.print(lines, markup=False, emoji=False, highlight=False, soft_wrap=True)
        return
    if title:
        print_line(console, f"[bold]{escape(title)}[/bold]")
    widths = [max(_least(text, c) for text in (c.name, *(row[i] for row in rows))) for i, c in enumerate(columns)]
    natural = [max(cell_len(text) for text in (c.name, *(row[i] for row in rows))) for i, c in enumerate(columns)]
    growth = [most - width for most, width in zip(natural, widths, strict=True)]
    room = console.width - sum(widths) - _GAP * len(widths)
    is_stacked = room < 0
    if not is_stacked:
        share = min(1.0, room / max(1, sum(growth)))
        widths = [width + int(more * share) for width, more in zip(widths, growth, strict=True)]
        console.print(_grid(columns, widths, (), header=True))
    for name, part in groups:
        if name:
            print_line(console, f"[bold]{escape(name)}[/bold]")
        if is_stacked:
            _print_stacked(console, columns, part)
        else:
            console.print(_grid(columns, widths, part))


def _grid(
    columns: Sequence[TableColumn], widths: Sequence[int], rows: Sequence[Sequence[str]], header: bool = False
) -> Table:
    """Return rows in columns of these widths, or with `header` the names of the columns above them."""
    table = Table(box=None, show_header=header, header_style="bold", padding=(0, _GAP, 0, 0), pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=column.typed, overflow="fold", width=width
        )
    for row in rows:
        table.add_row(*(column.cell(text) for column, text in zip(columns, row, strict=True)))
    return table


def _plain(columns: Sequence[TableColumn], groups: Groups, title: str) -> Iterator[str]:
    """Aligned lines of text, as long as they need to be."""
    rows = [[c.name for c in columns], *(row for _, part in groups for row in part)]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = []
        for column, text, width in zip(columns, row, widths, strict=True):
            space = " " * (width - cell_len(text))
            padded.append(space + text if column.right else text + space)
        return (" " * _GAP).join(padded).rstrip()

    yield from [title] if title else []
    yield line(rows[0])
    for name, part in groups:
        yield from [name] if name else []
        yield from map(line, part)


def _least(text: str, column: TableColumn) -> int:
    """Return the width that a cell needs: whole where it is typed, else its longest word, and not all of a long text."""
    if column.typed:
        return cell_len(text)
    return max(max((cell_len(word) for word in text.split()), default=0), min(_WIDEST, cell_len(text)) // 2)


def _print_stacked(console: Console, columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a line of what the user types, and its other cells below it."""
    for row in rows:
        cells = [(column, text) for column, text in zip(columns, row, strict=True) if text]
        first = "  ".join(escape(text) for column, text in cells if column.typed)
        console.print(f"[cyan]{first}[/cyan]", soft_wrap=True)
        grid = Table.grid(padding=(0, 0, 0, 4))
        grid.add_column(overflow="fold")
        grid.add_row("; ".join(f"[dim]{escape(c.name)}[/dim] {c.cell(text)}" for c, text in cells if not c.typed))
        console.print(grid)
