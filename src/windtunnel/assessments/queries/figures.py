"""Figures of query-counted attacks: success against queries, histograms of query counts, and a gallery."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.attacks.figures import NOT_IMAGES
from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.plots import Series, binned, columns, lines, measured, plain
from windtunnel.assessments.figures.scene import ATTACK_CURVES, curve_colour
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.transformations import epsilon_text
from windtunnel.records.metadata import number, numbers

if TYPE_CHECKING:
    from windtunnel.assessments.figures.scene import Scene
    from windtunnel.records.artifacts import Artifacts

NO_QUERIES = "No query counts on disk: this assessment is not one of `queries`."
_BINS = 20


@dataclass(frozen=True)
class _QueryVisualiser(Visualiser, kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}), families=frozenset({"queries"})):
    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return the figure of an attack with at least one attacked sample."""
        if "queries" not in artifacts.data:
            raise NothingToDraw(NO_QUERIES)
        if not artifacts.tensor("attacked").any():
            raise NothingToDraw("No sample was left to attack.")
        return self.draw_queries(artifacts)

    @abstractmethod
    def draw_queries(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return the panels to draw."""


@register
@dataclass(frozen=True)
class SuccessAgainstQueriesVisualiser(_QueryVisualiser, essential=True, title="Success rate against queries"):
    """Share of the attacked samples that broke within a number of queries, with its interval."""

    def draw_queries(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        curve = _curve(artifacts, "images broken within so many queries, 95 % band", "broken")
        given_up, failures = "", int(number(artifacts.metrics, "count_fail"))
        if failures:
            fails = artifacts.tensor("attacked") & (artifacts.tensor("verdicts") == Verdict.ATTACK_FAILED)
            given_up = f"; {failures} given up, the first after {int(artifacts.tensor('queries')[fails].min())}"
        return [_success([curve], given_up)]


@dataclass(frozen=True)
class SuccessCurvesVisualiser(
    Visualiser,
    kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}),
    families=frozenset({"queries"}),
    title="Success rate against queries, of all counted attacks",
):
    """The curves of several assessments in one figure; drawn for the summary from their results."""

    assessments: tuple[Artifacts, ...] = ()

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        if not self.assessments:
            raise NothingToDraw(NO_QUERIES)
        curves = [_curve(a, _label(a), curve_colour(ATTACK_CURVES, i)) for i, a in enumerate(self.assessments)]
        if not (drawn := [curve for curve in curves if curve.points]):
            raise NothingToDraw("No sample was left to attack.")
        return [_success(drawn)]


def _curve(artifacts: Artifacts, label: str, colour: str) -> Series:
    return measured(artifacts.metrics, "query_budgets", "success_rate_curve", label, colour, thin=True)


def _success(curves: list[Series], given_up: str = "") -> Scene:
    most = max(x for curve in curves for x, _ in curve.points)
    ends = "; ".join(
        f"{curve.label}: {curve.points[-1][1]:.1%} within {plain(curve.points[-1][0])}" for curve in curves
    )
    return lines(
        curves,
        f"queries per image{given_up}",
        "attack success rate",
        f"Attack success rate against queries. {ends}.",
        (0, most),
    )


def _label(artifacts: Artifacts) -> str:
    """Return name, algorithm and bound of a success: curves with different bounds do not compare."""
    region = artifacts.metadata.semantics.perturbation
    bound = f"{region.norm} ≤ {epsilon_text(region.epsilon)}" if region.epsilon is not None else "no bound"
    return f"{artifacts.name} ({artifacts.metadata.algorithm}, {bound})"


@register
@dataclass(frozen=True)
class QueryHistogramsVisualiser(_QueryVisualiser, title="What a success took"):
    """Histograms over the successes: queries, changed values (L0) and L2 distance, each with its median."""

    def draw_queries(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a chart for each."""
        if not artifacts.metrics["count_succ"]:
            raise NothingToDraw("No success: there is nothing to count.")
        panels = (("queries", "queries of a success"), ("l0_dists", "values changed (L0)"), ("l2_dists", "L2 distance"))
        return [_histogram(artifacts, key, title) for key, title in panels]


def _histogram(artifacts: Artifacts, key: str, title: str) -> Scene:
    values, median = numbers(artifacts.metrics, f"{key}_succ"), number(artifacts.metrics, f"{key}_succ_median")
    counts, edges = binned(values, _BINS)
    alt = f"{title} of {len(values)} samples: median {plain(median)}, largest {plain(max(values))}."
    return columns(counts, edges, f"{title}; median {plain(median)}", alt, "broken")


@register
@dataclass(frozen=True)
class QueryGalleryVisualiser(
    _QueryVisualiser, scope="per_sample", embeds_clean_input=True, title="Successes and failures"
):
    """Successes and failures: clean and perturbed image, each with prediction and confidence, and the queries spent."""

    max_successes: int = 5
    max_failures: int = 3

    def draw_queries(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample: successes from the cheapest to the dearest, then failures from the nearest to a success."""
        from windtunnel.assessments.figures.pictures import picture, sheets

        artifacts = artifacts.pictured
        clean, perturbed = artifacts.tensor("clean_inputs"), artifacts.tensor("perturbed_inputs")
        if clean.ndim != 4:
            raise NothingToDraw(NOT_IMAGES)
        chosen = self._chosen(artifacts)
        if not chosen:
            raise NothingToDraw("max_successes and max_failures leave nothing to show.")
        broken, queries = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED, artifacts.tensor("queries")
        names = artifacts.shown_names
        spent = [f"{'broken' if broken[i] else 'failed'} after {int(queries[i])} queries" for i in chosen]
        before = [picture(clean[i], f"{names[i]}, clean", _sure(artifacts, "clean_logits", i)) for i in chosen]
        after = [
            picture(perturbed[i], f"{names[i]}, {title}", f"{title}: {_sure(artifacts, 'perturbed_logits', i)}")
            for i, title in zip(chosen, spent, strict=True)
        ]
        caption = f"{artifacts.name}: successes by increasing number of queries, then failures, with prediction and confidence"
        return sheets(caption, [names[i] for i in chosen], [("clean", before), ("perturbed", after)])

    def _chosen(self, artifacts: Artifacts) -> list[int]:
        from windtunnel.core.batches import evenly_spaced

        attacked, queries = artifacts.tensor("attacked"), artifacts.tensor("queries")
        broken = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
        successes = (attacked & broken).nonzero().flatten()
        successes = successes[queries[successes].argsort(stable=True)]
        # From the cheapest to the dearest, evenly over all of them.
        shown = evenly_spaced(len(successes), self.max_successes)
        failures = (attacked & ~broken).nonzero().flatten()
        probabilities = artifacts.tensor("perturbed_logits")[failures].softmax(1)
        certainty = probabilities.gather(1, artifacts.tensor("targets")[failures][:, None])[:, 0]
        return [*successes[shown].tolist(), *failures[certainty.argsort(stable=True)][: self.max_failures].tolist()]


def _sure(artifacts: Artifacts, key: str, index: int) -> str:
    """Return the answer by its name, and how sure the model is of it."""
    logits = artifacts.tensor(key)[index]
    top, names = int(logits.argmax()), artifacts.class_names
    return f"{names[top] if top < len(names) else top} ({float(logits.softmax(0)[top]):.1%})"
