"""Figures of an epsilon sweep."""

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

NO_SWEEP = "No epsilons on disk: this assessment is not a sweep."


@dataclass(frozen=True)
class _SweepVisualiser(Visualiser):
    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"sweeps"})

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder where the artifacts hold no sweep."""
        if "sweep_predictions" not in artifacts.data:
            return style.placeholder(NO_SWEEP)
        return self.draw_sweep(artifacts)

    def draw_sweep(self, artifacts: Artifacts) -> Figure:
        """The figure of a sweep."""
        raise NotImplementedError


def _numbers(value: Json) -> list[float]:
    assert isinstance(value, list)
    return [float("nan") if v is None else float(str(v)) for v in value]


@register
@dataclass(frozen=True)
class DegradationCurveVisualiser(_SweepVisualiser):
    """Top-1 accuracy against epsilon, cumulative with its interval, and the raw curve beside it."""

    title: ClassVar[str] = "Degradation curve"

    def draw_sweep(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        x = _numbers(metrics["epsilons"])
        figure, axes = pyplot.subplots(figsize=(6.5, 4))
        low, high = (_numbers(metrics[f"accuracy_curve_ci_{end}"]) for end in ("low", "high"))
        axes.fill_between(x, low, high, color=style.ATTACKED, alpha=0.2, label="95 % interval")
        axes.plot(x, _numbers(metrics["accuracy_curve"]), "o-", color=style.ATTACKED, label="broken here or before")
        axes.plot(
            x,
            _numbers(metrics["accuracy_curve_raw"]),
            "s:",
            color=style.GREY,
            label="at this epsilon alone",
            markersize=4,
        )
        axes.axvline(
            float(str(metrics["median_epsilon"])), color=style.BLUE, linestyle="--", linewidth=1, label="median epsilon"
        )
        axes.set(
            xlabel="epsilon", ylabel="top-1 accuracy", ylim=(0, 1.02), title=f"{artifacts.name}: {metrics['verdict']}"
        )
        axes.legend()
        return figure


@register
@dataclass(frozen=True)
class CriticalEpsilonVisualiser(_SweepVisualiser):
    """Histogram of the smallest epsilon that flips each prediction; those that never flip apart."""

    title: ClassVar[str] = "Critical epsilons"

    def draw_sweep(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        counts, largest = _numbers(metrics["critical_epsilon_histogram"]), _numbers(metrics["epsilons"])[-1]
        width = largest / len(counts)
        figure, axes = pyplot.subplots(figsize=(6.5, 3.6))
        axes.bar(
            [width * (i + 0.5) for i in range(len(counts))], counts, width * 0.92, color=style.ATTACKED, label="flips"
        )
        survivors = int((~artifacts.tensor("critical_epsilon").isfinite()).sum())
        axes.bar(
            largest + width,
            survivors,
            width * 0.92,
            color=style.CERTIFIED,
            hatch="//",
            label="never flips in this epsilon grid",
        )
        axes.set(xlabel="critical epsilon", ylabel="samples")
        axes.legend()
        return figure


@register
@dataclass(frozen=True)
class ConfidenceVisualiser(_SweepVisualiser):
    """Clean confidence against critical epsilon: bottom right is healthy, top left is confidently wrong soonest."""

    title: ClassVar[str] = "Clean confidence against critical epsilon"

    def draw_sweep(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        critical, confidence = artifacts.tensor("critical_epsilon"), artifacts.tensor("clean_confidence")
        flips = critical.isfinite()
        largest = _numbers(artifacts.metrics["epsilons"])[-1]
        figure, axes = pyplot.subplots(figsize=(6.5, 4))
        axes.scatter(critical[flips], confidence[flips], s=14, alpha=0.6, color=style.ATTACKED, label="flips")
        survivors = confidence[~flips]
        axes.scatter([largest * 1.08] * len(survivors), survivors, s=14, alpha=0.6, marker="^", color=style.CERTIFIED,
                     label="never flips in this epsilon grid")  # fmt: skip
        axes.set(xlabel="critical epsilon", ylabel="clean confidence (max softmax)", ylim=(0, 1.02))
        axes.legend()
        return figure


@register
@dataclass(frozen=True)
class ClassAccuracyVisualiser(_SweepVisualiser):
    """Top-1 accuracy of each class at the median epsilon."""

    title: ClassVar[str] = "Accuracy per class at the median epsilon"

    def draw_sweep(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        rows = cast(list[dict[str, float]], artifacts.metrics["per_class_at_median_epsilon"])
        values = [row.get("accuracy", 0.0) for row in rows]
        errors = [[max(0.0, v - row.get("accuracy_ci_low", v)) for row, v in zip(rows, values, strict=True)],
                  [max(0.0, row.get("accuracy_ci_high", v) - v) for row, v in zip(rows, values, strict=True)]]  # fmt: skip
        labels = [f"{name}\nn {row['n']}" for name, row in zip(artifacts.class_names, rows, strict=True)]
        figure, axes = pyplot.subplots(figsize=(6.5, 3.4))
        axes.bar(range(len(rows)), values, color=style.BLUE, yerr=errors, ecolor=style.GREY, capsize=3)
        axes.set_xticks(range(len(rows)), labels)
        axes.set(xlabel="class", ylabel="top-1 accuracy", ylim=(0, 1.02),
                 title=f"at epsilon {float(str(artifacts.metrics['median_epsilon'])):.4g}")  # fmt: skip
        return figure
