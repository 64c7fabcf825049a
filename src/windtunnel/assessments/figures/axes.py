"""Axes of a chart: where a value stands, round ticks, and the frame around the plot."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.assessments.figures.scene import Label, Line, Mark, text_width

Format = Callable[[float], str]
WIDTH = 480.0
HALF = 312.0  # of a chart that stands beside another one


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

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the page coordinates of the values (x, y)."""
        return (
            self.left + (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1) * (self.right - self.left),
            self.bottom - (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1) * (self.bottom - self.top),
        )

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
            x, _ = self.at(value, 0)
            marks += [
                Line(((x, self.top), (x, self.bottom)), "line", 0.6),
                Label(x, self.bottom + 13, x_format(value), "soft", 9, "middle"),
            ]
        if y_format is not None:
            for value in ticks(*self.y):
                _, y = self.at(0, value)
                marks += [
                    Line(((self.left, y), (self.right, y)), "line", 0.6),
                    Label(self.left - 5, y + 3, y_format(value), "soft", 9, "end"),
                ]
        marks.append(Line(((self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)), "soft", 0.8))
        room = self.right + 6  # a long label is set smaller, and beside the middle rather than beyond the page
        size = min(9.0, max(7.0, 9 * room / max(1.0, text_width(x_label, 9))))
        half = text_width(x_label, size) / 2
        middle = max(4 + half, min((self.left + self.right) / 2, 4 + room - half))
        marks.append(Label(middle, self.bottom + 28, x_label, "soft", size, "middle"))
        if y_label:
            marks.append(Label(4, self.top - 8, y_label, "soft", 9))
        return marks
