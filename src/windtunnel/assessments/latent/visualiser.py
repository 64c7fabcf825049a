"""Base class of the figures of latent assessments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from windtunnel.assessments.attacks.figures import NOT_IMAGES as NOT_IMAGES
from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser
from windtunnel.core.contracts import AssessmentKind

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.records.artifacts import Artifacts

NOT_LATENT = "No latent codes on disk: this assessment is not a latent one."
Side = Literal["reconstruction", "generation"]


@dataclass(frozen=True)
class LatentVisualiser(Visualiser):
    """A figure of a latent assessment."""

    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"latent"})

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return the figure of a latent assessment."""
        if "latents" not in artifacts.data:
            raise NothingToDraw(NOT_LATENT)
        return self.draw_latent(artifacts)

    @abstractmethod
    def draw_latent(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return the curves or pictures to draw."""


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
