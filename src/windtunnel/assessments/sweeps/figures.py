"""Figures of an epsilon sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.base import Drawing, Visualiser, register
from windtunnel.assessments.figures.plots import HALF, Bar, Series, bars, binned, columns, lines, measured, plain
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.transformations import epsilon_axis
from windtunnel.records.metadata import number, numbers
from windtunnel.records.tables import Share, table

if TYPE_CHECKING:
    from windtunnel.records.artifacts import Artifacts

_MOST_CLASSES, _MOST_POINTS, _BINS = 40, 1000, 12


@dataclass(frozen=True)
class _SweepVisualiser(
    Visualiser,
    kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}),
    families=frozenset({"sweeps"}),
    needs=("sweep_predictions", "No epsilons on disk: this assessment is not a sweep."),
):
    """A figure of an epsilon sweep."""


@register
@dataclass(frozen=True)
class DegradationCurveVisualiser(_SweepVisualiser, title="Degradation curve"):
    """Top-1 accuracy against epsilon, cumulative with its interval, and the raw curve beside it."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Accuracy against epsilon."""
        norm = artifacts.metadata.semantics.norm or ""
        axis, unit = epsilon_axis(norm)
        m = {**artifacts.metrics, "epsilons": [unit * x for x in numbers(artifacts.metrics, "epsilons")]}
        x, y, raw = (numbers(m, key) for key in ("epsilons", "accuracy_curve", "accuracy_curve_raw"))
        drawn = [measured(m, "epsilons", "accuracy_curve", "broken here or before, 95 % band", "broken")]
        if raw != y:
            drawn.append(Series("at this epsilon alone", "soft", tuple(zip(x, raw, strict=True)), dashed=True))
        alt = f"Accuracy against epsilon: {number(m, 'clean_accuracy'):.1%} clean, {y[-1]:.1%} at {plain(x[-1])}."
        median = [(unit * number(m, "median_epsilon"), "median epsilon" if unit == 1 else "median")]
        return [lines(drawn, axis, "top-1 accuracy", alt, (0, x[-1]), (0, 1.0), vertical=median)]


@register
@dataclass(frozen=True)
class CriticalEpsilonVisualiser(_SweepVisualiser, title="Critical epsilons"):
    """Histogram of the smallest epsilon that flips each prediction; samples that never flip are shown apart."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per bin, and one for samples that never flip."""
        critical = artifacts.tensor("critical_epsilon")
        flipped = critical[critical.isfinite()].tolist()
        survivors = len(critical) - len(flipped)
        largest = numbers(artifacts.metrics, "epsilons")[-1]
        alt = f"Smallest epsilon that flips each prediction, up to {plain(largest)}; {survivors} samples never flip."
        counts, edges = binned(flipped, _BINS) if flipped else ([0.0], (0.0, largest))
        never = ("never flips at these epsilons", survivors, "unknown")
        return [columns(counts, edges, "critical epsilon", alt, "broken", never)]


@register
@dataclass(frozen=True)
class ConfidenceVisualiser(_SweepVisualiser, title="Clean confidence against critical epsilon"):
    """Clean confidence against critical epsilon: bottom right is healthy, top left is confidently wrong soonest."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a point per sample; of more than 1,000 samples an evenly spaced selection."""
        critical, confidence = artifacts.tensor("critical_epsilon"), artifacts.tensor("clean_confidence")
        largest, n = numbers(artifacts.metrics, "epsilons")[-1], len(critical)
        places = range(n) if n <= _MOST_POINTS else [k * n // _MOST_POINTS for k in range(_MOST_POINTS)]
        pairs = [(float(critical[i]), float(confidence[i])) for i in places]
        flips = tuple((x, y) for x, y in pairs if x <= largest)
        never = tuple((1.06 * largest, y) for x, y in pairs if not x <= largest)
        groups = "".join(_groups(artifacts))
        series = [
            Series(f"flips{groups}", "broken", flips, line=False),
            Series("never flips at these epsilons", "certified", never, line=False),
        ]
        subset_note = f" {_MOST_POINTS} of {n} samples are drawn." if len(pairs) < n else ""
        alt = "Clean confidence against critical epsilon; top left is confidently wrong soonest."
        drawn, title = [s for s in series if s.points], "clean confidence (max softmax)"
        limits = ((0, 1.1 * largest), (0, 1.02))
        return [lines(drawn, "critical epsilon", title, alt + subset_note + groups, *limits)]


def _groups(artifacts: Artifacts) -> Iterator[str]:
    """Bars of how many samples flip earliest and last longest, and how sure the model was of them."""
    for group, what in (("earliest", "flip earliest"), ("longest", "last longest")):
        if f"confidence_{group}" in artifacts.metrics and f"n_{group}" in artifacts.metrics:
            sure = number(artifacts.metrics, f"confidence_{group}")
            yield f"; {artifacts.metrics[f'n_{group}']} {what}: mean confidence {sure:.1%}"


@register
@dataclass(frozen=True)
class ClassAccuracyVisualiser(_SweepVisualiser, title="Accuracy per class at the median epsilon"):
    """Top-1 accuracy of each class at the median epsilon; of more than 40 classes the least accurate."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a bar per class."""
        classes = table(tuple[Share, ...], artifacts.metrics, "per_class_at_median_epsilon")
        rows = [
            Bar(f"{name}, n {share.n}", share.accuracy or 0.0, "broken", share.rate.limits if share.rate else None)
            for name, share in zip(artifacts.class_names, classes, strict=True)
        ]
        shown = sorted(rows, key=lambda r: r.value)[:_MOST_CLASSES] if len(rows) > _MOST_CLASSES else rows
        label = f"top-1 accuracy per class at the median epsilon, {number(artifacts.metrics, 'median_epsilon'):.4g}, 95 % intervals"
        return [bars(shown, label, label, width=HALF)]
