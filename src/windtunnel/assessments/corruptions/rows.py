"""Registry rows of corruptions, and the request for a library's adapter. Quick to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Json, Randomness, ThreatModel

if TYPE_CHECKING:
    import numpy as np

    from windtunnel.params.corruptions import CorruptionEntry

CUSTOM = "custom"  # category of what is not ours


@dataclass(frozen=True, slots=True)
class CorruptionRow:
    """One corruption or suite of a library.

    category: `noise`, `blur` ..., by which accuracies are averaged. corruptions: names of the members of a suite.
    smallest_side: pixels that an image needs. needs_colour: True if grey images are corrupted as RGB and brought back.
    """

    algorithm: Algorithm
    category: str = CUSTOM
    corruptions: tuple[str, ...] = ()
    smallest_side: int = 1
    needs_colour: bool = False


@dataclass(frozen=True, slots=True)
class CorruptionRequest:
    """One image for the adapter of a library, which returns it corrupted, uint8 of the same shape.

    corruption: the library's name of it. image: uint8 (H, W, C), C 1 or 3, a copy. severity: 1 to 5. seed: all that
    randomness may depend on, in [0, 2**32). sample, class_name: id and class of the image. prepared: what `prepare` did to
    the samples (resize, crop ...).
    """

    corruption: str
    image: np.ndarray
    severity: int
    seed: int
    entry: CorruptionEntry
    sample: str = ""
    class_name: str = ""
    prepared: Mapping[str, Json] = field(default_factory=dict)


def corruption_algorithm(
    library: str, name: str, category: str = CUSTOM, randomness: Randomness = Randomness.SELF_SEEDED, summary: str = ""
) -> Algorithm:
    """Return the semantics of a corruption: the average case, drawn at random, which needs only the model's prediction."""
    return Algorithm(
        library=library,
        name=name,
        kind=AssessmentKind.STATISTICAL_SAMPLING,
        threat_model=ThreatModel.NOT_APPLICABLE,
        norm=None,
        categories=frozenset({"common_corruption", category}),
        randomness=randomness,
        requires=frozenset({Capability.FORWARD}),
        summary=summary,
    )
