"""The robustness sandwich as a picture: what is verified, what is not known, what is broken, per budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from windtunnel.core.artifacts import Artifacts


@register
@dataclass(frozen=True)
class SandwichVisualiser(Visualiser):
    """A bar per budget: certified accuracy, the unknown band up to worst-case accuracy, the broken, the misclassified."""

    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"summary"})
    title: ClassVar[str] = "Robustness sandwich per budget"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure, from `metrics.sandwich` of the summary; a placeholder for any other assessment."""
        from matplotlib import pyplot

        layers = artifacts.metrics.get("sandwich")
        if not isinstance(layers, list):
            return style.placeholder("No sandwich: this is not the summary of a run.")
        clean = float(str(artifacts.metrics["clean_accuracy"]))
        figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.55 * len(layers)))
        for row, layer in enumerate(layers):
            assert isinstance(layer, dict)
            certified = float(layer.get("certified_accuracy", 0.0))
            worst = float(layer.get("worst_case_accuracy", clean))
            edges = [0.0, certified, max(worst, certified), max(clean, worst), 1.0]
            parts = (
                ("verified: no attack can succeed", style.CERTIFIED, ""),
                ("not known: neither verified nor broken", style.UNKNOWN, ".."),
                ("broken by an attack", style.ATTACKED, "//"),
                ("misclassified without any attack", "#3b3b3b", ""),
            )
            for (label, colour, hatch), left, right in zip(parts, edges, edges[1:], strict=False):
                axes.barh(row, right - left, left=left, height=0.62, color=colour, hatch=hatch, edgecolor="white", linewidth=0,
                          label=label if row == 0 else None)  # fmt: skip
                if right - left > 0.06:
                    axes.text(
                        (left + right) / 2,
                        row,
                        f"{right - left:.1%}",
                        ha="center",
                        va="center",
                        color="white",
                        weight="bold",
                    )
            for key, level in (("worst_case_accuracy", row - 0.38), ("certified_accuracy", row + 0.38)):
                if f"{key}_ci_low" in layer:
                    ends = [float(layer[f"{key}_ci_{end}"]) for end in ("low", "high")]
                    axes.plot(ends, [level, level], "|-", color="black", linewidth=1, markersize=5)
        axes.set_yticks(range(len(layers)), [f"{layer['norm']} ≤ {layer['epsilon']:.4g}" for layer in layers])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel(
            f"share of the {artifacts.metrics['n_samples']} assessed samples; whiskers: 95 % intervals, above the bar of "
            "worst-case accuracy, below it of certified accuracy",
            fontsize=8,
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(visible=False)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        return figure
