"""A comparison as the comment of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.reporting.compare.document import Part
from windtunnel.reporting.report.model import Table


def markdown(heading: str, parts: Sequence[Part]) -> str:
    """GitHub's Markdown; what is in a cell stays in it."""
    return "\n".join(_lines(heading, parts)) + "\n"


def _lines(heading: str, parts: Sequence[Part]) -> Iterator[str]:
    yield f"## {_escape(heading)}"
    for part in parts:
        yield from ("", f"### {_escape(part.title)}")
        for table in part.tables:
            yield ""
            if table.caption:
                yield from (f"**{_escape(table.caption)}**", "")
            yield from _table(table)
        for line in part.lines:
            yield from ("", _escape(line))


def _table(table: Table) -> Iterator[str]:
    yield _row(table.header)
    yield "|" + " --- |" * len(table.header)
    for row in table.rows:
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell).replace("|", "\\|") for cell in cells) + " |"


def _escape(text: str) -> str:
    for character in "\\`*_<>[]":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
