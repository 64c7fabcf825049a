"""Figures of formal verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.plots import (
    HALF,
    Bar,
    Box,
    Series,
    bars,
    boxes,
    columns,
    intervals,
    lines,
    matrix,
    measured,
    plain,
    ranks,
)
from windtunnel.assessments.figures.scene import ramp
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.transformations import epsilon_axis, transformation_of
from windtunnel.records.metadata import limits, number, numbers
from windtunnel.records.run_times import RUN_TIMES
from windtunnel.records.tables import table

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.assessments.figures.scene import Scene
    from windtunnel.records.artifacts import Artifacts

_ROLES = {"verified": "certified", "falsified": "broken", "unknown": "unknown", "error": "error"}
_BY_AN_ATTACK = frozenset({"examples", "quick-attack", "attack"})
_MOST_ROWS = 100  # of a heat map: more are told apart by nobody


@dataclass(frozen=True)
class _FormalVisualiser(Visualiser, kinds=frozenset({AssessmentKind.FORMAL_VERIFICATION})):
    """A figure of formal verification."""


def _bounds(artifacts: Artifacts) -> tuple[Tensor, Tensor]:
    """(lower, upper) (N, K). Raises NothingToDraw where no sample has any."""
    bounds = artifacts.tensors("output_bounds") if "output_bounds" in artifacts.data else {}
    if not bounds or not bounds["lower"].isfinite().any():
        raise NothingToDraw("No output bounds: this verifier decides without them.")
    return bounds["lower"], bounds["upper"]


@register
@dataclass(frozen=True)
class VerdictSummaryVisualiser(_FormalVisualiser, title="Verdicts"):
    """Shares of the four verdicts, and the seconds a sample took where they are given: the file in DVC is without them."""

    runtime_bins: int = 20

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Two charts; one where no time was measured."""
        seconds = artifacts.tensor(RUN_TIMES)
        seconds = seconds[seconds.isfinite()]
        return [self._verdicts(artifacts), *([self._run_times(seconds)] if bool((seconds > 0).any()) else [])]

    def _verdicts(self, a: Artifacts) -> Scene:
        late, n = int(number({"timeouts": 0, **a.metrics}, "timeouts")), len(a.sample_names)
        labels = {"unknown": f"unknown, {late} out of time"} if late else {}
        rows = [
            Bar(labels.get(name, name), number(a.metrics, f"{name}_rate"), role, limits(a.metrics, f"{name}_rate"))
            for name, role in _ROLES.items()
        ]
        alt = "; ".join(f"{r.label} {r.value:.1%}" for r in rows)
        return bars(rows, f"share of {n} samples, 95 % intervals", alt, width=HALF)

    def _run_times(self, seconds: Tensor) -> Scene:
        from windtunnel.core.statistics import median

        powers = seconds[seconds > 0].double().log10()
        low, high = float(powers.min().floor()), float(powers.max().floor()) + 1
        counts = powers.histc(bins=self.runtime_bins, min=low, max=high).tolist()
        middle = median(seconds.tolist()) or 0.0
        alt = f"Run times of {len(seconds)} samples, median {middle:.3g} s, longest {float(seconds.max()):.3g} s."
        return columns(counts, (low, high), f"log10 of the seconds of a sample; median {middle:.3g} s", alt, "accent")


@register
@dataclass(frozen=True)
class DecidedByVisualiser(_FormalVisualiser, essential=True, title="Decided by"):
    """Which step of a cascade decided how many samples."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        counts = table(dict[str, int], artifacts.metrics, "decided_by")
        if not counts:
            raise NothingToDraw("No step decided any sample.")
        counts["not decided"] = len(artifacts.sample_names) - sum(counts.values())
        rows = [Bar(name, n, _role(name)) for name, n in counts.items() if n or name != "not decided"]
        alt = "Samples decided by each step: " + ", ".join(f"{r.label} {int(r.value)}" for r in rows)
        label, top = "samples decided by each step, in the order of the cascade", max(counts.values())
        return [bars(rows, label, alt, top=top, value_format=plain, axis_format=plain, width=HALF)]


def _role(step: str) -> str:
    return {"clean": "wrong", "not decided": "unknown"}.get(step, "broken" if step in _BY_AN_ATTACK else "certified")


@register
@dataclass(frozen=True)
class OutputBoundsCohortVisualiser(_FormalVisualiser, title="Width of the output bounds per class"):
    """A box per class of the widths of the certified output intervals.

    whis: whiskers reach to the last value within so many times the middle half.
    """

    whis: float = 1.5
    show_outliers: bool = True

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        lower, upper = _bounds(artifacts)
        width = upper - lower
        width = width[width.isfinite().all(1)].double()
        rows = [self._box(name, values) for name, values in zip(artifacts.class_names, width.T, strict=True)]
        alt = f"Width of the output bounds of {len(width)} samples; medians: " + ", ".join(
            f"{row.label} {row.quartiles[1]:.3g}" for row in rows
        )
        return [boxes(rows, "upper - lower bound of the logit, by class", alt)]

    def _box(self, name: str, values: Tensor) -> Box:
        first, middle, third = (float(values.quantile(q)) for q in (0.25, 0.5, 0.75))
        reach = self.whis * (third - first)
        inside = values[(values >= first - reach) & (values <= third + reach)]
        beyond = values[(values < first - reach) | (values > third + reach)].tolist() if self.show_outliers else []
        return Box(name, (first, middle, third), (float(inside.min()), float(inside.max())), tuple(beyond))


@register
@dataclass(frozen=True)
class OutputBoundsPinnedVisualiser(_FormalVisualiser, title="Output bounds of single samples"):
    """Certified logit intervals of chosen samples; with many classes the label and the nearest other classes.

    target_color, bar_color: #rrggbb, or a colour of the report such as `broken`.
    """

    max_samples: int = 4
    max_classes: int = 20
    target_color: str = "broken"
    bar_color: str = "clean"
    sample_indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no colour."""
        from windtunnel.assessments.figures.scene import PALETTE

        for option in ("target_color", "bar_color"):
            colour = str(getattr(self, option))
            hexadecimal = len(colour) == 7 and colour[0] == "#" and set(colour[1:].lower()) <= set("0123456789abcdef")
            if colour not in PALETTE and not hexadecimal:
                raise ValueError(f"{option}: '{colour}' is neither #rrggbb nor one of {', '.join(PALETTE)}")

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a panel per sample."""
        lower, upper = _bounds(artifacts)
        bounded = lower.isfinite().all(1).nonzero().flatten().tolist()
        targets, verdicts = artifacts.tensor("targets"), artifacts.tensor("verdicts")
        panels = []
        for i in list(self.sample_indices or bounded)[: self.max_samples]:
            target = int(targets[i])
            order = [target, *(c for c in upper[i].argsort(descending=True).tolist() if c != target)]
            rows = []
            for c in sorted(order[: self.max_classes]):
                colour = self.target_color if c == target else self.bar_color
                rows.append((artifacts.class_names[c], float(lower[i, c]), float(upper[i, c]), colour))
            panels.append((f"{artifacts.shown_names[i]}: {Verdict(int(verdicts[i])).label}", rows))
        colour = "orange" if self.target_color == "broken" else "its own colour"
        return [intervals(panels, f"logit; the label in {colour}", "Output bounds per class of single samples.")]


@dataclass(frozen=True)
class _Heatmap(_FormalVisualiser):
    """max_samples: rows, 100 where it is not given; of more samples those at evenly spaced places."""

    cmap: str = "viridis"
    max_samples: int | None = None

    def _matrix(self, values: Tensor, artifacts: Artifacts, caption: str, edges: tuple[float, float]) -> Scene:
        n, most = len(values), self.max_samples or _MOST_ROWS
        places = range(n) if n <= most else [k * n // most for k in range(most)]
        names, classes = artifacts.shown_names, artifacts.class_names
        grid = values[list(places)].tolist()
        tips = [
            [
                f"{names[i]}, {name}: {v:.3g}" if v == v else f"{names[i]}, {name}: none"
                for name, v in zip(classes, row, strict=True)
            ]
            for i, row in zip(places, grid, strict=True)
        ]
        subset_note = f"{len(grid)} of {n} samples" if len(grid) < n else f"{n} samples"
        label = f"{subset_note}; from {edges[0]:.3g} ({'red' if edges[0] < 0 else 'dark'}) to {edges[1]:.3g}, grey: no bound"
        height = min(17.0, max(2.5, 240 / len(grid)))
        axis, alt = f"class; {label}", f"{caption} by sample and class; {label}."
        rows, colours, show = [""] * len(grid), ramp(self.cmap), "{:.3g}".format
        return matrix(grid, rows, classes, axis, caption, alt, colours, show, tips, edges=edges, row_height=height)


@register
@dataclass(frozen=True)
class OutputBoundsWidthHeatmapVisualiser(_Heatmap, title="Width of the output bounds"):
    """Samples x classes: width of the certified interval; grey where there is no bound."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One heat map."""
        lower, upper = _bounds(artifacts)
        width = upper - lower
        return [self._matrix(width, artifacts, "upper - lower bound", (0.0, float(width[width.isfinite()].max())))]


@register
@dataclass(frozen=True)
class OutputBoundsMarginHeatmapVisualiser(_Heatmap, title="Margins to the label's lower bound"):
    """Samples x classes: the label's lower bound minus the other class's upper bound; above 0 that class is excluded.

    Before it the verified margins themselves, sorted, where the verifier bounds them as such, which is tighter.
    """

    cmap: str = "RdBu"

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One heat map, after the sorted margins."""
        verified = [artifacts.tensor("lower_margins")] if "lower_margins" in artifacts.data else []
        finite = [margin for margins in verified for margin in margins[margins.isfinite()].tolist()]
        sorted_ = [_sorted_margins(finite)] if finite else []
        lower, upper = _bounds(artifacts)
        targets = artifacts.tensor("targets")[:, None]
        margin = (lower.gather(1, targets) - upper).scatter(1, targets, float("nan"))
        bounded = margin[margin.isfinite()]
        top = float(bounded.abs().max()) if len(bounded) else 1.0
        return [*sorted_, self._matrix(margin, artifacts, "margin, interval against interval", (-top, top))]


def _sorted_margins(margins: list[float]) -> Scene:
    above = sum(v > 0 for v in margins)
    alt = f"Verified margins of {len(margins)} samples, sorted: {above} are above 0, which proves the sample."
    caption = f"verified margin; above 0 the sample is verified ({above} of {len(margins)})"
    series, line, top = [("certified", caption, margins)], (0.0, "verified above this line"), max(0.0, *margins)
    return ranks(series, "smallest margin over the other classes", alt, top, min(0.0, *margins), line)


@register
@dataclass(frozen=True)
class CertifiedCurveVisualiser(_FormalVisualiser, title="Certified curve"):
    """Certified accuracy against epsilon, and what is not broken beside it: the sandwich as a picture."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        m = artifacts.metrics
        if "certified_curve" not in m:
            raise NothingToDraw("No certified radii: the entry has no `radius: {max: ..., tolerance: ...}`.")
        region = artifacts.metadata.semantics.perturbation
        if (transformation := transformation_of(region.norm or "")) and transformation.is_square:
            raise NothingToDraw("A square at every place has no range: it is there or not.")
        axis, unit = epsilon_axis(region.norm or "")
        x = [unit * epsilon for epsilon in numbers(m, "curve_epsilons")]
        m = {**m, "curve_epsilons": x}
        # What ran out of time is no finding about the model: the curve is what was verified until then.
        bounded = [artifacts.tensor(key) for key in ("timed_out", "radius_unfinished") if key in artifacts.data]
        late = len({i for ended in bounded for i in ended.nonzero().flatten().tolist()})
        of = f"{late} of {len(artifacts.sample_names)} samples out of time"
        labels, colour = (f"certified, at least: {of}", "unknown") if late else ("certified, 95 % band", "certified")
        drawn = [measured(m, "curve_epsilons", "certified_curve", labels, colour, dashed=late > 0, thin=True)]
        if "empirical_curve" in m:
            attacked = tuple(zip(x, numbers(m, "empirical_curve"), strict=True))
            drawn.append(Series("not broken", "broken", attacked, dashed=True, thin=True))
        name = "average_certified_radius"
        mean = f"{number(m, name):.4g}" if name in m else f"at least {number(m, f'{name}_at_least'):.4g}"
        alt = f"Certified accuracy against epsilon; mean certified radius {mean}."
        is_inside = region.epsilon is not None and transformation is None and region.epsilon <= x[-1]
        budget = [(region.epsilon, "budget")] if region.epsilon is not None and is_inside else []
        return [lines(drawn, axis, "accuracy", alt, (0, x[-1]), vertical=budget)]
