"""Figures of the clean evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.plots import HALF, Bar, Series, bars, lines, matrix, plain
from windtunnel.assessments.figures.scene import BLUES
from windtunnel.core.contracts import AssessmentKind
from windtunnel.records.metadata import number
from windtunnel.records.tables import ClassShare, ConfidenceBins, table

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.records.artifacts import Artifacts

_MOST_CONFUSIONS = 20
_NOT_CLEAN = "Only the clean evaluation has these numbers."


@dataclass(frozen=True)
class _CleanVisualiser(
    Visualiser, kinds=frozenset({AssessmentKind.STATISTICAL_SAMPLING}), families=frozenset({"clean"})
):
    """A figure of the clean evaluation."""


@register
@dataclass(frozen=True)
class ConfusionMatrixVisualiser(_CleanVisualiser, essential=True, title="Confusion matrix"):
    """Targets against predictions; of more than `max_labelled` classes the most frequent confusions alone."""

    max_labelled: int = 20

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One matrix."""
        from windtunnel.assessments.clean.assess import confusion_matrix

        names = [line.label for line in table(tuple[ClassShare, ...], artifacts.metrics, "per_class")]
        if not names:
            raise NothingToDraw(_NOT_CLEAN)
        counts = confusion_matrix(artifacts.tensor("clean_predictions"), artifacts.tensor("targets"), len(names))
        off = int(counts.sum() - counts.diagonal().sum())
        alt = f"Confusion matrix of {len(names)} classes; {off} samples are off the diagonal."
        if len(names) > self.max_labelled:
            return [_most_frequent(counts, names, alt, off)]
        grid = counts.tolist()
        tips = [
            [f"{name} classified as {other}: {v} samples" for other, v in zip(names, row, strict=True)]
            for name, row in zip(names, grid, strict=True)
        ]
        return [matrix(grid, names, names, "predicted class", "true class", alt, BLUES, _count, tips)]


def _count(value: float) -> str:
    return f"{int(value)}" if value else ""


def _most_frequent(counts: Tensor, names: list[str], alt: str, off: int) -> Drawing:
    """Return the largest of the counts (K, K) off the diagonal as bars: a matrix of hundreds of classes shows nobody anything."""
    cells = [(int(counts[i, j]), i, j) for i, j in counts.nonzero().tolist() if i != j]
    if not cells:
        raise NothingToDraw(f"No sample is taken for another of the {len(names)} classes.")
    worst = sorted(cells, key=lambda cell: (-cell[0], cell[1], cell[2]))[:_MOST_CONFUSIONS]
    rows = [Bar(f"{names[i]} as {names[j]}", n, "broken") for n, i, j in worst]
    caption = f"samples; the {len(rows)} most frequent confusions of {len(names)} classes, {off} samples in all"
    return bars(rows, caption, alt, top=worst[0][0], value_format=plain, axis_format=plain, width=HALF)


@register
@dataclass(frozen=True)
class ReliabilityVisualiser(_CleanVisualiser, essential=True, title="Reliability diagram"):
    """Accuracy against confidence per bin, with its interval; the diagonal is perfect calibration."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        from windtunnel.core.statistics import binomial_interval

        drawn = table(ConfidenceBins, artifacts.metrics, "reliability").filled
        if not drawn:
            raise NothingToDraw(_NOT_CLEAN)
        limits = tuple(binomial_interval(round(accuracy * n), n) for _, accuracy, n in drawn)
        points = tuple((x, y) for x, y, _ in drawn)
        title = "accuracy of the samples of a bin of confidence, with 95 % intervals"
        ideal = Series("perfect calibration", "soft", ((0, 0), (1, 1)), dashed=True, dots=False)
        series = (ideal, Series(title, "clean", points, limits, line=False))
        alt = f"Accuracy against confidence; expected calibration error {number(artifacts.metrics, 'ece'):.3f}."
        return [lines(series, "confidence (max softmax)", "accuracy", alt, (0, 1), (0, 1.02))]


@register
@dataclass(frozen=True)
class PerClassAccuracyVisualiser(_CleanVisualiser, title="Clean accuracy per class"):
    """Clean accuracy of each class with its interval; of many classes the least accurate `max_classes`."""

    max_classes: int = 40

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        lines = table(tuple[ClassShare, ...], artifacts.metrics, "per_class")
        rows = [(line.label, line.rate) for line in lines if line.rate]
        if not rows:
            raise NothingToDraw(_NOT_CLEAN)
        shown = rows
        if len(rows) > self.max_classes:
            shown = sorted(rows, key=lambda row: row[1].value)[: self.max_classes]
        drawn = [Bar(label, rate.value, "clean", rate.limits) for label, rate in shown]
        left_out = f"; the {len(shown)} least accurate of {len(rows)}" if len(shown) < len(rows) else ""
        label = f"clean accuracy per class, 95 % intervals{left_out}"
        return [bars(drawn, label, "Clean accuracy of each class.", width=HALF)]
