"""Security curves: upper bounds by attacks and lower bounds by certificates against epsilon."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.plots import Series, lines, plain
from windtunnel.assessments.figures.scene import ATTACK_CURVES, CERTIFICATE_CURVES, Scene, curve_colour
from windtunnel.core.contracts import AssessmentKind
from windtunnel.evaluation.summary.security import SecurityCurve, read_curves
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import Rate
from windtunnel.records.sandwich import Layer, layers_in

# An end of the sandwich at one budget.
End = Callable[[Layer], Rate | None]
WORST_CASE: End = attrgetter("worst_case")
CERTIFIED: End = attrgetter("certified")
_ENDS = ((WORST_CASE, "worst case of all assessments", "ink"), (CERTIFIED, "certified by any", "soft"))


def security_charts(
    curves: Sequence[SecurityCurve], layers: Sequence[Layer], samples: int
) -> Iterator[tuple[str, Scene]]:
    """(norm, chart) of each norm: the curves under it, and the ends of the sandwich at its budgets; `samples`: of the run."""
    for norm in dict.fromkeys(curve.norm for curve in curves):
        mine = [curve for curve in curves if curve.norm == norm]
        sides = [[c for c in mine if c.certified is certified] for certified in (False, True)]
        drawn = [line for side in sides for i, curve in enumerate(side) for line in _series(curve, i, samples)]
        # Points without a line: between two budgets nothing was measured.
        for end, title, role in _ENDS:
            points, limits = end_at_budgets(layers, norm, end)
            if points:
                drawn.append(Series(title, role, points, limits, line=False))
        top = max(x for series in drawn for x, _ in series.points)
        alt = f"Accuracy against epsilon under {norm}, up to {plain(top)}."
        yield str(norm), lines(drawn, f"epsilon ({norm})", "accuracy", alt, (0, top), (0, 1))


def _series(curve: SecurityCurve, i: int, n: int) -> Iterator[Series]:
    """Yield a line where the curve is known between its points (in steps, or at the points of an epsilon grid), else its points."""
    title = f"{curve.name}, {'certified' if curve.certified else 'attacked'}"
    title += " (of the smoothed model)" if curve.smoothed else ""
    title += f", n = {curve.samples}" if curve.samples != n else ""
    title += f", at least: {curve.out_of_time} samples out of time" if curve.out_of_time else ""
    colour = curve_colour(CERTIFICATE_CURVES if curve.certified else ATTACK_CURVES, i)
    points = tuple(zip(curve.epsilons, curve.accuracy, strict=True))
    if curve.steps:
        corners = ((x, y) for (_, y), (x, _) in zip(points, points[1:], strict=False))
        stairs = tuple(p for pair in zip(points, (*corners, points[-1]), strict=True) for p in pair)
        yield Series(title, colour, stairs, dots=False)
        yield Series(title, colour, points, line=False, thin=True, named=False)
    else:
        limits = tuple(zip(curve.low, curve.high, strict=True))
        yield Series(title, colour, points, limits, dashed=curve.certified, line=len(points) > 1, thin=len(points) > 20)


def end_at_budgets(
    layers: Sequence[Layer], norm: str, end: End
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """(epsilon, rate) of an end of the sandwich at each budget of a norm, and the intervals where each has one."""
    points = [(layer.epsilon, rate) for layer in layers if layer.norm == norm and (rate := end(layer))]
    limits = [rate.limits for _, rate in points if rate.limits]
    return tuple((at, rate.value) for at, rate in points), tuple(limits) if len(limits) == len(points) else ()


@register
@dataclass(frozen=True)
class SecurityCurvesVisualiser(
    Visualiser,
    kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}),
    families=frozenset({"summary"}),
    title="Security curves: accuracy under attack, and certified accuracy",
):
    """Accuracy against epsilon, attacked from above and certified from below; a panel per norm. Drawn for the summary."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a chart per norm."""
        curves, layers = read_curves(artifacts.directory), layers_in(artifacts.metrics)
        if not curves:
            raise NothingToDraw("No assessment with an epsilon: there is no security curve.")
        return [chart for _, chart in security_charts(curves, layers, len(artifacts.sample_names))]
