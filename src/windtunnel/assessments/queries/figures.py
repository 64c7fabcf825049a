"""Figures of query-counted attacks: success against queries, histograms of what it took, and a gallery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from windtunnel.assessments.attacks.figures import bare, show_image
from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind, Json, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from windtunnel.core.artifacts import Artifacts

NO_QUERIES = "No query counts on disk: this assessment is not one of `queries`."
_BINS = 20
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class _QueryVisualiser(Visualiser):
    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"queries"})

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder where the artifacts hold no query counts."""
        if "queries" not in artifacts.data:
            return style.placeholder(NO_QUERIES)
        if not artifacts.tensor("attacked").any():
            return style.placeholder("No sample was left to attack.")
        return self.draw_queries(artifacts)

    def draw_queries(self, artifacts: Artifacts) -> Figure:
        """The figure of an attack with at least one attacked sample."""
        raise NotImplementedError


def _numbers(value: Json) -> list[float]:
    assert isinstance(value, list)
    return [float(str(v)) for v in value]


@register
@dataclass(frozen=True)
class SuccessAgainstQueriesVisualiser(_QueryVisualiser):
    """Share of the attacked samples that broke within a number of queries, with its interval."""

    title: ClassVar[str] = "Success rate against queries"

    def draw_queries(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        x = _numbers(metrics["query_budgets"])
        low, high = (_numbers(metrics[f"success_rate_curve_ci_{end}"]) for end in ("low", "high"))
        figure, axes = pyplot.subplots(figsize=(6.5, 4))
        axes.fill_between(x, low, high, step="post", color=style.ATTACKED, alpha=0.2, label="95 % interval")
        axes.step(x, _numbers(metrics["success_rate_curve"]), where="post", color=style.ATTACKED, label="broken")
        failures = int(str(metrics["count_fail"]))
        if failures:
            fails = artifacts.tensor("attacked") & (artifacts.tensor("verdicts") == Verdict.ATTACK_FAILED)
            given_up = int(artifacts.tensor("queries")[fails].min())
            axes.axvline(
                given_up, color=style.GREY, linestyle=":", label=f"{failures} given up, the first after {given_up}"
            )
        axes.set(xscale="log", xlabel="queries per image", ylabel="success rate", ylim=(0, 1.02), title=artifacts.name)
        axes.legend(loc="upper left")
        return figure


@dataclass(frozen=True)
class SuccessCurvesVisualiser(Visualiser):
    """The curves of several assessments in one figure; drawn for the summary, from what they found."""

    assessments: tuple[Artifacts, ...] = ()
    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"queries"})
    title: ClassVar[str] = "Success rate against queries, of all counted attacks"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; lines differ in dash as well as in colour."""
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(6.5, 4))
        for line, one in enumerate(self.assessments):
            x, y = (_numbers(one.metrics[key]) for key in ("query_budgets", "success_rate_curve"))
            low, high = (_numbers(one.metrics[f"success_rate_curve_ci_{end}"]) for end in ("low", "high"))
            axes.fill_between(x, low, high, step="post", alpha=0.12, color=f"C{line}")
            axes.step(x, y, where="post", color=f"C{line}", linestyle=_DASHES[line % 4], label=_label(one))
        axes.set(xscale="log", xlabel="queries per image", ylabel="success rate", ylim=(0, 1.02))
        axes.legend(loc="upper left", fontsize=8)
        return figure


@register
@dataclass(frozen=True)
class QueryHistogramsVisualiser(_QueryVisualiser):
    """Histograms over the successes: queries, changed values (L0) and L2 distance, each with its median."""

    title: ClassVar[str] = "What a success took"

    def draw_queries(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        if not metrics["count_succ"]:
            return style.placeholder("No success: there is nothing to count.")
        figure, grid = pyplot.subplots(1, 3, figsize=(10, 3.2), sharey=True)
        panels = (
            ("queries", "queries", style.BLUE),
            ("l0_dists", "L0: changed values", style.ORANGE),
            ("l2_dists", "L2 distance", style.GREEN),
        )
        for axes, (key, label, colour) in zip(grid, panels, strict=True):
            median = float(str(metrics[f"{key}_succ_median"]))
            axes.hist(_numbers(metrics[f"{key}_succ"]), bins=_BINS, color=colour)
            axes.axvline(median, color="black", linestyle="--", linewidth=1, label=f"median {median:.4g}")
            axes.set(xlabel=label)
            axes.legend()
        grid[0].set_ylabel("broken samples")
        return figure


@register
@dataclass(frozen=True)
class QueryGalleryVisualiser(_QueryVisualiser):
    """Successes and failures: clean and perturbed image, each with prediction and confidence, and the queries spent."""

    max_successes: int = 5
    max_failures: int = 3
    scope: ClassVar[Literal["per_sample", "assessor"]] = "per_sample"
    embeds_clean_input: ClassVar[bool] = True
    title: ClassVar[str] = "Successes and failures"

    def draw_queries(self, artifacts: Artifacts) -> Figure:
        """The figure: successes from the cheapest to the dearest, then failures from the nearest to a success."""
        from matplotlib import pyplot

        chosen = self._chosen(artifacts)
        if not chosen:
            return style.placeholder("max_successes and max_failures leave nothing to show.")
        clean, perturbed = artifacts.tensor("clean_inputs"), artifacts.tensor("perturbed_inputs")
        broken = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
        figure, grid = pyplot.subplots(2, len(chosen), figsize=(1.75 * len(chosen), 4.6), squeeze=False)
        for (above, below), index in zip(grid.T, chosen, strict=True):
            show_image(above, clean[index])
            _caption(above, artifacts, "clean_logits", index, artifacts.shown_names[index])
            show_image(below, perturbed[index])
            spent = f"{int(artifacts.tensor('queries')[index])} queries"
            _caption(below, artifacts, "perturbed_logits", index, f"{spent}, {'broken' if broken[index] else 'failed'}")
            _frame(below, style.ATTACKED if broken[index] else style.VERDICT_COLOUR["attack_failed"])
        return figure

    def _chosen(self, artifacts: Artifacts) -> list[int]:
        import torch

        attacked, queries = artifacts.tensor("attacked"), artifacts.tensor("queries")
        broken = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
        successes = (attacked & broken).nonzero().flatten()
        successes = successes[queries[successes].argsort(stable=True)]
        # From the cheapest to the dearest, evenly over all of them.
        shown = torch.linspace(0, len(successes) - 1, min(self.max_successes, len(successes))).round().long()
        failures = (attacked & ~broken).nonzero().flatten()
        kept = artifacts.tensor("perturbed_logits")[failures].softmax(1)
        certainty = kept.gather(1, artifacts.tensor("targets")[failures][:, None])[:, 0]
        return [*successes[shown].tolist(), *failures[certainty.argsort(stable=True)][: self.max_failures].tolist()]


def _label(artifacts: Artifacts) -> str:
    """Name, algorithm and what bounds a success: curves of different bounds are not of one race."""
    region = artifacts.metadata.semantics.perturbation
    bound = f"{region.norm} ≤ {region.epsilon:.4g}" if region.epsilon is not None else "no bound"
    return f"{artifacts.name} ({artifacts.metadata.algorithm}, {bound})"


def _caption(axes: Axes, artifacts: Artifacts, key: str, index: int, text: str) -> None:
    logits: Tensor = artifacts.tensor(key)[index]
    top = int(logits.argmax())
    names = artifacts.class_names
    name = names[top] if top < len(names) else str(top)
    axes.set_title(f"{text}\n{name} ({float(logits.softmax(0)[top]):.1%})", fontsize=8, fontweight="normal")


def _frame(axes: Axes, colour: str) -> None:
    bare(axes)
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=2)
