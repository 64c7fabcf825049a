"""How a sweep perturbs samples at a given epsilon: our FGSM with one gradient for the whole epsilon grid, or any attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from windtunnel.core import scratch
from windtunnel.core.chunks import row_parts
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.sweeps import SweepEntry


class Engine(Protocol):
    """Perturbs the samples at `indices` (int64, n, ascending) by at most `epsilon`: float32 (n, ...) on the CPU.

    called_with: the arguments of the latest call, for metadata.json.
    """

    called_with: Mapping[str, object]

    def perturb(self, indices: Tensor, epsilon: float) -> Tensor:
        """The perturbed inputs."""
        ...


class OneGradientFGSM:
    """x + epsilon * sign(gradient of the cross entropy of the target at x); the gradient is taken once.

    sign(0) = 0. `clip` keeps the result in the data's value range; neural-api does not clip.
    Source: Goodfellow, Shlens, Szegedy 2015, arXiv 1412.6572.
    """

    def __init__(self, subject: Subject, batch_size: int, *, clip: bool) -> None:
        self._inputs = subject.dataset.inputs
        self.called_with: Mapping[str, object] = {}
        self._range = subject.dataset.value_range if clip else None
        # int8 holds the three values of a sign in a quarter of the memory.
        self._signs = scratch.empty(self._inputs.shape, torch.int8)
        device, targets = subject.classifier.device, subject.dataset.targets
        parts = zip(
            self._signs.split(batch_size), self._inputs.split(batch_size), targets.split(batch_size), strict=True
        )
        for signs, x, y in parts:
            signs.copy_(_gradient_sign(subject.classifier.module, x.to(device), y.to(device)))
        self._moved = scratch.empty(self._inputs.shape)

    def perturb(self, indices: Tensor, epsilon: float) -> Tensor:
        """The inputs at `indices` moved by `epsilon` along the stored signs; of all of them until the next call alone."""
        self.called_with = {"inputs": self._inputs, "signs": self._signs, "epsilon": epsilon, "clip": self._range}
        # Memory traffic is all that this costs beside the model's passes: no copy that can be spared.
        whole = len(indices) == len(self._inputs)
        inputs, signs = (self._inputs, self._signs) if whole else (self._inputs[indices], self._signs[indices])
        moved = self._moved if whole else torch.empty_like(inputs)
        for part in row_parts(inputs):
            torch.add(inputs[part], signs[part], alpha=epsilon, out=moved[part])
            if self._range:
                moved[part].clamp_(*self._range)
        return moved


def _gradient_sign(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss = nn.functional.cross_entropy(module(x), y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x)
    return gradient.sign().to(torch.int8).cpu()


class AttackAtEpsilon:
    """Any attack of the attacks table, rerun at each epsilon."""

    def __init__(self, name: str, entry: SweepEntry, norm: Norm, subject: Subject) -> None:
        self._name, self._entry, self._norm, self._subject = name, entry, norm, subject
        self.called_with: Mapping[str, object] = {}

    def perturb(self, indices: Tensor, epsilon: float) -> Tensor:
        """The attack's result on the samples at `indices` under a budget of `epsilon`."""
        from windtunnel.assessments.attacks.assess import assess

        attack = AttackEntry(
            library=self._entry.library,
            algorithm=self._entry.algorithm,
            params=self._entry.params,
            budget=BudgetOverride(step_size=self._entry.budget.step_size, steps=self._entry.budget.steps),
            batch_size=self._entry.batch_size,
        )
        budget = Budget(norm=self._norm, epsilon=epsilon)
        result = assess(f"{self._name}@{epsilon:.9g}", attack, budget, self._subject.subset(indices))
        self.called_with = result.call_kwargs
        perturbed = result.data["perturbed_inputs"]
        assert isinstance(perturbed, Tensor)
        return perturbed
