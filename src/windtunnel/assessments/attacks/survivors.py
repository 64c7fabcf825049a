"""`on: {...}` of an attack: samples that other entries broke, with their adversarial examples, or certified."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.distances import DISTANCE, within
from windtunnel.core.errors import PrerequisiteError, UserError
from windtunnel.core.scratch import put_samples, sample_parts
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import PARAMETERS, transformation_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.regions import certified_samples
from windtunnel.records.storage import KEPT


@dataclass(frozen=True, slots=True)
class Prior:
    """Results of earlier entries for N samples: which are `broken`, by which inputs, logits and distances under every norm.

    Rows that are not broken are the clean ones. by: names of the attacks that were asked. pictured: bool (N,), whose inputs
    are known; of a sample whose image the earlier attack did not keep, `perturbed` is NaN. parameters: float32 (N, P) of the
    transformations that made them, the identity for none. certified: bool (N,), by the verifications `certified_by`.
    """

    broken: Tensor
    perturbed: Tensor
    logits: Tensor
    distances: Mapping[Norm, Tensor]
    pictured: Tensor
    parameters: Tensor
    certified: Tensor
    by: tuple[str, ...] = ()
    certified_by: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return a digest that changes with the examples, so that a checkpoint of other survivors is not continued."""
        digest = hashlib.sha256(self.broken.numpy().data)
        if self.by:
            for part in sample_parts(self.perturbed):
                digest.update(self.perturbed[part].contiguous().numpy().data)
        if self.certified_by:
            digest.update(self.certified.numpy().data)
        return digest.hexdigest()


def prior_of(
    where: str, entry: AttackEntry, subject: Subject, budget: PerturbationBudget, results: Mapping[str, Artifacts]
) -> Prior:
    """Return the samples that the entries named in `entry.on` broke, measured and evaluated, or certified within `budget`.

    Raises UserError where a result is missing, and for a targeted attack, whose objective the others did not have.
    """
    inputs = subject.dataset.inputs
    broken, pictured = (torch.full((len(inputs),), flag) for flag in (False, True))
    distances = {norm: torch.zeros(len(inputs)) for norm in (*DISTANCE, budget.norm)}
    transformation = transformation_of(budget.norm)
    identity = torch.tensor(transformation.identity if transformation else ())
    parameters = identity.expand(len(inputs), -1).clone()
    if entry.on is None:
        return Prior(broken, inputs, subject.clean_logits, distances, pictured, parameters, broken)
    if entry.target_classes is not None and entry.on.survivors_of:
        raise UserError(f"{where}.on: survivors of untargeted attacks mean nothing to a targeted one; remove one")
    perturbed, logits = scratch.copy_of(inputs), subject.clean_logits.clone()
    for reference in entry.on.references():
        if reference.name not in results:
            of = f"{reference.family}.{reference.name}"
            raise PrerequisiteError(f"{where}.{reference.key}: no result of {of} is given")
    for name in entry.on.survivors_of:
        artifacts = results[name]
        mine, theirs = artifacts.common_samples(subject.dataset.ids)
        if not len(mine):
            continue
        examples, answers = artifacts.tensor("perturbed_inputs"), _answers(subject, artifacts, theirs)
        # Of an image that is not there, its distance under the other norms cannot be measured later.
        norms = [*DISTANCE, budget.norm] if KEPT in artifacts.data else [budget.norm]
        measured = {norm: artifacts.distances(norm)[theirs] for norm in norms}
        wrong = ~subject.classifier.criterion.is_correct(answers, subject.dataset.targets[mine])
        inside = torch.ones_like(wrong) if budget.epsilon is None else within(measured[budget.norm], budget.epsilon)
        new = wrong & inside & subject.clean_correct[mine] & ~broken[mine]
        image = torch.full((len(artifacts.sample_names),), -1)
        image[artifacts.kept] = torch.arange(len(examples))
        attacked, their_images = mine[new], image[theirs[new]]
        has_image = their_images >= 0
        put_samples(perturbed, attacked[has_image], examples, their_images[has_image])
        perturbed[attacked[~has_image]] = torch.nan
        broken[attacked], logits[attacked], pictured[attacked] = True, answers[new], has_image
        for norm, sizes in measured.items():
            distances[norm][attacked] = sizes[new]
        for i, column in enumerate(transformation.names if transformation else ()):
            if PARAMETERS in artifacts.data and column in (table := artifacts.tensors(PARAMETERS)):
                parameters[attacked, i] = table[column][theirs[new]]
    shown = broken & pictured
    logits[shown] = subject.classifier.logits(perturbed[shown])
    certified = certified_samples(entry.on.uncertified_by, results, subject.dataset.ids, budget)
    by = tuple(entry.on.survivors_of), tuple(entry.on.uncertified_by)
    return Prior(broken, perturbed, logits, distances, pictured, parameters, certified, *by)


def _answers(subject: Subject, artifacts: Artifacts, indices: Tensor) -> Tensor:
    """Return logits of the examples at `indices`, (n, K): evaluated if the image was kept, else the stored ones."""
    examples = artifacts.tensor("perturbed_inputs")
    if KEPT not in artifacts.data:
        return subject.classifier.logits(scratch.samples_at(examples, indices))
    answers = artifacts.tensor("perturbed_logits").clone()
    answers[artifacts.kept] = subject.classifier.logits(examples)
    return answers[indices]
