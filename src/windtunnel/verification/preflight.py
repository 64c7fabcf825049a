"""What a verification refuses before it computes anything."""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from windtunnel.catalogue import find_algorithm
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError, unknown_word
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry
from windtunnel.verification.assess import steps_of

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def preflight(where: str, entry: VerificationEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for a verification that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "verification")
    classifier.require(algorithm, where)
    if entry.params:
        raise UserError(
            unknown_word(f"{where}.params", next(iter(entry.params)), ["(none)"], what="a parameter of a verifier")
        )
    region = entry.budget.over(budget)
    if region.norm is not algorithm.norm:
        raise IncompatibleError(
            f"{where}: {algorithm.name} works under {algorithm.norm}, the budget is {region.norm}; set {where}.budget: "
            f"{{norm: {algorithm.norm}, epsilon: ...}}, or see windtunnel algorithms --family verification"
        )
    if region.norm is Norm.LINF and region.epsilon is not None and region.epsilon >= 1:
        raise UserError(
            f"{where}.budget.epsilon: {region.epsilon:g} covers every image there is; nothing can hold. Use less than 1"
        )
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: the data is tabular; verification works on images in [0, 1]")
    for name, module in classifier.module.named_modules():
        if isinstance(module, _RECURRENT):
            raise IncompatibleError(f"{where}: {classifier.source} is recurrent ({name}); no verifier here unrolls it")
        if isinstance(module, nn.MaxPool2d) and module.kernel_size != module.stride:
            raise IncompatibleError(
                f"{where}: {name} of {classifier.source} pools overlapping windows, which no bound here supports"
            )
    steps = steps_of(algorithm, entry)
    if "marabou" in steps and importlib.util.find_spec("maraboupy") is None:
        raise IncompatibleError(
            f"{where}: maraboupy is not installed; it has wheels for Python 3.11 at most. Leave out marabou"
        )
    bounded = [step for step in steps if step not in {"attack", "marabou"}]
    if bounded and len(dataset):
        # One sample through each method: an operator without a bound shows here, not after hours.
        from windtunnel.verification.lirpa import bound_batch

        sample, target = dataset.inputs[:1], torch.zeros(1, dtype=torch.int64)
        assert region.epsilon is not None
        for step in dict.fromkeys(bounded):
            try:
                bound_batch(classifier, sample, target, region.norm, region.epsilon, step, logits=False)
            except IncompatibleError as error:
                raise IncompatibleError(f"{where}: {error}") from error
