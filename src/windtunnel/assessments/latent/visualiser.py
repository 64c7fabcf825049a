"""Base class of the figures of latent assessments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from windtunnel.assessments.attacks.figures import NOT_IMAGES as NOT_IMAGES
from windtunnel.assessments.figures.base import Visualiser
from windtunnel.core.contracts import AssessmentKind

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.records.artifacts import Artifacts

Side = Literal["reconstruction", "generation"]


@dataclass(frozen=True)
class LatentVisualiser(
    Visualiser,
    kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}),
    families=frozenset({"latent"}),
    needs=("latents", "No latent codes on disk: this assessment is not a latent one."),
):
    """A figure of a latent assessment."""


def known_side(of: str) -> None:
    """Raise ValueError for an option `of` that is no side."""
    if of not in {"reconstruction", "generation"}:
        raise ValueError(f"of: '{of}' is neither reconstruction nor generation")


def drawn_side(of: Side, artifacts: Artifacts) -> Side:
    """Return the side to draw: the generated images where no samples were encoded."""
    return of if len(artifacts.tensor("latents")) else "generation"


def made(artifacts: Artifacts) -> dict[str, Tensor]:
    """Return the tensors of the generated images."""
    return artifacts.tensors("generated")
