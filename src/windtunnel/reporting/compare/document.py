"""A comparison as tables of text: built once, and rendered for the terminal, a pull request and a browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windtunnel.records.metadata import Rate
from windtunnel.reporting.compare.comparison import Against, Comparison
from windtunnel.reporting.compare.curves import CurveDifference, CurvePoint
from windtunnel.reporting.compare.paired import Pair
from windtunnel.reporting.compare.runs import basis_text
from windtunnel.reporting.report.model import Table

MAX_NAMES, MAX_SETTINGS = 12, 6


@dataclass(frozen=True, slots=True)
class Part:
    """A heading, lines of text below it, tables below them."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def document(comparison: Comparison) -> list[Part]:
    """Return the parts in the order in which a reviewer asks: what was compared, what changed, to what effect, by chance?"""
    first = comparison.runs[0].label
    paired = [_paired(first, against) for against in comparison.against]
    return [_runs(comparison), _params(comparison), _metrics(comparison), *paired]


def title(comparison: Comparison) -> str:
    """`eps-b against main`."""
    first, *others = (run.label for run in comparison.runs)
    return f"{', '.join(others)} against {first}"


def flips(pair: Pair, first: str, second: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(in words, the rows) for each way in which samples flipped between the runs of these labels."""
    for label, rows in ((second, pair.gained), (first, pair.lost)):
        if rows:
            yield f"{pair.name}, correct only in {label} ({len(rows)})", rows


def sample_list(pair: Pair, rows: tuple[int, ...], most: int = MAX_NAMES) -> str:
    """Return the names of samples; what is beyond `most` is counted."""
    names = [pair.first.sample_names[i] for i in rows]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _runs(comparison: Comparison) -> Part:
    rows = tuple((run.label, run.origin, *run.subject(), "; ".join(run.notes)) for run in comparison.runs)
    return Part("Runs", tables=(Table("", ("run", "what it is", "model", "samples", "note"), rows),))


def _params(comparison: Comparison) -> Part:
    labels = tuple(run.label for run in comparison.runs)
    if not all(run.params for run in comparison.runs):
        return Part("Parameters that differ", ("Not compared: a run has no params.yaml.",))
    if not comparison.params:
        return Part("Parameters that differ", ("None.",))
    rows = tuple((key, *("" if v is None else v for v in values)) for key, values in comparison.params)
    return Part("Parameters that differ", tables=(Table("", ("parameter", *labels), rows),))


def _metrics(comparison: Comparison) -> Part:
    labels = tuple(run.label for run in comparison.runs)
    changes = len(labels) == 2
    rows = [
        (
            name,
            basis_text(comparison.bases[name]),
            *map(_rate, comparison.rates[name]),
            *([_change(*values)] if changes else []),
        )
        for name, values in comparison.metrics
        if not name.endswith(("_ci_low", "_ci_high"))
    ]
    equal = f"{comparison.equal_metrics} other metrics are equal." if comparison.equal_metrics else ""
    header = ("metric", "of", *(f"{label} [95 %]" for label in labels), *(["change"] if changes else []))
    tables = (Table("", header, tuple(rows)),) if rows else ()
    return Part("Metrics that differ", (equal,) if rows and equal else () if rows else ("None.",), tables)


def _paired(first: str, against: Against) -> Part:
    second = against.run.label
    heading = f"The same samples: {second} against {first}"
    refused = tuple(f"Not paired: {line}." for line in against.refused)
    if not against.pairs:
        return Part(heading, (*refused, "Nothing could be paired, so there are no paired statistics."))
    rows = tuple(_row(pair, adjusted) for pair, adjusted in zip(against.pairs, against.adjusted, strict=True))
    columns = ("difference, points [95 %]", "gained", "lost", "p", "p (Holm)")
    header = ("outcome", "of", f"{first} [95 %]", f"{second} [95 %]", *columns)
    tables = [Table("", header, rows)]
    tables += [_curve(p.name, first, second, p.curve) for p in against.pairs if p.curve and _moves(p.curve)]
    explained = (
        f"Share of samples without a failure; gained: only in {second}, lost: only in {first}. p: McNemar's exact test that "
        f"flips either way are equally likely, and the same after Holm's correction for {len(rows)} outcomes; interval: "
        f"Newcombe's for paired samples, Wilson's for each run.",
    )
    lines = (f"{title}: {sample_list(p, rows)}" for p in against.pairs for title, rows in flips(p, first, second))
    return Part(heading, (*refused, *explained, *_settings(against.pairs), *lines), tuple(tables))


def _row(pair: Pair, adjusted: float) -> tuple[str, ...]:
    limits = zip(pair.rates, pair.limits, strict=True)
    rates = (f"{rate:.1%} [{low:.1%}, {high:.1%}]" for rate, (low, high) in limits)
    flipped = (str(len(pair.gained)), str(len(pair.lost)))
    difference = _difference(pair.table.difference, *pair.interval)
    return (pair.name, basis_text(pair.bases), *rates, difference, *flipped, f"{pair.p_value:.2g}", f"{adjusted:.2g}")


def _difference(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _settings(pairs: tuple[Pair, ...]) -> Iterator[str]:
    """Yield a line per outcome that was assessed with other settings; what differs goes by its last name, once."""
    for pair in pairs:
        names = list(dict.fromkeys(path.rsplit(".", 1)[-1] for path in pair.settings))
        if names:
            more = f" and {len(names) - MAX_SETTINGS} more" if len(names) > MAX_SETTINGS else ""
            yield f"{pair.name} was assessed with another {', '.join(names[:MAX_SETTINGS])}{more}."


def _moves(curve: CurveDifference) -> bool:
    return any(point.first != point.second for point in curve.points)


def _curve(name: str, first: str, second: str, curve: CurveDifference) -> Table:
    rows = tuple(_point(point) for point in (*curve.points, curve.overall))
    caption = f"{name}: accuracy by {curve.axis}, paired bootstrap over the samples, intervals pointwise"
    return Table(caption, (curve.axis, first, second, "difference, points [95 %]"), rows)


def _point(point: CurvePoint) -> tuple[str, ...]:
    difference = _difference(point.second - point.first, point.low, point.high)
    return point.at, f"{point.first:.1%}", f"{point.second:.1%}", difference


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{rate.value:.4g}" + (f" [{rate.limits[0]:.3g}, {rate.limits[1]:.3g}]" if rate.limits else "")


def _change(first: float | None, second: float | None) -> str:
    return "" if first is None or second is None else f"{second - first:+.4g}"


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
    yield _markdown_row(table.header)
    yield "|" + " --- |" * len(table.header)
    for row in table.rows:
        yield _markdown_row(row)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell).replace("|", "\\|") for cell in cells) + " |"


def _escape(text: str) -> str:
    for character in "\\`*_<>[]":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
