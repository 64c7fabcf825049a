"""The robustness sandwich: per budget what is verified, what is not known, what is broken, with the intervals of both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.assessments.figures.axes import WIDTH, percent
from windtunnel.assessments.figures.scene import Label, Line, Mark, Rect, Scene, hatch, legend, text_width, whisker

Interval = tuple[float, float]
_SHARES = (
    ("certified", "verified: no attack can succeed"),
    ("unknown", "not known: neither verified nor broken"),
    ("broken", "broken by an attack"),
    ("wrong", "misclassified without any attack"),
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One budget: shares in [0, 1] of the samples, `certified` <= `worst` <= `clean`, and 95 % intervals of the first two."""

    budget: str
    certified: float
    worst: float
    clean: float
    certified_interval: Interval | None = None
    worst_interval: Interval | None = None

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Verified, not known, broken, misclassified: they add up to 1."""
        return self.certified, self.worst - self.certified, self.clean - self.worst, 1 - self.clean


def sandwich(layers: Sequence[Layer]) -> Scene:
    """A bar per budget. The whisker below a bar is the interval of certified accuracy, the one above that of the worst case."""
    step, bar, top = 44.0, 22.0, 8.0
    left = 14 + max(text_width(layer.budget, 10) for layer in layers)
    width = WIDTH - left - 14
    marks: list[Mark] = []
    for i, layer in enumerate(layers):
        y, x = top + i * step + 7, left
        marks.append(Label(left - 8, y + bar / 2 + 3.5, layer.budget, "ink", 10, "end", bold=i == 0))
        for (role, words), share in zip(_SHARES, layer.shares, strict=True):
            if share <= 0.0005:
                continue
            wide = width * share
            marks.append(Rect(x, y, wide, bar, role, f"{layer.budget}, {words.split(':')[0]}: {share:.1%}"))
            if role == "unknown":
                marks += hatch(x, y, wide, bar, "#a3a9b3")
            if wide > 10 + text_width(f"{share:.1%}", 9.5):
                marks.append(
                    Label(x + wide / 2, y + bar / 2 + 3.5, f"{share:.1%}", f"on-{role}", 9.5, "middle", bold=True)
                )
            x += wide
        for interval, level in ((layer.worst_interval, y - 4), (layer.certified_interval, y + bar + 4)):
            if interval:
                marks += whisker((left + width * interval[0], level), (left + width * interval[1], level), cap=2.5)
    bottom = top + len(layers) * step
    for tick in (0, 0.25, 0.5, 0.75, 1):
        marks.append(Line(((left + tick * width, bottom - 4), (left + tick * width, bottom)), "soft", 0.8))
        marks.append(Label(left + tick * width, bottom + 10, percent(tick), "soft", 8.5, "middle"))
    key, height = legend(list(_SHARES), 8, bottom + 22, WIDTH - 8)
    note = "Whiskers: 95 % intervals, above the bar of worst-case accuracy, below it of certified accuracy."
    marks.append(Label(8, bottom + 22 + height + 8, note, "soft", 8.5))
    return Scene(WIDTH, bottom + height + 36, (*marks, *key), _in_words(layers))


def _in_words(layers: Sequence[Layer]) -> str:
    names = ("verified", "not known", "broken", "misclassified")
    return "; ".join(
        f"{layer.budget}: " + ", ".join(f"{name} {share:.1%}" for name, share in zip(names, layer.shares, strict=True))
        for layer in layers
    )
