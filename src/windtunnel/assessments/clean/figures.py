"""Figures of the clean evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from windtunnel.core.artifacts import Artifacts
    from windtunnel.core.contracts import Json

_SAMPLING = frozenset({AssessmentKind.STATISTICAL_SAMPLING})
_NOT_CLEAN = "Not the clean evaluation: it holds no such numbers."


@register
@dataclass(frozen=True)
class ConfusionMatrixVisualiser(Visualiser):
    """Targets against predictions, counts in the cells while they fit."""

    max_labelled: int = 20
    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"clean"})
    title: ClassVar[str] = "Confusion matrix"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator

        if "confusion_matrix" not in artifacts.metrics:
            return style.placeholder(_NOT_CLEAN)
        matrix = cast(list[list[int]], artifacts.metrics["confusion_matrix"])
        names = [str(row["class"]) for row in cast("list[dict[str, Json]]", artifacts.metrics["per_class"])]
        figure, axes = pyplot.subplots(figsize=(5.2, 4.8))
        image = axes.imshow(matrix, cmap="Blues")
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.grid(visible=False)
        if len(names) <= self.max_labelled:
            axes.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 3 else 0)
            axes.set_yticks(range(len(names)), names)
            top = max(max(row) for row in matrix)
            for i, row in enumerate(matrix):
                for j, count in enumerate(row):
                    if count:
                        axes.text(j, i, str(count), ha="center", va="center", fontsize=8,
                                  color="white" if count > top / 2 else "black")  # fmt: skip
        figure.colorbar(image, ax=axes, label="samples", shrink=0.8, ticks=MaxNLocator(integer=True))
        return figure


@register
@dataclass(frozen=True)
class ReliabilityVisualiser(Visualiser):
    """Accuracy against confidence per bin, with its number of samples; the diagonal is perfect calibration."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"clean"})
    title: ClassVar[str] = "Reliability diagram"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        if "reliability" not in artifacts.metrics:
            return style.placeholder(_NOT_CLEAN)
        bins = cast(dict[str, list[float]], artifacts.metrics["reliability"])
        figure, axes = pyplot.subplots(figsize=(4.8, 4.4))
        width = 1 / len(bins["count"])
        for i, (accuracy, count) in enumerate(zip(bins["accuracy"], bins["count"], strict=True)):
            if count:
                axes.bar((i + 0.5) * width, accuracy, width * 0.94, color=style.BLUE)
                axes.text((i + 0.5) * width, accuracy + 0.015, f"{int(count)}", ha="center", fontsize=7)
        axes.plot([0, 1], [0, 1], "--", color=style.GREY, linewidth=1, label="perfect calibration")
        axes.set(xlabel="confidence (max softmax)", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.22),
                 title=f"ECE {float(str(artifacts.metrics['ece'])):.3f}")  # fmt: skip
        axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
        axes.legend(loc="upper left")
        return figure


@register
@dataclass(frozen=True)
class PerClassAccuracyVisualiser(Visualiser):
    """Clean accuracy of each class with its interval; of many classes the least accurate `max_classes`."""

    max_classes: int = 40
    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"clean"})
    title: ClassVar[str] = "Clean accuracy per class"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        if "per_class" not in artifacts.metrics:
            return style.placeholder(_NOT_CLEAN)
        rows = [r for r in cast("list[dict[str, Json]]", artifacts.metrics["per_class"]) if "accuracy" in r]
        left_out = len(rows) - self.max_classes
        if left_out > 0:
            rows = sorted(rows, key=lambda row: float(str(row["accuracy"])))[: self.max_classes]
        values = [[float(str(row[f"accuracy{end}"])) for row in rows] for end in ("", "_ci_low", "_ci_high")]
        errors = [
            [max(0.0, v - low) for v, low in zip(values[0], values[1], strict=True)],
            [max(0.0, high - v) for v, high in zip(values[0], values[2], strict=True)],
        ]
        figure, axes = pyplot.subplots(figsize=(max(5.0, 0.4 * len(rows) + 2), 3.4))
        axes.bar([str(r["class"]) for r in rows], values[0], color=style.CLEAN, yerr=errors, capsize=2, ecolor="black")
        axes.set(xlabel="class", ylabel="clean accuracy", ylim=(0, 1.02))
        if left_out > 0:
            axes.set_title(f"the {len(rows)} least accurate classes; {left_out} more are above them")
        if max(len(str(row["class"])) for row in rows) > 3:
            axes.tick_params(axis="x", rotation=60)
        return figure
