"""The evidence of all assessments about each sample at one budget: broken, certified, attacked without success.

Every perturbed input on disk counts, whichever assessment found it and under whichever norm: its distance is
measured under the norm in question, so an L2 attack's example that lies inside the Linf budget breaks the sample there too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import AssessmentKind, Norm, Verdict
from windtunnel.core.distances import DISTANCE, within
from windtunnel.core.errors import UserError
from windtunnel.core.sample_states import sample_states
from windtunnel.core.scratch import finite_samples, put_samples
from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.regions import PerturbationBall, of_a_smoothed_model, region_of
from windtunnel.records.sandwich import DrawRecord

NOBODY = -1


@dataclass(frozen=True, slots=True)
class RegionEvidence:
    """The evidence about N samples in one region.

    misclassified: (N,) bool, wrong on the clean input. broken: (N,) bool, classified correctly and an adversarial
    example inside the region is known. certified: (N,) bool, verified for this model. drawn: (N,) bool, the union of
    `draws`, those of the attacks whose search region is this one. states: (N,) int64, codes of `SampleState`.
    broken_by, certified_by: (N,) int64, index of the assessment with the nearest example or the first certificate,
    NOBODY for none. distances: (N,) float32, to the nearest known example; inf for none, 0 for a misclassified sample.
    examined: (N,) bool, sent to a verifier at this region or a larger one.
    """

    region: PerturbationBall
    misclassified: Tensor
    broken: Tensor
    broken_by: Tensor
    certified: Tensor
    certified_by: Tensor
    distances: Tensor
    drawn: Tensor
    draws: tuple[DrawRecord, ...]
    examined: Tensor
    states: Tensor

    @property
    def incorrect(self) -> Tensor:
        """True for samples that are misclassified or broken; bool (N,)."""
        return self.misclassified | self.broken


def of_another_function(artifacts: Artifacts, clean: Artifacts) -> bool:
    """Return True if an assessment is of another function than the model, or around other images: it neither proves nor contradicts.

    That is a smoothed model, one with another digest (a float twin of a deployed file, other preprocessing), or corrupted images.
    """
    if artifacts.metadata.semantics.perturbation.is_around_corrupted:
        return True
    digests = {a.metadata.provenance.model_digest for a in (artifacts, clean)}
    return of_a_smoothed_model(artifacts) or len(digests) > 1


def in_latent_space(artifacts: Artifacts) -> bool:
    """Return True if an assessment perturbs latent codes: its examples say nothing about the pixels around a sample."""
    return artifacts.metadata.semantics.norm is Norm.LATENT_L2


def indices_of(artifacts: Artifacts, ids: Sequence[str]) -> Tensor:
    """Return the positions of an assessment's samples in `ids`; int64 (n,). Raises UserError for a sample not there."""
    position_of = {name: i for i, name in enumerate(ids)}
    try:
        return torch.tensor([position_of[name] for name in artifacts.sample_names], dtype=torch.int64)
    except KeyError as error:
        raise UserError(
            f"{artifacts.directory}: sample {error} is not in the clean assessment: run dvc repro"
        ) from error


def examples_of(artifacts: Artifacts) -> Tensor:
    """Return which samples have a perturbed input that the model does not classify as the target; (n,) bool.

    A prediction of -1 means logits that are not finite, or no counterexample: the verdict tells the two apart.
    """
    if "perturbed_inputs" not in artifacts.data or "perturbed_predictions" not in artifacts.data:
        return torch.zeros(len(artifacts.tensor("targets")), dtype=torch.bool)
    predictions, verdicts = artifacts.tensor("perturbed_predictions"), artifacts.tensor("verdicts")
    invalid = torch.isin(verdicts, torch.tensor([int(Verdict.ATTACK_SUCCEEDED), int(Verdict.FALSIFIED)]))
    if "perturbed_logits" in artifacts.data:  # of a targeted attack, which these do not make a success
        invalid |= ~artifacts.tensor("perturbed_logits").isfinite().all(1)
    # Of an image that was not kept, the prediction and the verdict say whether there was one.
    finite = torch.ones_like(predictions, dtype=torch.bool)
    finite[artifacts.kept] = finite_samples(artifacts.tensor("perturbed_inputs"))
    return ((predictions >= 0) | invalid) & finite & (predictions != artifacts.tensor("targets"))


def _assigned(artifacts: Artifacts) -> Tensor:
    """Return which of its samples belong to the draw of an attack; (n,) bool.

    Samples that it skipped as misclassified or broken already do. Those whose target class is their label do not, nor
    those whose attack ended in an error: nothing was tried on them.
    """
    assigned = artifacts.tensor("verdicts") != Verdict.ERROR
    if "target_classes" in artifacts.data:
        assigned &= artifacts.tensor("target_classes") != artifacts.tensor("targets")
    return assigned


def searches(artifacts: Artifacts, region: PerturbationBall) -> bool:
    """Return True if an attack's search region is `region`: the same ball, or the smallest norm without a lower cap."""
    semantics = artifacts.metadata.semantics
    ball = semantics.perturbation
    if artifacts.kind is not AssessmentKind.EMPIRICAL_ATTACK or ball.norm is not region.norm:
        return False
    if semantics.minimum_norm and (ball.epsilon is None or ball.epsilon >= region.epsilon):
        return True
    epsilons = [] if ball.epsilon is None else [ball.epsilon]
    if "epsilons" in artifacts.data:  # a sweep is an attack at each epsilon of its grid, float32
        epsilons += artifacts.tensor("epsilons").tolist()
    return any(math.isclose(epsilon, region.epsilon, rel_tol=1e-6) for epsilon in epsilons)


def _selection_of(artifacts: Artifacts) -> str:
    """Return how the entry selected its samples among the assessed ones: `all`, `first`, `random` or `stratified`."""
    selected = artifacts.metadata.semantics.sample_selection.get("then")
    return str(selected.get("selection", "first")) if isinstance(selected, Mapping) else "all"


def region_evidence(region: PerturbationBall, clean: Artifacts, assessments: Sequence[Artifacts]) -> RegionEvidence:
    """Collect what `assessments` know of the samples of `clean` inside `region`."""
    targets, ids = clean.tensor("targets"), clean.sample_names
    n = len(targets)
    misclassified = clean.tensor("clean_predictions") != targets
    distances = torch.full((n,), torch.inf).masked_fill(misclassified, 0)
    nearest_by, certified_by = (torch.full((n,), NOBODY) for _ in range(2))
    drawn, examined = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
    draws: list[DrawRecord] = []
    for index, artifacts in enumerate(assessments):
        kind, ball = artifacts.kind, region_of(artifacts)
        if kind == AssessmentKind.STATISTICAL_SAMPLING or in_latent_space(artifacts):
            continue
        if of_another_function(artifacts, clean):
            continue
        indices = indices_of(artifacts, ids)
        if searches(artifacts, region) and (assigned := indices[_assigned(artifacts)]).numel():
            drawn[assigned] = True
            family, selection = artifacts.metadata.family or "attacks", _selection_of(artifacts)
            draws.append(DrawRecord(name=artifacts.name, family=family, n=len(assigned), selection=selection))
        if kind == AssessmentKind.FORMAL_VERIFICATION and ball is not None and ball.covers(region):
            examined[indices] = True
            verified = artifacts.tensor("verdicts") == Verdict.VERIFIED
            first = verified & (certified_by[indices] == NOBODY)
            certified_by[indices[first]] = index
        examples = examples_of(artifacts)
        if examples.any():
            chosen = indices[examples]
            measured = artifacts.distances(region.norm)[examples]
            nearer = measured < distances[chosen]
            distances[chosen[nearer]] = measured[nearer]
            nearest_by[chosen[nearer]] = index
    broken = within(distances, region.epsilon) & ~misclassified
    certified = certified_by != NOBODY
    return RegionEvidence(
        region=region,
        misclassified=misclassified,
        broken=broken,
        broken_by=torch.where(broken, nearest_by, NOBODY),
        certified=certified,
        certified_by=certified_by,
        distances=distances,
        drawn=drawn,
        draws=tuple(draws),
        examined=examined,
        states=sample_states(misclassified, broken, certified, drawn),
    )


def nearest_examples(
    result: RegionEvidence, subject: Subject, assessments: Sequence[Artifacts]
) -> tuple[Tensor, Tensor, Tensor]:
    """(perturbed_inputs, perturbed_predictions, bool (N,)) of the nearest example inside the region; the clean ones for none.

    The last says whose example is there: NaN stands for one whose image was not kept (see `nearest_distances`).
    """
    inputs, predictions = scratch.copy_of(subject.dataset.inputs), subject.clean_predictions.clone()
    pictured = torch.ones(len(inputs), dtype=torch.bool)
    for artifacts, indices, local in _breaking(result, subject, assessments):
        predictions[indices[local]] = artifacts.tensor("perturbed_predictions")[local]
        pictured[indices[local]] = False
        shown, images = indices[artifacts.kept], local[artifacts.kept].nonzero().flatten()
        put_samples(inputs, shown[images], artifacts.tensor("perturbed_inputs"), images)
        pictured[shown[images]] = True
    inputs[~pictured] = torch.nan
    return inputs, predictions, pictured


def nearest_distances(result: RegionEvidence, subject: Subject, assessments: Sequence[Artifacts]) -> dict[str, Tensor]:
    """Return the distance of the nearest example inside the region, by norm, stored images or not; (N,), 0 for none."""
    nearest = {norm: torch.zeros(len(result.broken)) for norm in DISTANCE}
    for artifacts, indices, local in _breaking(result, subject, assessments):
        for norm, sizes in nearest.items():
            sizes[indices[local]] = artifacts.distances(norm)[local]
    return {norm.value: sizes for norm, sizes in nearest.items()}


def _breaking(
    result: RegionEvidence, subject: Subject, assessments: Sequence[Artifacts]
) -> Iterator[tuple[Artifacts, Tensor, Tensor]]:
    """Yield the assessments with a nearest example, the indices of their samples, and which of these it is of; (n,) bool."""
    for index, artifacts in enumerate(assessments):
        mine = result.broken_by == index
        if mine.any():
            indices = indices_of(artifacts, subject.dataset.ids)
            yield artifacts, indices, mine[indices]
