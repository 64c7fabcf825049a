"""The robustness sandwich: the state of all samples at each budget, with the intervals of both ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.assessments.figures import scene
from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.plots import WIDTH, percent
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.sample_states import SampleState
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import Rate, number
from windtunnel.records.sandwich import Layer, layers_in

# The states in the order of a bar, each with the role of its colour.
ROLES = {
    SampleState.CERTIFIED: "certified",
    SampleState.SURVIVED: "survived",
    SampleState.NOT_ATTACKED: "unknown",
    SampleState.BROKEN: "broken",
    SampleState.MISCLASSIFIED: "wrong",
}


@dataclass(frozen=True, slots=True)
class BudgetBar:
    """One budget: the share of all samples in each state, in [0, 1], adding up to 1, and the rates of both ends.

    drawn: the number of samples that the rates are of, where those are not all; empty text for all.
    """

    budget: str
    shares: Mapping[SampleState, float]
    certified: Rate | None = None
    worst_case: Rate | None = None
    drawn: str = ""


def sandwich(layers: Sequence[BudgetBar], page: float = WIDTH) -> scene.Scene:
    """Draw a bar per budget; the whisker below it is the interval of certified accuracy, the one above of the worst case."""
    step, bar, top = 44.0, 22.0, 8.0
    x_left = 14 + max(scene.text_width(text, 10) for layer in layers for text in (layer.budget, layer.drawn))
    width = page - x_left - 14
    marks: list[scene.Mark] = []
    for i, layer in enumerate(layers):
        y, x = top + i * step + 7, x_left
        middle = y + bar / 2 + (-2.5 if layer.drawn else 3.5)
        marks.append(scene.Label(x_left - 8, middle, layer.budget, "ink", 10, "end", bold=i == 0))
        if layer.drawn:
            marks.append(scene.Label(x_left - 8, middle + 11, layer.drawn, "soft", 8.5, "end"))
        for state, role in ROLES.items():
            share = layer.shares[state]
            if share <= 0.0005:
                continue
            wide = width * share
            part = scene.Rect(x, y, wide, bar, role, f"{layer.budget}, {state.words}: {share:.1%}")
            marks += scene.part_of_bar(part, f"{share:.1%}", 9.5)
            x += wide
        for rate, level in ((layer.worst_case, y - 4), (layer.certified, y + bar + 4)):
            if rate and rate.limits:
                low, high = ((x_left + width * limit, level) for limit in rate.limits)
                marks += [
                    *scene.whisker(low, high, cap=2.5),
                    scene.Dot(x_left + width * rate.value, level, 2, "ink", str(rate)),
                ]
    bottom = top + len(layers) * step
    for tick in (0, 0.25, 0.5, 0.75, 1):
        marks.append(scene.Line(((x_left + tick * width, bottom - 4), (x_left + tick * width, bottom)), "soft", 0.8))
        marks.append(scene.Label(x_left + tick * width, bottom + 10, percent(tick), "soft", 8.5, "middle"))
    key, height = scene.legend([(role, state.meaning) for state, role in ROLES.items()], 8, bottom + 22, page - 8)
    note = "Bars: all samples. Whiskers: 95 % intervals, of worst-case accuracy above a bar, of certified accuracy below it"
    partial = ", over the attacked samples." if any(layer.drawn for layer in layers) else "."
    parts = scene.wrapped(note + partial, page - 12, 8.5)
    marks += [scene.Label(8, bottom + height + 30 + 11 * k, part, "soft", 8.5) for k, part in enumerate(parts)]
    return scene.Scene(page, bottom + height + 25 + 11 * len(parts), (*marks, *key), _in_words(layers))


def _in_words(layers: Sequence[BudgetBar]) -> str:
    return "; ".join(
        f"{layer.budget}: " + ", ".join(f"{state.words} {layer.shares[state]:.1%}" for state in ROLES)
        for layer in layers
    )


def budget_bars(summary: Artifacts) -> list[BudgetBar]:
    """Return the bars of a summary, in its order; none for any other assessment. Raises UserError where its sandwich does not fit."""
    return [
        BudgetBar(
            layer.budget,
            _shares(layer, number(summary.metrics, "clean_accuracy")),
            layer.certified,
            layer.worst_case,
            f"{layer.n_attacked} of {layer.n} attacked" if layer.n_attacked < layer.n else "",
        )
        for layer in layers_in(summary.metrics)
    ]


def _shares(layer: Layer, clean: float) -> dict[SampleState, float]:
    """Return the share of each state; a summary of an older version has rates alone, which count all samples as attacked."""
    if layer.states:
        return {state: layer.states[state] / max(1, layer.n) for state in ROLES}
    certified = layer.certified.value if layer.certified else 0.0
    worst = max(layer.worst_case.value if layer.worst_case else clean, certified)
    clean = max(clean, worst)
    return dict(zip(ROLES, (certified, worst - certified, 0.0, clean - worst, 1 - clean), strict=True))


@register
@dataclass(frozen=True)
class SandwichVisualiser(
    Visualiser,
    kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}),
    families=frozenset({"summary"}),
    title="Robustness sandwich per budget",
):
    """A bar per budget: the samples that are certified, survived, not attacked, broken and misclassified."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart."""
        if not (bars := budget_bars(artifacts)):
            raise NothingToDraw("No sandwich: this is not the summary of a run.")
        return [sandwich(bars)]
