"""A figure of a plug-in."""

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.plugins import Artifacts, AssessmentKind, Bar, Visualiser, bars, register


@register
@dataclass(frozen=True)
class SignVisualiser(Visualiser):
    """How many values went up, and how many down."""

    kinds: ClassVar = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    title: ClassVar = "Signs of the changes"

    def draw(self, artifacts: Artifacts):
        """A bar for each sign."""
        change = (artifacts.tensor("perturbed_inputs") - artifacts.tensor("clean_inputs")).sign()
        shares = {
            name: float((change == sign).double().mean()) for name, sign in (("down", -1), ("same", 0), ("up", 1))
        }
        rows = [Bar(name, share, "accent") for name, share in shares.items()]
        return [bars(rows, "share of all values", "Signs of the changes.")]
