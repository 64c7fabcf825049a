"""More attacks as a user writes them (`library: function`), each with a fault."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from benchmarks.gallery.honest import digits, trained
from benchmarks.gallery.own_attacks import STEPS, Model, _ascend, _gradient, _inside, _unit, gradient_ascent
from windtunnel.params.entry import Budget


def projected_once(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Ascend without a bound, and project the end onto the ball."""
    x, epsilon = inputs, budget.epsilon or 0.0
    for _ in range(STEPS):
        x = (x + 0.5 * epsilon * _unit(_gradient(model, x, labels), budget.norm)).clamp(0, 1).detach()
    return _inside(x, inputs, budget)


def _in_l1(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    budget: Budget,
    sign: float,
    pixels: int,
    steps: int,
    mean: bool = False,
) -> Tensor:
    x = inputs.clone()
    epsilon = budget.epsilon or 0.0
    for _ in range(steps):
        gradient = sign * _gradient(model, x, labels)
        if mean:
            gradient = gradient.mean(0, keepdim=True).expand_as(gradient)
        flat = gradient.flatten(1)
        top = flat.abs().topk(pixels, 1).indices
        step = torch.zeros_like(flat).scatter(1, top, flat.gather(1, top).sign() * epsilon / steps / pixels)
        x = (x + step.view_as(x)).clamp(0, 1).detach()
    return x


def descent_in_l1(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Descend the loss in steps of two pixels."""
    return _in_l1(model, inputs, labels, budget, -1.0, 2, 10)


def two_pixels(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Spend the whole budget on two pixels, which cannot hold it."""
    return _in_l1(model, inputs, labels, budget, 1.0, 2, 1)


def averaged_in_l1(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Follow the gradient averaged over the batch."""
    return _in_l1(model, inputs, labels, budget, 1.0, 2, 10, mean=True)


def corner_pixels(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Move only the pixels of a corner."""
    mask = torch.zeros_like(inputs)
    mask[..., :4, :4] = 1
    return inputs + mask * (gradient_ascent(model, inputs, labels, budget, seed) - inputs)


def halving_steps(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Halve the step size at every step, from a tenth of the budget."""
    x = inputs
    for step in range(STEPS):
        size = (budget.epsilon or 0.0) * 0.1 * 0.5**step
        x = _inside(x + size * _unit(_gradient(model, x, labels), budget.norm), inputs, budget).detach()
    return x


def skips_hard_samples(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Return the clean input of the half of the samples whose margin is larger."""
    moved = gradient_ascent(model, inputs, labels, budget, seed)
    with torch.no_grad():
        margin = model(inputs).topk(2, 1).values.diff(dim=1).abs().flatten()
    return torch.where((margin > margin.median()).view(-1, *[1] * (inputs.ndim - 1)), inputs, moved)


def last_restart(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Five random restarts of a single step, of which the last is returned."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        noise = torch.rand(inputs.shape, generator=generator) * 2 - 1
        x = _inside(inputs + (budget.epsilon or 0.0) * noise, inputs, budget)
        moved = _inside(
            x + 0.25 * (budget.epsilon or 0.0) * _unit(_gradient(model, x, labels), budget.norm), inputs, budget
        )
    return moved


def towards_class_0(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Aim every sample at class 0, those of class 0 too."""
    return _ascend(inputs, budget, lambda x, _: -_gradient(model, x, torch.zeros_like(labels)))


def rounded_result(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Round the result to a sixteenth towards the clean image."""
    change = gradient_ascent(model, inputs, labels, budget, seed) - inputs
    return inputs + change.sign() * (change.abs() * 16).floor() / 16


def keeps_the_last_failure(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Bisect between the clean image and an adversarial one, and return the side that is still right."""
    low, high = inputs, gradient_ascent(model, inputs, labels, budget, seed)
    for _ in range(6):
        middle = (low + high) / 2
        with torch.no_grad():
            right = (model(middle).argmax(1) == labels).view(-1, *[1] * (inputs.ndim - 1))
        low, high = torch.where(right, middle, low), torch.where(right, high, middle)
    return low


def sum_of_logits(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Ascend the sum of all logits."""

    def gradient_at(x: Tensor, step: int) -> Tensor:
        point = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(point).sum(), point)
        return gradient

    return _ascend(inputs, budget, gradient_at)


@functools.cache
def _other() -> nn.Module:
    return trained(digits(60), "mlp", 3)


def on_another_network(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Attack another network; the one under assessment is only evaluated."""
    model(inputs)
    return gradient_ascent(_other(), inputs, labels, budget, seed)
