"""The kinds of chart: bars, lines, points, columns, a matrix. Each returns a Scene, on axes with round ticks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.assessments.figures.scene import (
    Area,
    Dot,
    Label,
    Line,
    Mark,
    Rect,
    Scene,
    clipped,
    hatch,
    ink_on,
    legend,
    part_of_bar,
    text_width,
    whisker,
    wrapped,
)
from windtunnel.records.metadata import numbers

Interval = tuple[float, float]
Format = Callable[[float], str]
WIDTH = 480.0
HALF = 312.0  # of a chart that stands beside another one
_ROW = 19.0  # points from one row of a chart to the next
_MOST_RANKS = 200


def percent(value: float) -> str:
    """Return a share as text."""
    return f"{100 * value:.0f} %"


def plain(value: float) -> str:
    """Return a number as text, without noise digits."""
    return f"{value:.4g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values from low to high, about `wanted` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Axes:
    """A plot's rectangle on the page (left, top, right, bottom) and the values at its edges."""

    left: float
    top: float
    right: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def x_at(self, x: float) -> float:
        """Return the page coordinate of the value x."""
        return self.left + (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1) * (self.right - self.left)

    def y_at(self, y: float) -> float:
        """Return the page coordinate of the value y."""
        return self.bottom - (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1) * (self.bottom - self.top)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the page coordinates of the values (x, y)."""
        return self.x_at(x), self.y_at(y)

    def frame(
        self,
        x_label: str,
        y_label: str = "",
        x_ticks: Sequence[float] | None = None,
        x_format: Format = plain,
        y_format: Format | None = percent,
    ) -> list[Mark]:
        """Grid, tick labels and axis labels; y_format None: no y ticks, for names on that axis."""
        marks: list[Mark] = []
        for value in ticks(*self.x) if x_ticks is None else x_ticks:
            marks.append(self.vertical(value, "line", 0.6))
            marks.append(Label(self.x_at(value), self.bottom + 13, x_format(value), "soft", 9, "middle"))
        if y_format:
            for value in ticks(*self.y):
                marks.append(self.horizontal(value, "line", 0.6))
                marks.append(Label(self.left - 5, self.y_at(value) + 3, y_format(value), "soft", 9, "end"))
        marks.append(Line(((self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)), "soft", 0.8))
        room = self.right + 6  # a long label is set smaller, and beside the middle rather than beyond the page
        size = min(9.0, max(7.0, 9 * room / max(1.0, text_width(x_label, 9))))
        half = text_width(x_label, size) / 2
        middle = max(4 + half, min((self.left + self.right) / 2, 4 + room - half))
        marks.append(Label(middle, self.bottom + 28, x_label, "soft", size, "middle"))
        if y_label:
            marks.append(Label(4, self.top - 8, y_label, "soft", 9))
        return marks

    def vertical(self, value: float, colour: str, width: float, dashed: bool = False, above: float = 0) -> Line:
        """Return a line across the plot at the value x, that begins `above` points above it."""
        x = self.x_at(value)
        return Line(((x, self.top - above), (x, self.bottom)), colour, width, dashed)

    def horizontal(self, value: float, colour: str, width: float, dashed: bool = False) -> Line:
        """Return a line across the plot at the value y."""
        y = self.y_at(value)
        return Line(((self.left, y), (self.right, y)), colour, width, dashed)

    def column(self, start: float, stop: float, height: float, colour: str, tip: str) -> Rect:
        """Return a filled rectangle from 0 to `height` over the values from start to stop."""
        (x0, y0), (x1, y1) = self.at(start, height), self.at(stop, 0)
        return Rect(x0, y0, x1 - x0, y1 - y0, colour, tip)


def _plot(width: float, share: float, x: Interval, y: Interval) -> Axes:
    """Return the axes of a plot whose height is a share of its width, on a page of `width` points."""
    return Axes(44, 24, width - 16, share * (width - 60) + 24, x, y)


def _with_legend(marks: Iterable[Mark], key: list[tuple[str, str]], axes: Axes, alt: str) -> Scene:
    """Return the marks of a `_plot` with their legend (colour, words) below it."""
    below, height = legend(key, axes.left, axes.bottom + 38, axes.right - axes.left)
    return Scene(axes.right + 16, axes.bottom + 40 + height, (*marks, *below), alt)


def _rows(
    names: Sequence[str],
    right: float,
    x: Interval,
    x_label: str,
    x_format: Format,
    top: float = 4.0,
    step: float = _ROW,
) -> tuple[Axes, list[Mark]]:
    """Return the axes of a chart with a name at each row of `step` points, and their marks."""
    left = 12 + max(text_width(clipped(name), 9) for name in names)
    axes = Axes(left, top, right, top + step * len(names), x, (0, 1))
    labels = [
        Label(left - 5, top + step * (i + 0.5) + 3.5, clipped(name), "ink", 9, "end") for i, name in enumerate(names)
    ]
    return axes, [*axes.frame(x_label, x_format=x_format, y_format=None), *labels]


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of `bars`."""

    label: str
    value: float
    colour: str
    interval: Interval | None = None
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of `lines`: points in x order; `interval` per point, a band or, for points alone (`line` false),
    whiskers; `named`: whether the legend names it; `hollow`: rings in place of dots.
    """

    label: str
    colour: str
    points: tuple[tuple[float, float], ...]
    interval: tuple[Interval, ...] = ()
    dashed: bool = False
    dots: bool = True
    line: bool = True
    thin: bool = False
    named: bool = True
    hollow: bool = False


def measured(
    metrics: Mapping[str, object], x: str, y: str, label: str, colour: str, *, dashed: bool = False, thin: bool = False
) -> Series:
    """Return the curve of the metric `y` against the metric `x`, with the interval of each point."""
    values, low, high = (numbers(metrics, f"{y}{end}") for end in ("", "_ci_low", "_ci_high"))
    points, band = zip(numbers(metrics, x), values, strict=True), zip(low, high, strict=True)
    return Series(label, colour, tuple(points), tuple(band), dashed, thin=thin)


def bars(
    rows: Sequence[Bar],
    x_label: str,
    alt: str,
    reference: tuple[float, str] | None = None,
    top: float = 1.0,
    value_format: Format = lambda v: f"{v:.1%}",
    axis_format: Format = percent,
    width: float = WIDTH,
) -> Scene:
    """Horizontal bars with their values and intervals; `reference`: a dashed line with its label."""
    names = [row.label for row in rows]
    axes, marks = _rows(names, width - 46, (0, top), x_label, axis_format, top=18 if reference else 4)
    for i, row in enumerate(rows):
        y, value_text = axes.top + _ROW * i, value_format(row.value)
        tip = (row.tip or f"{row.label}: {value_text}") + _interval(row.interval, value_format)
        marks += _bar(axes, y, row.value, row.colour, tip, row.interval)
        end = max(axes.x_at(value) for value in (row.value, *(row.interval or ())))
        if reference and end < (line := axes.x_at(reference[0])) < end + 8 + text_width(value_text, 8.5):
            end = line  # not across the reference line
        marks.append(Label(end + 5, y + 13, value_text, "soft", 8.5))
    if reference:
        marks.append(axes.vertical(reference[0], "clean", 1.2, dashed=True, above=4))
        marks.append(Label(axes.x_at(reference[0]), axes.top - 8, reference[1], "clean", 9, "middle"))
    return Scene(width, axes.bottom + 34, tuple(marks), alt)


def _bar(axes: Axes, y: float, value: float, colour: str, tip: str, interval: Interval | None) -> Iterator[Mark]:
    """Yield a bar from 0 to a value in the row at y, and its interval."""
    zero, end = axes.x_at(0), axes.x_at(value)
    yield Rect(min(zero, end), y + 3, max(0.8, abs(end - zero)), _ROW - 6, colour, tip)
    if interval:
        low, high = map(axes.x_at, interval)
        yield from whisker((low, y + _ROW / 2), (high, y + _ROW / 2))


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    alt: str,
    x_range: Interval | None = None,
    y_range: Interval = (0, 1),
    x_ticks: Sequence[float] | None = None,
    y_format: Format = percent,
    vertical: Iterable[tuple[float, str]] = (),
    width: float = HALF,
) -> Scene:
    """Curves with bands for their intervals, hover values on their points, and a legend below."""
    xs = [x for curve in series for x, _ in curve.points]
    axes = _plot(width, 0.62, x_range or (min(xs), max(xs)), y_range)
    marks = axes.frame(x_label, y_label, x_ticks, y_format=y_format)
    for curve in series:
        ends = [
            (axes.at(x, low), axes.at(x, high))
            for (x, _), (low, high) in zip(curve.points, curve.interval, strict=bool(curve.interval))
        ]
        if ends and curve.line:
            marks.append(Area((*(high for _, high in ends), *(low for low, _ in reversed(ends))), curve.colour))
        for low, high in ends if not curve.line else ():
            marks += whisker(low, high, curve.colour)
    for value, text in vertical:
        marks.append(axes.vertical(value, "clean", 1, dashed=True))
        marks.append(Label(axes.x_at(value) + 4, axes.top + 9, text, "clean", 8.5))
    for curve in series:
        if curve.line and len(curve.points) > 1:
            drawn = tuple(axes.at(x, y) for x, y in curve.points)
            marks.append(Line(drawn, curve.colour, 0.8 if curve.thin else 1.8, curve.dashed))
    for curve in series:
        for i, (x, y) in enumerate(curve.points if curve.dots else ()):
            tip = f"{curve.label}: {y_format(y) if y_format is not percent else f'{y:.1%}'} at {plain(x)}"
            if curve.interval:
                tip += _interval(curve.interval[i], lambda v: f"{v:.1%}")
            marks.append(Dot(*axes.at(x, y), 1.8 if curve.thin else 3.2 if curve.line else 2.6, curve.colour, tip))
            if curve.hollow:
                marks.append(Dot(*axes.at(x, y), 1.3, "paper"))
    key = list(dict.fromkeys((curve.colour, curve.label) for curve in series if curve.label and curve.named))
    return _with_legend(marks, key, axes, alt)


def binned(values: Sequence[float], most: int) -> tuple[list[float], Interval]:
    """Count values in equal bins that follow their grid, so that no bin is empty or full by the binning alone.

    Args:
        values: finite, at least one; multiples of a step where they are counts, or epsilons of a sweep.
        most: bins at most.

    Returns:
        The counts, and both ends: each bin is a whole number of steps, with the values inside it.
    """
    unit = 10.0 ** (math.floor(math.log10(max(map(abs, values)) or 1.0)) - 6)
    places = [round(value / unit) for value in values]
    low = min(places)
    step = math.gcd(*(offset - low for offset in places)) or round(1 / unit)
    width = step * -(-((max(places) - low) // step + 1) // most)
    counts = [0.0] * ((max(places) - low) // width + 1)
    for offset in places:
        counts[(offset - low) // width] += 1
    start = low - step / 2
    return counts, (start * unit, (start + width * len(counts)) * unit)


def columns(
    counts: Sequence[float],
    edges: Interval,
    x_label: str,
    alt: str,
    colour: str = "broken",
    extra: tuple[str, float, str] | None = None,
    width: float = HALF,
    named: str = "flips",
) -> Scene:
    """Return a histogram of equal bins between the edges; `extra`: one more column, (words, count, colour), after a gap."""
    bin_ = (edges[1] - edges[0]) / len(counts)
    right = edges[1] + (2 * bin_ if extra else 0)
    axes = _plot(width, 0.5, (edges[0], right), (0, max(1.0, *counts, extra[1] if extra else 0) * 1.12))
    marks = axes.frame(x_label, "samples", ticks(*edges), y_format=plain)
    starts = [edges[0] + i * bin_ for i in range(len(counts))]
    columns_ = [
        (start, count, colour, f"{plain(start)} to {plain(start + bin_)}")
        for start, count in zip(starts, counts, strict=True)
    ]
    if extra:
        columns_.append((edges[1] + bin_, extra[1], extra[2], extra[0]))
    for start, count, paint, text in columns_:
        drawn = axes.column(start + 0.06 * bin_, start + 0.94 * bin_, count, paint, f"{text}: {plain(count)} samples")
        if count:
            marks.append(drawn)
    if extra and extra[1]:
        marks += hatch(drawn, "white")
    return _with_legend(marks, [(colour, named), (extra[2], extra[0])] if extra else [], axes, alt)


@dataclass(frozen=True, slots=True)
class Change:
    """One row of `changes`: a difference of two shares with its interval; `sure`: whether it is beyond chance."""

    label: str
    value: float
    interval: Interval
    sure: bool
    tip: str = ""


def changes(rows: Sequence[Change], x_label: str, alt: str, width: float = WIDTH) -> Scene:
    """Bars to the left (worse) and to the right (better) of 0, with their intervals; grey where chance explains them."""
    reach = max(0.01, *(abs(v) for r in rows for v in (*r.interval, r.value)))
    names = [row.label for row in rows]
    axes, marks = _rows(names, width - 50, (-reach, reach), x_label, lambda v: f"{100 * v:+.3g}")
    marks.append(axes.vertical(0, "ink", 1))
    for i, row in enumerate(rows):
        y = axes.top + _ROW * i
        colour = "unknown" if not row.sure else "broken" if row.value < 0 else "certified"
        marks += _bar(axes, y, row.value, colour, row.tip or row.label, row.interval)
        marks.append(Label(width - 46, y + 13, f"{100 * row.value:+.1f}", "soft", 8.5))
    return Scene(width, axes.bottom + 34, tuple(marks), alt)


@dataclass(frozen=True, slots=True)
class Stack:
    """One row of `stacks`: its label, and its shares in the order of the key."""

    label: str
    shares: tuple[float, ...]
    note: str = ""


def stacks(
    rows: Sequence[Stack],
    key: Sequence[tuple[str, str]],
    x_label: str,
    alt: str,
    top: float = 1.0,
    width: float = HALF,
    value_format: Format = lambda v: f"{v:.1%}",
) -> Scene:
    """Horizontal bars of shares side by side, each share with its value where it has room; `key`: (colour, words)."""
    step = 21.0
    axes, marks = _rows([row.label for row in rows], width - 14, (0, top), x_label, percent, step=step)
    for i, row in enumerate(rows):
        y, start = axes.top + step * i, 0.0
        for (colour, text), share in zip(key, row.shares, strict=True):
            x0, x1, value_text = axes.x_at(start), axes.x_at(start + share), value_format(share)
            start += share
            if x1 - x0 < 0.3:
                continue
            tip = f"{row.label}, {text}: {value_text}{row.note}"
            marks += part_of_bar(Rect(x0, y + 3, x1 - x0, step - 6, colour, tip), value_text, 8)
    below, height = legend(list(key), 8, axes.bottom + 36, width - 16)
    return Scene(width, axes.bottom + 38 + height, (*marks, *below), alt)


def ranks(
    curves: Sequence[tuple[str, str, Sequence[float]]],
    y_label: str,
    alt: str,
    top: float,
    low: float = 0.0,
    horizontal: tuple[float, str] | None = None,
    width: float = HALF,
) -> Scene:
    """Values of many samples, each curve (colour, words, values) sorted: what share of the samples is below what.

    More than 200 values are drawn at 200 evenly spaced ranks.
    """
    axes = _plot(width, 0.62, (0, 1), (low, top))
    marks = axes.frame("share of the samples, sorted", y_label, x_format=percent, y_format=plain)
    if horizontal:
        value, text = horizontal
        marks.append(axes.horizontal(value, "clean", 1, dashed=True))
        # The values rise to the right: low words stand free at the right end, high ones at the left.
        is_low = value < (low + top) / 2
        x = axes.right - 4 if is_low else axes.left + 4
        marks.append(Label(x, axes.y_at(value) - 4, text, "clean", 8.5, "end" if is_low else "start"))
    for colour, _, values in curves:
        ordered = sorted(values)
        n = len(ordered)
        places = range(n) if n <= _MOST_RANKS else [round(k * (n - 1) / (_MOST_RANKS - 1)) for k in range(_MOST_RANKS)]
        steps = [(i / n, (i + 1) / n, min(top, max(low, ordered[i]))) for i in places]
        marks.append(Line(tuple(axes.at(x, y) for start, end, y in steps for x in (start, end)), colour, 1.8))
    return _with_legend(marks, [(colour, text) for colour, text, _ in curves], axes, alt)


def intervals(
    panels: Sequence[tuple[str, Sequence[tuple[str, float, float, str]]]], y_label: str, alt: str, width: float = WIDTH
) -> Scene:
    """Small panels in a row on one scale: a title, and a coloured bar from low to high per name."""
    every = [v for _, rows in panels for _, low, high, _ in rows for v in (low, high)]
    edges = (min(every), max(every))
    gap, space = 12.0, (width - 40) / len(panels)
    marks: list[Mark] = []
    for i, (title, rows) in enumerate(panels):
        x_left = 36 + i * space
        axes = Axes(x_left, 36, x_left + space - gap, 160, (0, max(1, len(rows))), edges)
        marks += axes.frame("", y_label if i == 0 else "", [], y_format=plain if i == 0 else None)
        marks.append(Label(x_left, 12, clipped(title, int(space / 5.4)), "ink", 8.5))
        for j, (name, low, high, colour) in enumerate(rows):
            (x0, y0), (x1, y1) = axes.at(j + 0.15, high), axes.at(j + 0.85, low)
            marks.append(Rect(x0, y0, x1 - x0, max(0.8, y1 - y0), colour, f"{name}: {low:.3g} to {high:.3g}"))
            if x1 - x0 > 4:
                marks.append(Label((x0 + x1) / 2, 171, clipped(name, max(1, int((x1 - x0) / 4))), "soft", 7, "middle"))
    return Scene(width, 178, tuple(marks), alt)


def matrix(
    grid: Sequence[Sequence[float]],
    rows: Sequence[str],
    header: Sequence[str],
    x_label: str,
    y_label: str,
    alt: str,
    colours: Sequence[str],
    cell_format: Format,
    tips: Sequence[Sequence[str]] | None = None,
    width: float = HALF,
    edges: Interval | None = None,
    row_height: float | None = None,
) -> Scene:
    """Return a heat map with its values in the cells; `colours`: a ramp for the values between the edges, from 0 to their maximum
    where none are given. What is not finite is grey. `row_height`: of rows too low for words.
    """
    left = 24 + max(text_width(clipped(r), 9) for r in rows)
    cell = min(64.0, (width - left - 10) / len(header))
    height = row_height or min(24.0, max(17.0, cell))
    low, high = edges or (0.0, max(max(map(max, grid)), 1e-12))
    marks: list[Mark] = [Label(4, 12, y_label, "soft", 9)]
    for i, (name, values) in enumerate(zip(rows, grid, strict=True)):
        y = 20 + i * height
        marks.append(Label(left - 5, y + height / 2 + 3, clipped(name), "ink", 9, "end"))
        for j, value in enumerate(values):
            share = min(1.0, max(0.0, (value - low) / ((high - low) or 1)))
            paint = colours[round(share * (len(colours) - 1))] if math.isfinite(value) else "line"
            tip = tips[i][j] if tips else f"{name}, {header[j]}: {cell_format(value)}"
            marks.append(Rect(left + j * cell, y, cell - 1, height - (row_height is None), paint, tip))
            if row_height is None and (text := cell_format(value)):
                marks.append(Label(left + (j + 0.5) * cell, y + height / 2 + 3, text, ink_on(paint), 8.5, "middle"))
    bottom = 20 + len(grid) * height
    for j, name in enumerate(header):
        shown = clipped(name, max(1, int((cell - 3) / 5.4)))
        marks.append(Label(left + (j + 0.5) * cell, bottom + 12, shown, "ink", 9, "middle"))
    page = min(width, left + cell * len(header) + 10)
    parts = wrapped(x_label, page - 12)
    for k, part in enumerate(parts):
        half = text_width(part, 9) / 2
        x = max(4 + half, min(left + len(header) * cell / 2, page - 4 - half))
        marks.append(Label(x, bottom + 27 + 12 * k, part, "soft", 9, "middle"))
    return Scene(page, bottom + 22 + 12 * len(parts), tuple(marks), alt)


def histogram(
    groups: Sequence[tuple[str, str, Sequence[float]]], bins: int, x_label: str, alt: str, width: float = HALF
) -> Scene:
    """Histogram of values in equal bins, each group (colour, words, values) an outline; all on one scale."""
    every = [value for _, _, values in groups for value in values]
    low, high = min(every), max(every)
    high = high if high > low else low + 1e-6
    step = (high - low) / bins
    counts = []
    for _, _, values in groups:
        places = [min(bins - 1, int((value - low) / step)) for value in values]
        counts.append([places.count(i) for i in range(bins)])
    axes = _plot(width, 0.5, (low, high), (0, 1.12 * max(1, *map(max, counts))))
    marks = axes.frame(x_label, "samples", y_format=plain)
    for (colour, _, _), column in zip(groups, counts, strict=True):
        corners = [(low + (i + side) * step, n) for i, n in enumerate(column) for side in (0, 1)]
        stairs = tuple(axes.at(x, y) for x, y in [(low, 0.0), *corners, (high, 0.0)])
        marks += [Area(stairs, colour), Line(stairs, colour, 1.4)]
    return _with_legend(marks, [(colour, text) for colour, text, _ in groups if text], axes, alt)


@dataclass(frozen=True, slots=True)
class Box:
    """One box of `boxes`: quartiles, ends of the whiskers, and outliers."""

    label: str
    quartiles: tuple[float, float, float]
    whiskers: Interval
    outliers: tuple[float, ...] = ()


def boxes(rows: Sequence[Box], x_label: str, alt: str, width: float = HALF) -> Scene:
    """Return a horizontal box per row: the middle half of the values, the median, whiskers, and dots beyond them."""
    every = [v for r in rows for v in (*r.whiskers, *r.outliers)]
    axes, marks = _rows([r.label for r in rows], width - 14, (min(0.0, *every), max(every)), x_label, plain)
    for i, row in enumerate(rows):
        y = axes.top + _ROW * i
        first, middle, third = row.quartiles
        x0, at, x1 = map(axes.x_at, row.quartiles)
        for ends in ((row.whiskers[0], first), (third, row.whiskers[1])):
            marks.append(Line(tuple((axes.x_at(v), y + _ROW / 2) for v in ends), "soft", 1.1))
        tip = f"{row.label}: median {middle:.3g}, half of them {first:.3g} to {third:.3g}"
        marks.append(Rect(x0, y + 4, max(0.8, x1 - x0), _ROW - 8, "clean", tip))
        marks.append(Line(((at, y + 4), (at, y + _ROW - 4)), "paper", 1.6))
        marks += [Dot(axes.x_at(v), y + _ROW / 2, 1.6, "soft") for v in row.outliers]
    return Scene(width, axes.bottom + 34, tuple(marks), alt)


@dataclass(frozen=True, slots=True)
class Cloud:
    """One panel of `clouds`: its title, its axes in words, and a point (x, y) per name where both are known."""

    title: str
    x_label: str
    y_label: str
    points: tuple[tuple[str, float, float], ...]


def clouds(panels: Sequence[Cloud], colours: dict[str, str], across: int, alt: str, width: float = WIDTH) -> Scene:
    """Small panels of points, `across` beside each other, each on its own scale; `colours`: of each name."""
    across = min(across, len(panels))
    space, tall = width / across, 0.8 * width / across + 34
    room = int((space - 20) / (7 * 0.56))
    marks: list[Mark] = []
    for i, panel in enumerate(panels):
        x_left, top = (i % across) * space + 34, (i // across) * tall + 16
        xs, ys = [x for _, x, _ in panel.points], [y for _, _, y in panel.points]
        axes = Axes(x_left, top, x_left + space - 46, top + tall - 56, _padded(xs), _padded(ys))
        corners = ((axes.left, axes.top), (axes.left, axes.bottom), (axes.right, axes.bottom))
        middle, below = (axes.left + axes.right) / 2, axes.bottom + 11
        marks += [
            Line(corners, "soft", 0.8),
            Label(x_left - 4, top - 5, panel.title, "ink", 7.5),
            Label(middle, axes.bottom + 22, clipped(panel.x_label, room), "soft", 7, "middle"),
            Label(x_left - 4, top + 5, clipped(panel.y_label, room), "soft", 7),
            Label(axes.left, below, plain(min(xs)), "soft", 7),
            Label(axes.right, below, plain(max(xs)), "soft", 7, "end"),
        ]
        for v in dict.fromkeys((min(ys), max(ys))):
            marks.append(Label(axes.left - 3, axes.y_at(v) + 3, f"{v:.3g}", "soft", 7, "end"))
        marks += [Dot(*axes.at(x, y), 3, colours[name], f"{name}: {x:.4g}, {y:.4g}") for name, x, y in panel.points]
    bottom = -(-len(panels) // across) * tall
    key, height = legend([(colour, name) for name, colour in colours.items()], 8, bottom + 8, width - 16)
    return Scene(width, bottom + 12 + height, (*marks, *key), alt)


def _padded(values: Sequence[float]) -> Interval:
    low, high = min(values), max(values)
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 0.1
    return low - pad, high + 2 * pad


def _interval(interval: Interval | None, how: Format) -> str:
    return f" [{how(interval[0])}, {how(interval[1])}]" if interval else ""
