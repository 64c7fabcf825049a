"""Figures of formal verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.run_times import RUN_TIMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from windtunnel.core.artifacts import Artifacts
    from windtunnel.core.contracts import Json

_FORMAL = frozenset({AssessmentKind.FORMAL_VERIFICATION})
_ORDER = (Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN, Verdict.ERROR)
_NO_BOUNDS = "No output bounds: this verifier decides without them."


def _bounds(artifacts: Artifacts) -> tuple[Tensor, Tensor] | None:
    """(lower, upper) (N, K), or None where no sample has any."""
    block = artifacts.data.get("output_bounds")
    if not isinstance(block, dict) or not block["lower"].isfinite().any():
        return None
    return block["lower"], block["upper"]


@register
@dataclass(frozen=True)
class VerdictSummaryVisualiser(Visualiser):
    """Counts of the four verdicts, and the seconds a sample took where they are given: the file in DVC is without them."""

    runtime_bins: int = 20
    kinds: ClassVar[frozenset[AssessmentKind]] = _FORMAL
    title: ClassVar[str] = "Verdicts"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        verdicts, seconds = artifacts.tensor("verdicts"), artifacts.tensor(RUN_TIMES)
        seconds = seconds[seconds.isfinite()]
        panels = 2 if len(seconds) else 1
        figure, grid = pyplot.subplots(1, panels, figsize=(4.25 * panels, 3.2), squeeze=False)
        left = grid[0][0]
        counts = [int((verdicts == v).sum()) for v in _ORDER]
        bars = left.bar([v.label for v in _ORDER], counts, color=[style.VERDICT_COLOUR[v.label] for v in _ORDER])
        left.bar_label(bars)
        left.set(ylabel="samples")
        if len(seconds):
            grid[0][1].hist(seconds.numpy(), bins=self.runtime_bins, color=style.BLUE)
            grid[0][1].set(xlabel="seconds a sample", ylabel="samples", yscale="log")
        return figure


@register
@dataclass(frozen=True)
class DecidedByVisualiser(Visualiser):
    """Which step of a cascade decided how many samples."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _FORMAL
    title: ClassVar[str] = "Decided by"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        decided = artifacts.metrics.get("decided_by")
        if not isinstance(decided, dict) or not decided:
            return style.placeholder("No step decided any sample.")
        counts = {name: int(str(n)) for name, n in decided.items()}
        counts["not decided"] = len(artifacts.tensor("verdicts")) - sum(counts.values())
        colours = [
            style.ATTACKED
            if n in {"clean", "examples", "quick-attack", "attack"}
            else style.GREY
            if n == "not decided"
            else style.CERTIFIED
            for n in counts
        ]
        figure, axes = pyplot.subplots(figsize=(6.5, 0.7 + 0.42 * len(counts)))
        axes.bar_label(axes.barh(list(counts), list(counts.values()), color=colours), padding=3)
        axes.invert_yaxis()
        axes.set(xlabel="samples")
        return figure


@register
@dataclass(frozen=True)
class OutputBoundsCohortVisualiser(Visualiser):
    """A box per class of the widths of the certified output intervals."""

    whis: float = 1.5
    show_outliers: bool = True
    kinds: ClassVar[frozenset[AssessmentKind]] = _FORMAL
    title: ClassVar[str] = "Width of the output bounds per class"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        bounds = _bounds(artifacts)
        if bounds is None:
            return style.placeholder(_NO_BOUNDS)
        width = bounds[1] - bounds[0]
        width = width[width.isfinite().all(1)]
        figure, axes = pyplot.subplots(figsize=(max(5.0, 0.5 * width.shape[1] + 2), 3.6))
        axes.boxplot(list(width.T.numpy()), whis=self.whis, showfliers=self.show_outliers)
        axes.set_xticks(range(1, width.shape[1] + 1), artifacts.class_names)
        axes.set(xlabel="class", ylabel="upper - lower bound of the logit")
        return figure


@register
@dataclass(frozen=True)
class OutputBoundsPinnedVisualiser(Visualiser):
    """Certified logit intervals of chosen samples; with many classes the target and its nearest other classes."""

    max_samples: int = 4
    max_classes: int = 20
    target_color: str = "#d62728"
    bar_color: str = "#1f77b4"
    sample_indices: tuple[int, ...] | None = None
    kinds: ClassVar[frozenset[AssessmentKind]] = _FORMAL
    title: ClassVar[str] = "Output bounds of single samples"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        bounds = _bounds(artifacts)
        if bounds is None:
            return style.placeholder(_NO_BOUNDS)
        lower, upper = bounds
        known = lower.isfinite().all(1).nonzero().flatten().tolist()
        chosen = list(self.sample_indices or known)[: self.max_samples]
        targets, verdicts, names = (
            artifacts.tensor("targets"),
            artifacts.tensor("verdicts"),
            artifacts.class_names,
        )
        figure, grid = pyplot.subplots(
            1, len(chosen), figsize=(2.6 * len(chosen) + 0.6, 3.2), squeeze=False, sharey=True
        )
        for axes, i in zip(grid[0], chosen, strict=True):
            target = int(targets[i])
            order = [target, *(c for c in upper[i].argsort(descending=True).tolist() if c != target)]
            classes = sorted(order[: self.max_classes])
            colours = [self.target_color if c == target else self.bar_color for c in classes]
            axes.bar(
                range(len(classes)),
                (upper - lower)[i][classes].numpy(),
                bottom=lower[i][classes].numpy(),
                color=colours,
            )
            axes.set_xticks(range(len(classes)), [names[c] for c in classes])
            axes.set_title(f"{artifacts.shown_names[i]}\n{Verdict(int(verdicts[i])).label}", fontsize=8)
            axes.set(xlabel="class")
        grid[0][0].set_ylabel("logit (red: target)")
        return figure


@dataclass(frozen=True)
class _Heatmap(Visualiser):
    cmap: str = "viridis"
    max_samples: int | None = None
    figsize: tuple[float, float] | None = None
    kinds: ClassVar[frozenset[AssessmentKind]] = _FORMAL

    def _draw(self, values: Tensor, artifacts: Artifacts, label: str, *, centred: bool) -> Figure:
        from matplotlib import colormaps, pyplot

        shown = values[: self.max_samples]
        figure, axes = pyplot.subplots(figsize=self.figsize or (5.5, max(2.5, min(9.0, 0.06 * len(shown) + 1.5))))
        colours = colormaps[self.cmap].with_extremes(bad="#d9d9d9")
        top = float(shown[shown.isfinite()].abs().max()) if shown.isfinite().any() else 1.0
        low, high = (-top, top) if centred else (None, None)
        image = axes.imshow(shown.numpy(), aspect="auto", cmap=colours, interpolation="nearest", vmin=low, vmax=high)
        axes.set_xticks(range(shown.shape[1]), artifacts.class_names)
        axes.set(xlabel="class", ylabel="sample (grey: no bound)")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label=label)
        return figure


@register
@dataclass(frozen=True)
class OutputBoundsWidthHeatmapVisualiser(_Heatmap):
    """Samples x classes: width of the certified interval; grey where there is no bound."""

    title: ClassVar[str] = "Width of the output bounds"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        bounds = _bounds(artifacts)
        if bounds is None:
            return style.placeholder(_NO_BOUNDS)
        return self._draw(bounds[1] - bounds[0], artifacts, "upper - lower bound", centred=False)


@register
@dataclass(frozen=True)
class OutputBoundsMarginHeatmapVisualiser(_Heatmap):
    """Samples x classes: the target's lower bound minus the other class's upper bound; above 0 the other class is excluded."""

    cmap: str = "RdBu"
    title: ClassVar[str] = "Margins to the target's lower bound"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        bounds = _bounds(artifacts)
        if bounds is None:
            return style.placeholder(_NO_BOUNDS)
        lower, upper = bounds
        targets = artifacts.tensor("targets")
        margin = lower.gather(1, targets[:, None]) - upper
        return self._draw(
            margin.scatter(1, targets[:, None], float("nan")),
            artifacts,
            "margin (interval against interval)",
            centred=True,
        )


@register
@dataclass(frozen=True)
class CertifiedCurveVisualiser(Visualiser):
    """Certified accuracy against epsilon, and what PGD left beside it: the sandwich as a picture."""

    kinds: ClassVar[frozenset[AssessmentKind]] = _FORMAL
    title: ClassVar[str] = "Certified curve"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        if "certified_curve" not in metrics:
            return style.placeholder("No certified radii: the entry has no `radius: {max: ..., tolerance: ...}`.")
        keys = ("curve_epsilons", "certified_curve", "certified_curve_ci_low", "certified_curve_ci_high")
        epsilons, certified, low, high = (_numbers(metrics[key]) for key in keys)
        figure, axes = pyplot.subplots(figsize=(6.5, 3.8))
        if "empirical_curve" in metrics:
            attacked = _numbers(metrics["empirical_curve"])
            axes.plot(epsilons, attacked, color=style.ATTACKED, linestyle="--", label="not broken by PGD")
            axes.fill_between(epsilons, certified, attacked, color=style.UNKNOWN, alpha=0.2, label="not known")
        axes.fill_between(epsilons, low, high, color=style.CERTIFIED, alpha=0.25, label="95 % interval")
        axes.plot(epsilons, certified, color=style.CERTIFIED, label="certified accuracy")
        region = artifacts.metadata.semantics.perturbation
        budget = region.epsilon or 0.0
        if budget <= epsilons[-1]:
            axes.axvline(budget, color=style.BLUE, linestyle=":", label=f"budget {budget:.4g}")
        axes.set(xlabel=f"epsilon ({region.norm})", ylabel="share of samples", ylim=(0, 1.02), xlim=(0, epsilons[-1]))
        axes.legend()
        return figure


def _numbers(value: Json) -> list[float]:
    assert isinstance(value, list)
    return [float(str(v)) for v in value]
