"""Attacks and stand-ins as a user writes them, named in the params of tests."""

import torch
from torch import nn


def signed_steps(model, inputs, labels, budget, seed, steps=10, start=False):
    """PGD under Linf without its frills."""
    step = budget.step_size or 2.5 * budget.epsilon / (budget.steps or steps)
    x = inputs + (torch.rand_like(inputs) * 2 - 1) * budget.epsilon if start else inputs
    for _ in range(budget.steps or steps):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), labels), x)
        x = (x + step * gradient.sign()).clamp(inputs - budget.epsilon, inputs + budget.epsilon).clamp(0, 1)
    return x.detach()


def too_far(model, inputs, labels, budget, seed):
    """Leaves the budget, which the evaluation must take back."""
    return 1 - inputs


def wrong_shape(model, inputs, labels, budget, seed):
    """One image too few."""
    return inputs[1:]


def raises(model, inputs, labels, budget, seed):
    """What may happen in anybody's code."""
    raise ZeroDivisionError("no epsilon today")


def takes_too_little(model, inputs):
    """Not the signature that it is called with."""
    return inputs


class Quantised(nn.Module):
    """A network behind a staircase: its gradient is zero almost everywhere (Guo et al. 2018, broken by Athalye et al.)."""

    def __init__(self, network: nn.Module, levels: int = 8) -> None:
        super().__init__()
        self.network, self.levels = network, levels

    def forward(self, x):
        return self.network((x * self.levels).round() / self.levels)


class Noisy(nn.Module):
    """A network behind noise: each gradient is of another draw."""

    def __init__(self, network: nn.Module, spread: float = 0.3) -> None:
        super().__init__()
        self.network, self.spread = network, spread

    def forward(self, x):
        return self.network(x + self.spread * torch.randn_like(x))


def without_the_staircase(model):
    """What is differentiated instead of `Quantised`: the network behind it, the identity for the staircase."""
    return model.network


def nothing_to_call(model):
    """Not what a stand-in must be."""
    return 3
