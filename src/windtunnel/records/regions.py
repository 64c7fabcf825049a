"""Regions that results are about: perturbation balls and transformations, and which of them one result covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core.contracts import SMOOTHED_MODEL, Json, Norm, PerturbationBudget, Verdict
from windtunnel.core.distances import DISTANCE
from windtunnel.core.transformations import Transformation, transformation_of
from windtunnel.records.artifacts import Artifacts


@dataclass(frozen=True, slots=True)
class PerturbationBall:
    """A perturbation ball: norm and radius, or a transformation, by its measure, and the share of its ranges."""

    norm: Norm
    epsilon: float

    @property
    def transformation(self) -> Transformation | None:
        """The transformation whose parameters are measured; None for a ball."""
        return transformation_of(self.norm)

    def covers(self, other: PerturbationBall) -> bool:
        """Return True if every point of `other` is known to be one of this region."""
        mine, theirs = self.transformation, other.transformation
        if mine and theirs:
            return mine.covers(theirs, self.epsilon, other.epsilon)
        return self.norm is other.norm and self.epsilon * (1 + 1e-9) >= other.epsilon


def region_of(artifacts: Artifacts) -> PerturbationBall | None:
    """Return the ball around the clean samples that an assessment worked in.

    None where it has none: average case, no bound, no pixel norm, corrupted images in place of the clean ones.
    """
    return None if artifacts.metadata.semantics.perturbation.is_around_corrupted else _ball_of(artifacts)


def _ball_of(artifacts: Artifacts) -> PerturbationBall | None:
    region = artifacts.metadata.semantics.perturbation
    if region.norm is None or region.epsilon is None or not (region.norm in DISTANCE or transformation_of(region.norm)):
        return None
    return PerturbationBall(region.norm, region.epsilon)


def of_a_smoothed_model(artifacts: Artifacts) -> bool:
    """Return True if the certificates are of the smoothed model: they say nothing about the model itself."""
    return SMOOTHED_MODEL in artifacts.metadata.semantics.families


def without_attack(metrics: Mapping[str, Json]) -> dict[str, Json]:
    """Return the metrics of an entry on corrupted images: what is right without an attack is `corrupted_accuracy` there."""
    return {key.replace("clean_accuracy", "corrupted_accuracy"): value for key, value in metrics.items()}


def certified_samples(
    names: Sequence[str], results: Mapping[str, Artifacts], ids: Sequence[str], budget: PerturbationBudget
) -> Tensor:
    """Return which of the samples `ids` one of the verifications `names` certified at `budget` or beyond; (N,) bool.

    The balls are around the images of whoever asks: params refuse an entry that builds on one of other images.
    """
    certified = torch.zeros(len(ids), dtype=torch.bool)
    for name in names if budget.epsilon is not None else ():
        assert budget.epsilon is not None
        region = _ball_of(results[name])
        if region and region.covers(PerturbationBall(budget.norm, budget.epsilon)):
            mine, theirs = results[name].common_samples(ids)
            certified[mine] |= results[name].tensor("verdicts")[theirs] == Verdict.VERIFIED
    return certified
