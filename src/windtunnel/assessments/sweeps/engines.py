"""Perturb samples at a given epsilon: our FGSM with one gradient for the whole epsilon grid, or any attack."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.sweeps.table import FGSM
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import PARAMETERS
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.sweeps import SweepEntry


class Engine(Protocol):
    """Perturbs the samples at `indices` (int64, n, ascending) by at most `epsilon`: float32 (n, ...) on the CPU.

    parameters: float32 (n, P), of the transformations that made the last ones; P is 0 for what is none.
    """

    parameters: Tensor

    def perturb(self, indices: Tensor, epsilon: float) -> Tensor:
        """Return the perturbed inputs."""
        ...


class OneGradientFGSM:
    """x + epsilon * sign(gradient of the cross entropy of the target at x); the gradient is taken once.

    sign(0) = 0. `clip` keeps the result in the data's value range; neural-api does not clip.
    Source: Goodfellow, Shlens, Szegedy 2015, arXiv 1412.6572.
    """

    def __init__(self, subject: Subject, *, clip: bool) -> None:
        data, device = subject.dataset, subject.classifier.device
        self._inputs = data.inputs
        self._range = data.value_range if clip else None
        # int8 holds the three values of a sign in a quarter of the memory.
        self.parameters = torch.zeros(len(data.inputs), 0)
        self._signs = _gradient_sign(subject.classifier, data.inputs.to(device), data.targets.to(device))

    def perturb(self, indices: Tensor, epsilon: float) -> Tensor:
        """Return the inputs at `indices` moved by `epsilon` along the stored signs."""
        # Memory traffic is all that this costs beside the model's passes: no copy that can be spared.
        is_whole = len(indices) == len(self._inputs)
        inputs, signs = (self._inputs, self._signs) if is_whole else (self._inputs[indices], self._signs[indices])
        moved = torch.add(inputs, signs, alpha=epsilon)
        return moved.clamp_(*self._range) if self._range else moved


def _gradient_sign(classifier: Classifier, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss = classifier.criterion.loss(classifier.module(x), y).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    return gradient.sign().to(torch.int8).cpu()


class AttackAtEpsilon:
    """Any attack of the attacks table, rerun at each epsilon."""

    def __init__(self, name: str, entry: SweepEntry, norm: Norm, subject: Subject) -> None:
        self._name, self._entry, self._norm, self._subject = name, entry, norm, subject
        self.parameters = torch.zeros(len(subject.dataset), 0)

    def perturb(self, indices: Tensor, epsilon: float) -> Tensor:
        """Return the attack's result on the samples at `indices` under a budget of `epsilon`."""
        from windtunnel.assessments.attacks.assess import assess

        attack, budget = attack_at(self._entry, self._norm, epsilon)
        # Its batches are parts of a unit, which is kept as a whole.
        subject = replace(self._subject.subset(indices), resolved="")
        result = assess(f"{self._name}@{epsilon:.9g}", attack, budget, subject).data
        perturbed, parameters = result["perturbed_inputs"], result.get(PARAMETERS)
        assert isinstance(perturbed, Tensor)
        if isinstance(parameters, dict):
            self.parameters = torch.stack(list(parameters.values()), 1)
        return perturbed


def attack_at(entry: SweepEntry, norm: Norm, epsilon: float) -> tuple[AttackEntry, Budget]:
    """Return the attack of a sweep at one epsilon, and its budget."""
    attack = AttackEntry(
        library=entry.library,
        algorithm=entry.algorithm,
        params=entry.params,
        budget=BudgetOverride(step_size=entry.budget.step_size, steps=entry.budget.steps),
        batch_size=entry.batch_size,
    )
    return attack, Budget(norm=norm, epsilon=epsilon)


def called_with(name: str, entry: SweepEntry, norm: Norm, subject: Subject, epsilon: float) -> Mapping[str, object]:
    """Return the arguments of the call at `epsilon`, for metadata.json."""
    data = subject.dataset
    if find_algorithm(entry.library, entry.algorithm, f"sweeps.{name}", "sweeps") is FGSM:
        signs = torch.zeros(1, dtype=torch.int8).expand(data.inputs.shape)  # only its shape is told
        return {
            "inputs": data.inputs,
            "signs": signs,
            "epsilon": epsilon,
            "clip": data.value_range if entry.clip else None,
        }
    from windtunnel.assessments.attacks.assess import called_with as of_attack

    return of_attack(f"{name}@{epsilon:.9g}", *attack_at(entry, norm, epsilon), subject)
