"""Check a verification before anything is computed."""

import math
import time
from dataclasses import replace

import torch
from torch import nn

from windtunnel.assessments.attacks.preflight import check_image, check_transformation
from windtunnel.assessments.catalogue import find_algorithm, params_as
from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical, canonical_subject
from windtunnel.assessments.verification.cascade.step import Trial, library_of_step, step_of
from windtunnel.assessments.verification.cascade.steps import options_read, radius_steps
from windtunnel.assessments.verification.rows import VerifierRow
from windtunnel.assessments.verification.table import ROWS
from windtunnel.assessments.verification.transformations.form_network import FormNetwork
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, OutOfTimeError, UserError, unknown_word
from windtunnel.core.subject import subject_of
from windtunnel.core.transformations import transformation_of
from windtunnel.params.entry import Block, Budget
from windtunnel.params.verification import Radius, VerificationEntry

TRY_SECONDS = 3.0  # for trying one sample in all steps of an entry
_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def preflight(
    where: str, entry: VerificationEntry, budget: Budget, classifier: Classifier, dataset: Dataset
) -> list[str]:
    """Raise UserError or IncompatibleError, in one line, for a verification that cannot run or would mean nothing.

    Gives a line for each thing that will be done otherwise than asked for.
    """
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "verification")
    classifier.require(algorithm, where)
    row = ROWS[algorithm.key]
    _check_top_k(where, entry, row, classifier)
    if row.assess is not None and entry.radius:
        raise UserError(f"{where}.radius: {algorithm.name} gives every sample its radius; remove it")
    params_as(row.params or Block, entry, where)
    region = entry.budget.over(budget)
    check_transformation(where, f"{entry.library} {algorithm.name}", region.norm, transforms=row.transforms)
    if row.transforms:
        _check_certificate(where, entry, region, classifier, dataset)
        return []
    if region.norm is not algorithm.norm:
        raise IncompatibleError(
            f"{where}: {algorithm.name} works under {algorithm.norm}, the budget is {region.norm}; set {where}.budget: "
            f"{{norm: {algorithm.norm}, epsilon: ...}}, or see windtunnel algorithms --family verification"
        )
    pixels = float(dataset.inputs[0].numel()) if len(dataset) else math.inf
    largest = {Norm.LINF: 1.0, Norm.L2: math.sqrt(pixels), Norm.L1: pixels}[region.norm]  # of two images in [0, 1]
    if region.epsilon is not None and region.epsilon >= largest:
        raise UserError(
            f"{where}.budget.epsilon: {region.epsilon:g} covers every image, so no certificate is possible. "
            f"Use less than {largest:g}"
        )
    if entry.radius and entry.radius.max > largest:
        raise UserError(f"{where}.radius.max: {entry.radius.max:g} is beyond every image; use at most {largest:g}")
    if entry.examples_from and not row.of_entry:
        raise UserError(f"{where}.examples_from: only the cascade falsifies with them; remove it")
    if row.assess is not None:
        if entry.on is not None and any(entry.on.references()):
            raise UserError(
                f"{where}.on: {algorithm.name} certifies a smoothed model, on which others say nothing; remove it"
            )
        return []
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: the data is tabular; verification works on images in [0, 1]")
    for name, module in classifier.module.named_modules():
        if isinstance(module, _RECURRENT):
            raise IncompatibleError(f"{where}: {classifier.source} is recurrent ({name}); no verifier here unrolls it")
    steps = row.steps_for(entry)
    for library in {library_of_step(step).name: library_of_step(step) for step in steps}.values():
        library.require(where)
    if entry.radius:
        _check_radius(f"{where}.radius", entry.radius, steps)
    unread = {"timeout", "steps", "other_classes", "output_bounds"} - options_read(row, steps)
    no_effect = sorted(key for key in unread if getattr(entry, key) != VerificationEntry.model_fields[key].default)
    notes = [f"{where}.{key}: {algorithm.name} does not read it; it has no effect" for key in no_effect]
    return notes + (_try_steps(where, steps, entry, region, classifier, dataset) if len(dataset) else [])


def _check_top_k(where: str, entry: VerificationEntry, row: VerifierRow, classifier: Classifier) -> None:
    """Raise IncompatibleError under top-k unless all steps bound every margin, or attack by the criterion."""
    if classifier.criterion.k == 1:
        return
    special = row.assess is not None or row.transforms or entry.radius is not None
    if special or not all(step_of(step).bounds or step_of(step).falsifies for step in row.steps_for(entry)):
        what = f"{row.algorithm.name}{' with a radius' * (entry.radius is not None)} proves that the label is the largest logit"
        classifier.criterion.require_top_1(where, f"{what}, which is not what counts (bounds alone, such as crown, do)")


def _check_radius(where: str, radius: Radius, steps: tuple[str, ...]) -> None:
    if radius_steps(radius, steps) == (None, None):
        raise UserError(f"{where}: no step here gives bounds ({', '.join(steps)}); add crown, or remove it")
    able = [step for step in steps if step_of(step).bounds or step_of(step).radii]
    if radius.method is not None and radius.method not in able:
        raise UserError(unknown_word(f"{where}.method", radius.method, able, what="a step here that searches radii"))


def _check_certificate(
    where: str, entry: VerificationEntry, region: PerturbationBudget, classifier: Classifier, dataset: Dataset
) -> None:
    """Raise UserError or IncompatibleError, in one line, for a region, a model or a key without a certificate."""
    transformation = transformation_of(region.norm)
    assert transformation is not None
    assert region.epsilon is not None
    for key in ("radius", "examples_from", "on"):
        if getattr(entry, key):
            raise UserError(f"{where}.{key}: is for balls; params.verified_range gives the verified part of each range")
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: transformations are of images, the data is tabular")
    check_image(where, region.norm, region.epsilon, dataset.inputs.shape[1:])
    if len(dataset) and transformation.kinds[0].name != "occlusion":  # which the model itself decides, image by image
        try:
            FormNetwork(_canonical_single(classifier, dataset).subject.classifier.module, classifier.source)
        except IncompatibleError as error:
            raise IncompatibleError(f"{where}: {error}") from error


def _canonical_single(classifier: Classifier, dataset: Dataset) -> Canonical:
    """Return the canonical network with the first sample, of any class."""
    single = replace(dataset.subset(torch.arange(1)), targets=torch.zeros(1, dtype=torch.int64))
    return canonical_subject(subject_of(classifier, single))


def _try_steps(
    where: str,
    steps: tuple[str, ...],
    entry: VerificationEntry,
    region: PerturbationBudget,
    classifier: Classifier,
    dataset: Dataset,
) -> list[str]:
    """One sample through each step: what cannot run on the model shows here, not after hours.

    Gives a line for each step that will be left out, give way to a weaker one, or take long. Raises IncompatibleError
    where no step can prove anything.
    """
    assert region.epsilon is not None
    try:
        canonical = _canonical_single(classifier, dataset)
    except IncompatibleError as error:
        raise IncompatibleError(f"{where}: {error}") from error
    deadline = time.monotonic() + TRY_SECONDS
    bounder = Bounder(canonical.subject, region.norm, 1, canonical.slack, deadline, logits=False)
    trial = Trial(canonical, classifier, bounder, region.epsilon)
    proving = {step: attempt for step in steps if (attempt := step_of(step).attempt)}
    notes, refused = [], list[IncompatibleError]()
    for step, attempt in proving.items():
        try:
            attempt(step, trial)
        except OutOfTimeError:
            advice = "" if entry.time_budget else f"; {where}.time_budget bounds the whole"
            notes.append(f"{where}: {step} was not done with one sample after {TRY_SECONDS:g} s{advice}")
        except IncompatibleError as error:
            refused.append(error)
            notes.append(f"{where}: {step} will be left out: {error}")
    if proving and len(refused) == len(proving):
        raise IncompatibleError(f"{where}: {refused[0]}")
    return notes + [
        f"{where}: {weaker} will run instead of {method}: {reason}" for method, weaker, reason in bounder.fallbacks
    ]
