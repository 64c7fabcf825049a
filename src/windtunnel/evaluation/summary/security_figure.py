"""Security curves of all assessments of a run on the same axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from windtunnel.core.artifacts import Artifacts
    from windtunnel.evaluation.summary.security import SecurityCurve

_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP"
_ATTACKED = (style.VERMILION, style.ORANGE, style.PURPLE, style.GREY)
_CERTIFIED = (style.GREEN, style.BLUE, style.SKY)


@register
@dataclass(frozen=True)
class SecurityCurvesVisualiser(Visualiser):
    """Accuracy against epsilon, attacked from above and certified from below; a panel per norm. Drawn for the summary."""

    assessments: tuple[Artifacts, ...] = ()
    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"summary"})
    title: ClassVar[str] = "Security curves: accuracy left by attacks, and verified by certificates"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder where no assessment has an epsilon."""
        from matplotlib import pyplot

        from windtunnel.evaluation.summary.security import security_curves

        curves = security_curves(self.assessments)
        norms = list(dict.fromkeys(curve.norm for curve in curves))
        if not norms:
            return style.placeholder("No assessment with an epsilon: there is no security curve.")
        figure, grid = pyplot.subplots(1, len(norms), figsize=(1 + 5.5 * len(norms), 4.6), squeeze=False, sharey=True)
        for axes, norm in zip(grid[0], norms, strict=True):
            # Curves first: they have the first colours, and points stand on them.
            mine = sorted((c for c in curves if c.norm is norm), key=lambda curve: len(curve.epsilons) == 1)
            axes.axhline(
                float(str(artifacts.metrics["clean_accuracy"])), color=style.GREY, linewidth=0.8, label="clean"
            )
            for certified, palette in ((False, _ATTACKED), (True, _CERTIFIED)):
                for i, curve in enumerate(c for c in mine if c.certified is certified):
                    of = "" if curve.samples == len(artifacts.tensor("targets")) else f", n = {curve.samples}"
                    _draw(axes, curve, palette[i % len(palette)], i, of)
            axes.set(xlabel=f"{norm} epsilon", ylim=(0, 1.02), xlim=(0, 1.05 * max(curve.reach for curve in mine)))
            axes.legend(fontsize=8)
        grid[0][0].set_ylabel("accuracy")
        return figure


def _draw(axes: Axes, curve: SecurityCurve, colour: str, index: int, of: str) -> None:
    word = "verified, smoothed model" if curve.smoothed else "verified" if curve.certified else "attacked"
    label = f"{curve.name} ({word}{of})"
    marker = _MARKERS[index % len(_MARKERS)]
    if len(curve.epsilons) == 1:
        errors = [[curve.accuracy[0] - curve.low[0]], [curve.high[0] - curve.accuracy[0]]]
        face = "white" if curve.certified else colour
        axes.errorbar(curve.epsilons, curve.accuracy, yerr=errors, fmt=marker, color=colour, markerfacecolor=face, capsize=2,
                      markersize=6, label=label)  # fmt: skip
        return
    step: Literal["post"] | None = "post" if curve.steps else None
    axes.fill_between(curve.epsilons, curve.low, curve.high, color=colour, alpha=0.12, linewidth=0, step=step)
    axes.plot(curve.epsilons, curve.accuracy, color=colour, linestyle=_DASHES[index % len(_DASHES)], linewidth=1.8,
              drawstyle="steps-post" if curve.steps else "default", label=label)  # fmt: skip
