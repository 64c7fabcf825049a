"""Tables for people and for pipes: nothing is cut; where a row does not fit, it goes on below itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Groups = Sequence[tuple[str, Sequence[Sequence[str]]]]
_GAP = 2
_WIDEST = 44  # of a column of words beside others; it wraps


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A heading. `typed`: contains text that a user types, so it is never wrapped; `right`: numbers."""

    name: str
    typed: bool = False
    right: bool = False


def headings(*names: str, typed: Collection[str] = (), right: Collection[str] = ()) -> tuple[TableColumn, ...]:
    """Return a column for each name; `typed` and `right` tell which of them are `TableColumn.typed` and `right`."""
    return tuple(TableColumn(name, name in typed, name in right) for name in names)


def table_console() -> Console:
    """Return a console as wide as the terminal; where there is none, lines are as long as they need to be."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=100_000, no_color=True)


def print_table(console: Console, columns: Sequence[TableColumn], groups: Groups, title: str = "") -> None:
    """Print rows in groups, each below its heading (none where empty). Plain text, without markup, in every cell."""
    rows = [row for _, part in groups for row in part]
    columns_shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    shown, parts = (
        [columns[i] for i in columns_shown],
        [(name, [[row[i] for i in columns_shown] for row in part]) for name, part in groups],
    )
    if not console.is_terminal:
        print("\n".join(_plain(shown, parts, title)))
        return
    if title:
        console.print(f"[bold]{escape(title)}[/bold]")
    if (
        sum(
            max(cell_len(c.name), *(_least(row[i], c) for row in rows)) + _GAP
            for i, c in zip(columns_shown, shown, strict=True)
        )
        > console.width
    ):
        _stacked(console, shown, parts)
        return
    table = Table(box=None, header_style="bold", padding=(0, _GAP, 0, 0), pad_edge=False)
    for i, column in zip(columns_shown, shown, strict=True):
        width = max(cell_len(row[i]) for row in rows) if column.typed else None
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.name, justify=side, no_wrap=column.typed, overflow="fold", min_width=width)
    for name, part in parts:
        if name:
            table.add_row(f"[bold]{escape(name)}[/bold]")
        for row in part:
            table.add_row(*map(escape, row))
    console.print(table)


def _plain(columns: Sequence[TableColumn], groups: Groups, title: str) -> Iterator[str]:
    """Aligned lines of text, as long as they need to be."""
    rows = [[c.name for c in columns], *(row for _, part in groups for row in part)]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = (
            " " * (w - cell_len(t)) + t if c.right else t + " " * (w - cell_len(t))
            for c, t, w in zip(columns, row, widths, strict=True)
        )
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


def _stacked(
    console: Console, columns: Sequence[TableColumn], groups: Sequence[tuple[str, Sequence[Sequence[str]]]]
) -> None:
    for name, part in groups:
        if name:
            console.print(f"[bold]{escape(name)}[/bold]")
        for row in part:
            first = [escape(text) for column, text in zip(columns, row, strict=True) if column.typed and text]
            rest = [
                f"[dim]{escape(c.name)}[/dim] {escape(text)}"
                for c, text in zip(columns, row, strict=True)
                if not c.typed and text
            ]
            console.print(f"[cyan]{'  '.join(first)}[/cyan]", soft_wrap=True)
            grid = Table.grid(padding=(0, 0, 0, 4))
            grid.add_column(overflow="fold")
            grid.add_row("; ".join(rest))
            console.print(grid)
