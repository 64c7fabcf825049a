"""Figures of corruption suites and of single corruptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from windtunnel.assessments.attacks.figures import bare, show_image
from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.metadata import corruption_pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from windtunnel.core.artifacts import Artifacts
    from windtunnel.core.contracts import Json

_SAMPLING = frozenset({AssessmentKind.STATISTICAL_SAMPLING})
_ENDS = ("", "_ci_low", "_ci_high")
_NO_SUITE = "A single corruption: there is no suite to compare."


def _pairs(artifacts: Artifacts) -> list[tuple[str, int]]:
    return corruption_pairs(artifacts.metadata.kwargs)


@register
@dataclass(frozen=True)
class CorruptionAccuracyVisualiser(Visualiser):
    """Clean accuracy against corrupted accuracy, per corruption of a suite, with their intervals."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"corruptions"})
    title: ClassVar[str] = "Clean against corrupted accuracy"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        by, low, high = (
            {**_by_corruption(metrics, end), "clean": _number(metrics, f"clean_accuracy{end}")} for end in _ENDS
        )
        order = [*sorted((name for name in by if name != "clean"), key=lambda name: by[name]), "clean"]
        figure, axes = pyplot.subplots(figsize=(6.8, 0.9 + 0.27 * len(order)))
        errors = [[by[name] - low[name] for name in order], [high[name] - by[name] for name in order]]
        colours = [style.CLEAN if name == "clean" else style.CORRUPTED for name in order]
        axes.barh(order, [by[name] for name in order], color=colours, xerr=errors, capsize=2, ecolor="#444444")
        axes.axvline(by["clean"], color=style.CLEAN, linestyle="--", linewidth=1)
        mean = " (mean of the severities)" if "accuracy_by_corruption" in metrics else ""
        axes.set(xlabel=f"accuracy{mean} on {metrics['n_samples']} samples", xlim=(0, 1.02))
        return figure


def _by_corruption(metrics: dict[str, Json], end: str) -> dict[str, float]:
    single = {"corrupted": metrics[f"corrupted_accuracy{end}"]}
    return cast(dict[str, float], metrics.get(f"accuracy_by_corruption{end}", single))


def _number(metrics: dict[str, Json], key: str) -> float:
    return float(cast(float, metrics[key]))


@register
@dataclass(frozen=True)
class SeverityCurveVisualiser(Visualiser):
    """Accuracy against severity: the mean of the suite, and each corruption behind it."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"corruptions"})
    title: ClassVar[str] = "Accuracy against severity"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics, pairs = artifacts.metrics, _pairs(artifacts)
        if not pairs:
            return style.placeholder(_NO_SUITE)
        accuracy = cast(list[float], metrics["accuracy_by_pair"])
        zero = _number(metrics, "severity_0_accuracy")
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
        mean, low, high = (
            [_number(metrics, f"severity_0_accuracy{end}"), *cast(list[float], metrics[f"accuracy_by_severity{end}"])]
            for end in _ENDS
        )
        axes.fill_between([0, *severities], low, high, color=style.CORRUPTED, alpha=0.2, linewidth=0)
        axes.plot([0, *severities], mean, "o-", color=style.CORRUPTED, linewidth=2,
                  label="mean with interval; thin lines are single corruptions")  # fmt: skip
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
    families: ClassVar[frozenset[str]] = frozenset({"corruptions"})
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
                    f"{value:.1%}",
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
    families: ClassVar[frozenset[str]] = frozenset({"corruptions"})
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


@register
@dataclass(frozen=True)
class PredictionFlipsVisualiser(Visualiser):
    """How predictions change against clean: right to wrong, wrong to right, and from one wrong class to another."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"corruptions"})
    title: ClassVar[str] = "Prediction flips"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; a row per corruption, as shares of the samples, the mean over its severities."""
        from matplotlib import pyplot

        targets, clean = artifacts.tensor("targets"), artifacts.tensor("clean_predictions")
        pairs = _pairs(artifacts) or [("corrupted", 0)]
        key = "corruption_predictions" if _pairs(artifacts) else "perturbed_predictions"
        predictions = artifacts.tensor(key).reshape(len(pairs), -1)
        right, was_right, moved = predictions == targets, clean == targets, predictions != clean
        parts = (
            ("right to wrong", moved & was_right, style.ATTACKED, "//"),
            ("wrong to another wrong", moved & ~was_right & ~right, style.UNKNOWN, ".."),
            ("wrong to right", moved & right, style.CERTIFIED, ""),
        )
        names = list(dict.fromkeys(c for c, _ in pairs))
        rows = {name: [i for i, (c, _) in enumerate(pairs) if c == name] for name in names}
        names.sort(key=lambda name: float(moved[rows[name]].double().mean()))
        figure, axes = pyplot.subplots(figsize=(6.8, 1.3 + 0.27 * len(names)))
        left = [0.0] * len(names)
        for label, flips, colour, hatch in parts:
            widths = [float(flips[rows[name]].double().mean()) for name in names]
            axes.barh(names, widths, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=label)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set(xlabel="share of samples whose prediction flips", xlim=(0, max(*left, 0.05) * 1.05))
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        return figure


@register
@dataclass(frozen=True)
class MinimalSeverityVisualiser(Visualiser):
    """Histogram of the mildest severity at which any corruption of the suite breaks a sample."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _SAMPLING
    families: ClassVar[frozenset[str]] = frozenset({"corruptions"})
    title: ClassVar[str] = "Minimal severity"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        if "minimal_severity" not in artifacts.data:
            return style.placeholder(_NO_SUITE)
        minimal = artifacts.tensor("minimal_severity")
        wrong = artifacts.tensor("clean_predictions") != artifacts.tensor("targets")
        severities = cast(list[int], artifacts.metrics["severities"])
        bins, labels = [*severities, 6], [*(str(s) for s in severities), "never"]
        before, broken = ([int(((minimal == s) & mine).sum()) for s in bins] for mine in (wrong, ~wrong))
        figure, axes = pyplot.subplots(figsize=(6, 3.4))
        colours = [*[style.CORRUPTED] * len(severities), style.CERTIFIED]
        axes.bar(labels, broken, color=colours)
        top = axes.bar(labels, before, bottom=broken, color=style.UNKNOWN, hatch="//", edgecolor="white", linewidth=0,
                       label="misclassified without corruption")  # fmt: skip
        axes.bar_label(top, labels=[str(a + b) for a, b in zip(before, broken, strict=True)], fontsize=8)
        axes.set(
            xlabel=f"mildest severity that breaks the sample ({len(dict(_pairs(artifacts)))} corruptions)",
            ylabel="samples",
        )
        if any(before):
            axes.legend()
        return figure
