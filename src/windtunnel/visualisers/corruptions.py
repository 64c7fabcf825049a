"""Figures of corruption suites and of single corruptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from windtunnel.core.contracts import AssessmentKind
from windtunnel.visualisers import style
from windtunnel.visualisers.attacks import bare, show_image
from windtunnel.visualisers.base import Visualiser, register

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from windtunnel.core.artifacts import Artifacts
    from windtunnel.core.contracts import Json

_SAMPLING = frozenset({AssessmentKind.STATISTICAL_SAMPLING})
_NO_SUITE = "A single corruption: there is no suite to compare."


def _pairs(artifacts: Artifacts) -> list[tuple[str, int]]:
    kwargs = cast("dict[str, Json]", artifacts.metadata["kwargs"])
    return [(str(c), int(str(s))) for c, s in cast(list[list[object]], kwargs.get("corruptions", []))]


@register
@dataclass(frozen=True)
class CorruptionAccuracyVisualiser(Visualiser):
    """Clean accuracy against corrupted accuracy, per corruption of a suite, with the interval of a single one."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    title: ClassVar[str] = "Clean against corrupted accuracy"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        clean = float(str(metrics["clean_accuracy"]))
        by = cast(dict[str, float], metrics.get("accuracy_by_corruption", {"corrupted": metrics["corrupted_accuracy"]}))
        order = sorted(by, key=lambda c: by[c])
        figure, axes = pyplot.subplots(figsize=(6.8, 0.9 + 0.27 * len(order)))
        errors = None
        if "corrupted_accuracy_ci_low" in metrics:
            value = float(str(metrics["corrupted_accuracy"]))
            errors = [
                [value - float(str(metrics["corrupted_accuracy_ci_low"]))],
                [float(str(metrics["corrupted_accuracy_ci_high"])) - value],
            ]
        axes.barh(
            order,
            [by[c] for c in order],
            color=style.CORRUPTED,
            xerr=errors,
            capsize=3,
            label="corrupted, mean of severities",
        )
        axes.axvline(clean, color=style.CLEAN, linestyle="--", label=f"clean {clean:.1%}")
        axes.set(xlabel=f"accuracy on {metrics['n_samples']} samples", xlim=(0, 1.02))
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        return figure


@register
@dataclass(frozen=True)
class SeverityCurveVisualiser(Visualiser):
    """Accuracy against severity: the mean of the suite, and each corruption behind it."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    title: ClassVar[str] = "Accuracy against severity"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics, pairs = artifacts.metrics, _pairs(artifacts)
        if not pairs:
            return style.placeholder(_NO_SUITE)
        accuracy = cast(list[float], metrics["accuracy_by_pair"])
        zero = float(str(metrics["severity_0_accuracy"]))
        figure, axes = pyplot.subplots(figsize=(6, 3.8))
        for corruption in dict.fromkeys(c for c, _ in pairs):
            points = [(s, a) for (c, s), a in zip(pairs, accuracy, strict=True) if c == corruption]
            axes.plot(
                [0, *(s for s, _ in points)],
                [zero, *(a for _, a in points)],
                color=style.GREY,
                alpha=0.45,
                linewidth=0.9,
            )
        severities = cast(list[int], metrics["severities"])
        axes.plot([0, *severities], [zero, *cast(list[float], metrics["accuracy_by_severity"])], "o-", color=style.CORRUPTED,
                  linewidth=2, label="mean; thin lines are single corruptions")  # fmt: skip
        axes.set(
            xlabel="severity (0: 8-bit rounding alone)", ylabel="accuracy", ylim=(0, 1.02), xticks=[0, *severities]
        )
        axes.legend()
        return figure


@register
@dataclass(frozen=True)
class CorruptionHeatmapVisualiser(Visualiser):
    """Corruption x severity, accuracy in the cells."""

    cmap: str = "cividis"
    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    title: ClassVar[str] = "Accuracy per corruption and severity"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        pairs = _pairs(artifacts)
        if not pairs:
            return style.placeholder(_NO_SUITE)
        accuracy = dict(zip(pairs, cast(list[float], artifacts.metrics["accuracy_by_pair"]), strict=True))
        corruptions, severities = list(dict.fromkeys(c for c, _ in pairs)), sorted({s for _, s in pairs})
        grid = [[accuracy[c, s] for s in severities] for c in corruptions]
        figure, axes = pyplot.subplots(figsize=(1.6 + 1.1 * len(severities) + 1.6, 0.9 + 0.3 * len(corruptions)))
        image = axes.imshow(grid, aspect="auto", cmap=self.cmap, vmin=0, vmax=1)
        for i, row in enumerate(grid):
            for j, value in enumerate(row):
                axes.text(
                    j,
                    i,
                    f"{value:.0%}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="black" if value > 0.55 else "white",
                )
        axes.set_xticks(range(len(severities)), [str(s) for s in severities])
        axes.set_yticks(range(len(corruptions)), corruptions)
        axes.set(xlabel="severity")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="accuracy")
        return figure


@register
@dataclass(frozen=True)
class CorruptionSheetVisualiser(Visualiser):
    """One sample under every corruption of the suite at its highest severity."""

    sample: int = 0
    columns: int = 5
    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    title: ClassVar[str] = "One sample under every corruption"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; from the directories of the single corruptions, so a placeholder before they are written."""
        from matplotlib import pyplot

        from windtunnel.core.artifacts import load_tensors

        pairs = _pairs(artifacts)
        if not pairs:
            return style.placeholder(_NO_SUITE)
        worst = max(s for _, s in pairs)
        files = {c: artifacts.directory / f"{c}-{s}" / "robustness_data.pt" for c, s in pairs if s == worst}
        tiles = [("clean", artifacts.tensor("clean_inputs")[self.sample])]
        for corruption, file in files.items():
            if file.is_file():
                inputs = load_tensors(file)["perturbed_inputs"]
                assert not isinstance(inputs, dict)
                tiles.append((f"{corruption}\nseverity {worst}", inputs[self.sample]))
        rows = -(-len(tiles) // self.columns)
        figure, grid = pyplot.subplots(rows, self.columns, figsize=(1.9 * self.columns, 2.1 * rows), squeeze=False)
        for axes in grid.flat:
            bare(axes)
        for axes, (label, image) in zip(grid.flat, tiles, strict=False):
            show_image(axes, image)
            axes.set_title(label, fontsize=8)
        return figure
