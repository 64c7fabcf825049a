"""What a verification refuses before it computes anything."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

import torch
from pydantic import ValidationError
from torch import nn

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.verification.assess import bound_step, steps_of
from windtunnel.assessments.verification.bounding import Bounder
from windtunnel.assessments.verification.search_step import network_of
from windtunnel.assessments.verification.steps import BOUND_METHODS
from windtunnel.assessments.verification.table import BRANCH_AND_BOUND, CASCADE, SMOOTHING
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError, unknown_word
from windtunnel.core.subject import subject_of
from windtunnel.params.entry import Block, Budget
from windtunnel.params.verification import BranchAndBound, Smoothing, VerificationEntry

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def preflight(where: str, entry: VerificationEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for a verification that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "verification")
    classifier.require(algorithm, where)
    if algorithm is SMOOTHING:
        _check_params(where, entry, Smoothing, "smoothing")
        if entry.radius:
            raise UserError(f"{where}.radius: smoothing gives every sample its radius; remove it")
    elif algorithm is CASCADE or algorithm in BRANCH_AND_BOUND:
        _check_params(where, entry, BranchAndBound, "branch-and-bound")
    elif entry.params:
        raise UserError(
            unknown_word(f"{where}.params", next(iter(entry.params)), ["(none)"], what="a parameter of a verifier")
        )
    region = entry.budget.over(budget)
    if region.norm is not algorithm.norm:
        raise IncompatibleError(
            f"{where}: {algorithm.name} works under {algorithm.norm}, the budget is {region.norm}; set {where}.budget: "
            f"{{norm: {algorithm.norm}, epsilon: ...}}, or see windtunnel algorithms --family verification"
        )
    largest = _largest_distance(region.norm, dataset)
    if region.epsilon is not None and region.epsilon >= largest:
        raise UserError(
            f"{where}.budget.epsilon: {region.epsilon:g} covers every image there is; nothing can hold. "
            f"Use less than {largest:g}"
        )
    if entry.radius and entry.radius.max > largest:
        raise UserError(f"{where}.radius.max: {entry.radius.max:g} is beyond every image; use at most {largest:g}")
    if entry.examples_from and algorithm is not CASCADE:
        raise UserError(f"{where}.examples_from: only the cascade falsifies with them; remove it")
    if algorithm is SMOOTHING:
        return
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: the data is tabular; verification works on images in [0, 1]")
    for name, module in classifier.module.named_modules():
        if isinstance(module, _RECURRENT):
            raise IncompatibleError(f"{where}: {classifier.source} is recurrent ({name}); no verifier here unrolls it")
    steps = steps_of(algorithm, entry)
    if entry.radius and bound_step(steps) is None:
        raise UserError(f"{where}.radius: no step here gives bounds ({', '.join(steps)}); add crown, or remove it")
    if "marabou" in steps and importlib.util.find_spec("maraboupy") is None:
        raise IncompatibleError(
            f"{where}: maraboupy is not installed; it has wheels for Python 3.11 at most. Leave out marabou"
        )
    if algorithm in BRANCH_AND_BOUND:
        try:
            network_of(classifier)
        except IncompatibleError as error:
            raise IncompatibleError(f"{where}: {error}") from error
    if len(dataset):
        _try_bounds(where, [step for step in steps if step in BOUND_METHODS], region, classifier, dataset)


def _check_params(where: str, entry: VerificationEntry, schema: type[Block], algorithm: str) -> None:
    for key in entry.params:
        if key not in schema.model_fields:
            raise UserError(
                unknown_word(f"{where}.params", key, schema.model_fields, what=f"a parameter of {algorithm}")
            )
    try:
        schema.model_validate(entry.params)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}.params.{key}: {first['msg']}, got {first['input']!r}") from error


def _largest_distance(norm: Norm, dataset: Dataset) -> float:
    """How far two images can be apart: of [0, 1] pixels."""
    pixels = float(dataset.inputs[0].numel()) if len(dataset) else float("inf")
    return {Norm.LINF: 1.0, Norm.L2: math.sqrt(pixels), Norm.L1: pixels}[norm]


def _try_bounds(
    where: str, methods: list[str], region: PerturbationBudget, classifier: Classifier, dataset: Dataset
) -> None:
    """One sample through each method: that none has a bound for an operator shows here, not after hours."""
    assert region.epsilon is not None
    one = dataset.subset(torch.arange(1))
    subject = subject_of(classifier, replace(one, targets=torch.zeros(1, dtype=torch.int64)))
    bounder = Bounder(subject, region.norm, 1)
    for method in dict.fromkeys(methods):
        try:
            list(bounder.bound(method, torch.arange(1), torch.tensor([region.epsilon]), logits=False))
        except IncompatibleError as error:
            raise IncompatibleError(f"{where}: {error}") from error
