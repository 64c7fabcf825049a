"""What the figures of latent assessments have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser
from windtunnel.core.contracts import AssessmentKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from windtunnel.core.artifacts import Artifacts

NOT_LATENT = "No latent codes on disk: this assessment is not a latent one."
NOT_IMAGES = "Not images: nothing to draw."
Side = Literal["reconstruction", "generation"]


@dataclass(frozen=True)
class LatentVisualiser(Visualiser):
    """A figure of a latent assessment; a placeholder where the artifacts are of another family."""

    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"latent"})

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder where the artifacts are of another family."""
        if "latents" not in artifacts.data:
            return style.placeholder(NOT_LATENT)
        return self.draw_latent(artifacts)

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure of a latent assessment."""
        raise NotImplementedError


def known_side(of: str) -> None:
    """Raise ValueError for an option `of` that is no side."""
    if of not in {"reconstruction", "generation"}:
        raise ValueError(f"of: '{of}' is neither reconstruction nor generation")


def drawn_side(of: Side, artifacts: Artifacts) -> Side:
    """The side to draw: the generated images where no samples were encoded."""
    return of if len(artifacts.tensor("latents")) else "generation"


def made(artifacts: Artifacts) -> dict[str, Tensor]:
    """The tensors of the generated images."""
    return cast("dict[str, Tensor]", artifacts.data["generated"])
