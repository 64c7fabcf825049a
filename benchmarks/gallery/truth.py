"""Estimate of the true robust accuracy of a case: an attack much stronger than those of the run, which knows what the model hides."""

from __future__ import annotations

import foolbox
import torch
from torch import Tensor, nn

from benchmarks.gallery.case import Case, params_of
from windtunnel.core.contracts import Norm
from windtunnel.core.transformations import transformation_of
from windtunnel.evaluation.witness.parameters import at_units

STEPS, RESTARTS = 60, 3
GRID = 201  # points of a transformation of one parameter
QUANTILES = (0.8, 0.95, 0.99)  # of the gradient's elements that a step in L1 leaves as they are


def true_robust_accuracy(case: Case) -> float:
    """Upper bound of the robust accuracy of a case at the budget of its run, over all its samples.

    Gradients are those of `case.stand_in`, the network without what hides them; each iterate is judged by the model itself.
    """
    budget = params_of(case.run).budget
    data, module = case.subject.dataset, case.subject.classifier.module
    gradients = module if case.stand_in is None else case.stand_in
    robust, epsilon = case.subject.clean_correct.clone(), float(budget.epsilon or 0.0)
    if budget.norm is Norm.L1:
        return float(_survivors_l1(gradients, module, data.inputs, data.targets, epsilon, robust).double().mean())
    if budget.norm is Norm.L0:
        return float(_survivors_l0(gradients, module, data.inputs, data.targets, epsilon, robust).double().mean())
    if transformation := transformation_of(budget.norm):
        for unit in torch.linspace(-1, 1, GRID, dtype=torch.float64):
            units = unit.expand(len(data), len(transformation.names))
            with torch.no_grad():
                robust &= module(at_units(transformation, epsilon, data.inputs, units)).argmax(1) == data.targets
        return float(robust.double().mean())
    generator = torch.Generator().manual_seed(0)
    for margin in (False, True):
        for _ in range(RESTARTS):
            left = robust.nonzero().flatten()
            x, y = data.inputs[left], data.targets[left]
            noise = torch.rand(x.shape, generator=generator) * 2 - 1
            moved = _project(
                x + epsilon * (noise if budget.norm is Norm.LINF else 0.2 * noise), x, budget.norm, epsilon
            )
            for step in range(STEPS):
                size = epsilon * (0.3 if step < STEPS // 2 else 0.05)
                moved = _project(
                    moved + size * _steepest(gradient_of(gradients, moved, y, margin), budget.norm),
                    x,
                    budget.norm,
                    epsilon,
                )
                with torch.no_grad():
                    robust[left[module(moved).argmax(1) != y]] = False
    return float(robust.double().mean())


def gradient_of(module: nn.Module, x: Tensor, y: Tensor, margin: bool) -> Tensor:
    """Return the gradient of cross entropy, or of the margin, at x (n, ...)."""
    point = x.detach().requires_grad_()
    logits = module(point)
    own = logits.gather(1, y[:, None]).squeeze(1)
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    loss = (others - own).sum() if margin else nn.functional.cross_entropy(logits, y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, point)
    return gradient


def _steepest(gradient: Tensor, norm: Norm) -> Tensor:
    if norm is Norm.LINF:
        return gradient.sign()
    return gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, *[1] * (gradient.ndim - 1))


def _project(moved: Tensor, x: Tensor, norm: Norm, epsilon: float) -> Tensor:
    """The nearest points of the ball around x, then of [0, 1]."""
    change = moved - x
    if norm is Norm.LINF:
        return (x + change.clamp(-epsilon, epsilon)).clamp(0, 1)
    length = change.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, *[1] * (change.ndim - 1))
    return (x + change * (epsilon / length).clamp(max=1)).clamp(0, 1)


def _survivors_l1(
    gradients: nn.Module, module: nn.Module, x: Tensor, y: Tensor, epsilon: float, robust: Tensor
) -> Tensor:
    model = foolbox.PyTorchModel(gradients, bounds=(0, 1), device="cpu")
    for quantile in QUANTILES:
        for seed in range(RESTARTS):
            torch.manual_seed(seed)
            attack = foolbox.attacks.SparseL1DescentAttack(quantile=quantile, steps=STEPS, random_start=seed > 0)
            _, moved, _ = attack(model, x, y, epsilons=[epsilon])
            with torch.no_grad():
                robust &= module(moved[0]).argmax(1) == y
    return robust


def _survivors_l0(
    gradients: nn.Module, module: nn.Module, x: Tensor, y: Tensor, pixels: float, robust: Tensor
) -> Tensor:
    model = foolbox.PyTorchModel(gradients, bounds=(0, 1), device="cpu")
    _, moved, _ = foolbox.attacks.L0FMNAttack(steps=4 * STEPS)(model, x, y, epsilons=None)
    with torch.no_grad():
        broken = (module(moved).argmax(1) != y) & ((moved != x).flatten(1).sum(1) <= pixels)
    return robust & ~broken
