"""A figure of a plug-in."""

from dataclasses import dataclass
from typing import ClassVar

from matplotlib import pyplot

from windtunnel.plugins import Artifacts, AssessmentKind, Visualiser, register


@register
@dataclass(frozen=True)
class SignVisualiser(Visualiser):
    """How many values went up, and how many down."""

    kinds: ClassVar = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    title: ClassVar = "Signs of the changes"

    def draw(self, artifacts: Artifacts):
        """A bar for each sign."""
        change = (artifacts.tensor("perturbed_inputs") - artifacts.tensor("clean_inputs")).sign()
        figure, axes = pyplot.subplots(figsize=(4, 3))
        axes.bar(["down", "same", "up"], [int((change == sign).sum()) for sign in (-1, 0, 1)])
        return figure
