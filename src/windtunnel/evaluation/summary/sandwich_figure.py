"""The robustness sandwich: per budget what is verified, what is not known, what is broken, with the intervals of both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from windtunnel.assessments.figures.axes import WIDTH, percent
from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.scene import Label, Line, Mark, Rect, Scene, hatch, legend, text_width, whisker
from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.metadata import number
from windtunnel.core.sandwich import layers_in

Interval = tuple[float, float]
_SHARES = (
    ("certified", "verified: no attack can succeed"),
    ("unknown", "not known: neither verified nor broken"),
    ("broken", "broken by an attack"),
    ("wrong", "misclassified without any attack"),
)


@dataclass(frozen=True, slots=True)
class BudgetBar:
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


def sandwich(layers: Sequence[BudgetBar]) -> Scene:
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
        for ends, level in ((layer.worst_interval, y - 4), (layer.certified_interval, y + bar + 4)):
            if ends:
                marks += whisker((left + width * ends[0], level), (left + width * ends[1], level), cap=2.5)
    bottom = top + len(layers) * step
    for tick in (0, 0.25, 0.5, 0.75, 1):
        marks.append(Line(((left + tick * width, bottom - 4), (left + tick * width, bottom)), "soft", 0.8))
        marks.append(Label(left + tick * width, bottom + 10, percent(tick), "soft", 8.5, "middle"))
    key, height = legend(list(_SHARES), 8, bottom + 22, WIDTH - 8)
    note = "Whiskers: 95 % intervals, above the bar of worst-case accuracy, below it of certified accuracy."
    marks.append(Label(8, bottom + 22 + height + 8, note, "soft", 8.5))
    return Scene(WIDTH, bottom + height + 36, (*marks, *key), _in_words(layers))


def _in_words(layers: Sequence[BudgetBar]) -> str:
    names = ("verified", "not known", "broken", "misclassified")
    return "; ".join(
        f"{layer.budget}: " + ", ".join(f"{name} {share:.1%}" for name, share in zip(names, layer.shares, strict=True))
        for layer in layers
    )


def budget_bars(summary: Artifacts) -> list[BudgetBar]:
    """The bars of a summary, in its order; none for any other assessment. Raises UserError where its sandwich does not fit."""
    found, clean = [], number(summary.metrics, "clean_accuracy")
    for layer in layers_in(summary.metrics):
        certified = layer.certified.value if layer.certified else 0.0
        worst = max(layer.worst_case.value if layer.worst_case else clean, certified)
        limits = (end.limits if end else None for end in (layer.certified, layer.worst_case))
        found.append(BudgetBar(layer.budget, certified, worst, max(clean, worst), *limits))
    return found


@register
@dataclass(frozen=True)
class SandwichVisualiser(Visualiser):
    """A bar per budget: certified accuracy, the unknown band up to worst-case accuracy, the broken, the misclassified."""

    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"summary"})
    title: ClassVar[str] = "Robustness sandwich per budget"

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        if not (bars := budget_bars(artifacts)):
            raise NothingToDraw("No sandwich: this is not the summary of a run.")
        return [sandwich(bars)]
