"""What the assessments prove about each sample: how far away an adversarial example is known, and how far none can be.

Every perturbed input on disk counts, whichever assessment found it and under whichever norm: its distance is measured
recomputed under the norm in question, so an L2 attack's example that lies inside the Linf budget breaks the sample there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.artifacts import Artifacts
from windtunnel.core.chunks import finite_samples, put_samples
from windtunnel.core.contracts import SMOOTHED_MODEL, AssessmentKind, Norm, Verdict
from windtunnel.core.distances import DISTANCE, within
from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Region:
    """A perturbation ball: norm and radius."""

    norm: Norm
    epsilon: float


@dataclass(frozen=True, slots=True)
class RegionEvidence:
    """What is known of N samples in one region.

    broken, certified: (N,) bool. broken_by, certified_by: (N,) int64, index of the assessment with the nearest
    example or the first certificate, NOBODY for none; misclassified clean samples are broken by NOBODY.
    distances: (N,) float32, to the nearest known example; inf for none, 0 for a misclassified clean sample.
    attacked, verified_at_all: (N,) bool, whether any assessment tried.
    """

    region: Region
    broken: Tensor
    broken_by: Tensor
    certified: Tensor
    certified_by: Tensor
    distances: Tensor
    attacked: Tensor
    examined: Tensor


def region_of(artifacts: Artifacts) -> Region | None:
    """The ball an assessment worked in; None where it has none (average case, no bound, no pixel norm)."""
    region = artifacts.metadata.semantics.perturbation
    if region.norm not in DISTANCE or region.epsilon is None:
        return None
    return Region(region.norm, region.epsilon)


def of_a_smoothed_model(artifacts: Artifacts) -> bool:
    """Whether the certificates are of the smoothed model: they neither prove nor contradict anything of the model."""
    return SMOOTHED_MODEL in artifacts.metadata.semantics.families


def in_latent_space(artifacts: Artifacts) -> bool:
    """Whether an assessment looked at decoded images: what it found says nothing of the pixels around a sample."""
    return artifacts.metadata.semantics.norm is Norm.LATENT_L2


def indices_of(artifacts: Artifacts, ids: Sequence[str]) -> Tensor:
    """Where the samples of an assessment stand among `ids`; int64 (n,). Raises UserError for a sample not there."""
    place = {name: i for i, name in enumerate(ids)}
    try:
        return torch.tensor([place[name] for name in artifacts.sample_names], dtype=torch.int64)
    except KeyError as error:
        raise UserError(
            f"{artifacts.directory}: sample {error} is not in the clean assessment: run dvc repro"
        ) from error


def examples_of(artifacts: Artifacts) -> Tensor:
    """Which samples have a perturbed input with another prediction than the target; (n,) bool."""
    if "perturbed_inputs" not in artifacts.data or "perturbed_predictions" not in artifacts.data:
        return torch.zeros(len(artifacts.tensor("targets")), dtype=torch.bool)
    predictions = artifacts.tensor("perturbed_predictions")
    images = torch.ones_like(
        predictions, dtype=torch.bool
    )  # of what was not kept, the prediction says whether there was one
    images[artifacts.kept] = finite_samples(artifacts.tensor("perturbed_inputs"))
    return (predictions >= 0) & images & (predictions != artifacts.tensor("targets"))


def _aimed_at(artifacts: Artifacts) -> Tensor:
    """Which samples an attack had a goal for; (n,) bool: a target class that is the label is none."""
    targets = artifacts.tensor("targets")
    if "target_classes" not in artifacts.data:
        return torch.ones(len(targets), dtype=torch.bool)
    return artifacts.tensor("target_classes") != targets


def region_evidence(region: Region, clean: Artifacts, assessments: Sequence[Artifacts]) -> RegionEvidence:
    """All that `assessments` know of the samples of `clean` inside `region`."""
    targets, ids = clean.tensor("targets"), clean.sample_names
    n = len(targets)
    misclassified = clean.tensor("clean_predictions") != targets
    distances = torch.full((n,), torch.inf).masked_fill(misclassified, 0)
    nearest_by, certified_by = (torch.full((n,), NOBODY) for _ in range(2))
    attacked, examined = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
    for index, artifacts in enumerate(assessments):
        kind = artifacts.kind
        ball = region_of(artifacts)
        if kind == AssessmentKind.STATISTICAL_SAMPLING or of_a_smoothed_model(artifacts) or in_latent_space(artifacts):
            continue
        indices = indices_of(artifacts, ids)
        same_norm = ball is not None and ball.norm is region.norm
        if same_norm and kind == AssessmentKind.EMPIRICAL_ATTACK:
            attacked[indices[_aimed_at(artifacts)]] = True
        if (
            same_norm
            and ball is not None
            and kind == AssessmentKind.FORMAL_VERIFICATION
            and ball.epsilon >= region.epsilon
        ):
            examined[indices] = True
            verified = artifacts.tensor("verdicts") == Verdict.VERIFIED
            first = verified & (certified_by[indices] == NOBODY)
            certified_by[indices[first]] = index
        found = examples_of(artifacts)
        if found.any():
            chosen = indices[found]
            measured = artifacts.distances(region.norm)[found]
            nearer = measured < distances[chosen]
            distances[chosen[nearer]] = measured[nearer]
            nearest_by[chosen[nearer]] = index
    broken = within(distances, region.epsilon)
    return RegionEvidence(
        region=region,
        broken=broken,
        broken_by=torch.where(broken, nearest_by, NOBODY),
        certified=certified_by != NOBODY,
        certified_by=certified_by,
        distances=distances,
        attacked=attacked,
        examined=examined,
    )


def nearest_examples(
    result: RegionEvidence, subject: Subject, assessments: Sequence[Artifacts]
) -> tuple[Tensor, Tensor, Tensor]:
    """(perturbed_inputs, perturbed_predictions, bool (N,)) of the nearest example inside the region; the clean ones for none.

    The last says whose example is there: NaN stands for one whose image was not kept (see `nearest_distances`).
    """
    inputs, predictions = scratch.copy_of(subject.dataset.inputs), subject.clean_predictions.clone()
    pictured = torch.ones(len(inputs), dtype=torch.bool)
    for index, artifacts in enumerate(assessments):
        mine = result.broken_by == index
        if not mine.any():
            continue
        indices = indices_of(artifacts, subject.dataset.ids)
        local = mine[indices]
        predictions[indices[local]] = artifacts.tensor("perturbed_predictions")[local]
        pictured[indices[local]] = False
        shown, images = indices[artifacts.kept], local[artifacts.kept].nonzero().flatten()
        put_samples(inputs, shown[images], artifacts.tensor("perturbed_inputs"), images)
        pictured[shown[images]] = True
    inputs[~pictured] = torch.nan
    return inputs, predictions, pictured


def nearest_distances(result: RegionEvidence, subject: Subject, assessments: Sequence[Artifacts]) -> dict[str, Tensor]:
    """How far the nearest example inside the region lies, under every norm, whether its image was kept or not; (N,), 0 for none."""
    found = {norm: torch.zeros(len(result.broken)) for norm in DISTANCE}
    for index, artifacts in enumerate(assessments):
        mine = result.broken_by == index
        if mine.any():
            local = mine[(indices := indices_of(artifacts, subject.dataset.ids))]
            for norm, sizes in found.items():
                sizes[indices[local]] = artifacts.distances(norm)[local]
    return {norm.value: sizes for norm, sizes in found.items()}
