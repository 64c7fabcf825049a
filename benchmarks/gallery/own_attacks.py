"""Attacks as a user writes them (`library: function`): each but `gradient_ascent` has a fault that leaves most samples unbroken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from windtunnel.core.contracts import Norm
from windtunnel.params.entry import Budget

Model = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor, int], Tensor]
STEPS = 20


def _unit(direction: Tensor, norm: Norm) -> Tensor:
    """The steepest step of length 1 along `direction` (n, ...), in Linf or L2."""
    if norm is Norm.LINF:
        return direction.sign()
    return direction / direction.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, *[1] * (direction.ndim - 1))


def _inside(x: Tensor, inputs: Tensor, budget: Budget, share: float = 1.0) -> Tensor:
    """Project x (n, ...) onto the ball of `share` of the budget around `inputs`, and onto [0, 1]."""
    change, epsilon = x - inputs, share * (budget.epsilon or 0.0)
    if budget.norm is Norm.LINF:
        return (inputs + change.clamp(-epsilon, epsilon)).clamp(0, 1)
    length = change.flatten(1).norm(dim=1).clamp(min=1e-12)
    scale = (epsilon / length).clamp(max=1).view(-1, *[1] * (change.ndim - 1))
    return (inputs + scale * change).clamp(0, 1)


def _gradient(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    point = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(point), labels, reduction="sum"), point)
    return gradient


def _ascend(inputs: Tensor, budget: Budget, gradient_at: Gradient, share: float = 1.0, size: float = 1 / 8) -> Tensor:
    """Follow `gradient_at(x, step)` for STEPS steps of `size` of the budget."""
    x = inputs
    for step in range(STEPS):
        x = x + size * (budget.epsilon or 0.0) * _unit(gradient_at(x, step), budget.norm)
        x = _inside(x, inputs, budget, share).detach()
    return x


def gradient_ascent(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Ascend the cross entropy: an attack without a fault."""
    return _ascend(inputs, budget, lambda x, _: _gradient(model, x, labels))


def descent(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Descend the loss: the sign of the step is wrong."""
    return _ascend(inputs, budget, lambda x, _: -_gradient(model, x, labels))


def random_noise(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Return one random point of the ball; the model is evaluated, and its answer not used."""
    model(inputs)
    noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(seed))
    return _inside(inputs + (budget.epsilon or 0.0) * _unit(noise, budget.norm), inputs, budget)


def stale_gradient(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Follow at every step the gradient that was computed once, at a grey image."""
    stale = _gradient(model, torch.full_like(inputs, 0.5), labels)
    return _ascend(inputs, budget, lambda x, _: stale)


def averaged_over_pixels(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Follow the gradient averaged over neighbouring pixels."""
    return _ascend(
        inputs,
        budget,
        lambda x, _: nn.functional.avg_pool2d(_gradient(model, x, labels), 5, 1, 2, count_include_pad=False),
    )


def averaged_over_samples(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Follow the gradient averaged over the samples of the batch."""
    return _ascend(inputs, budget, lambda x, _: _gradient(model, x, labels).mean(0, keepdim=True).expand_as(x))


def normalised_over_the_batch(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Divide the gradient by its norm over the whole batch: the more samples, the smaller each step."""
    x = inputs
    for _ in range(STEPS):
        gradient = _gradient(model, x, labels)
        x = _inside(x + 0.05 * (budget.epsilon or 0.0) * gradient / gradient.norm(), inputs, budget)
    return x


def a_tenth_of_the_budget(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Project onto a ball of a tenth of the radius."""
    return _ascend(inputs, budget, lambda x, _: _gradient(model, x, labels), share=0.1)


def half_of_the_batch(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Attack the first half of each batch and return the rest with random noise."""
    moved, half = random_noise(model, inputs, labels, budget, seed), (len(inputs) + 1) // 2
    moved[:half] = gradient_ascent(model, inputs[:half], labels[:half], budget, seed)
    return moved


def keeps_the_worst(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Ascend the loss, and return of all iterates the one with the lowest."""
    x = kept = inputs
    lowest = torch.full((len(inputs),), torch.inf)
    for _ in range(STEPS):
        gradient = _gradient(model, x, labels)
        x = _inside(x + (budget.epsilon or 0.0) / 8 * _unit(gradient, budget.norm), inputs, budget).detach()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x), labels, reduction="none")
        kept = torch.where((loss < lowest).view(-1, *[1] * (x.ndim - 1)), x, kept)
        lowest = torch.minimum(loss, lowest)
    return kept


def stops_with_the_first(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Stop for the whole batch as soon as a seventh of it is broken."""
    x = inputs
    for _ in range(STEPS):
        with torch.no_grad():
            if (model(x).argmax(1) != labels).double().mean() > 1 / 7:
                break
        step = (budget.epsilon or 0.0) / 8 * _unit(_gradient(model, x, labels), budget.norm)
        x = _inside(x + step, inputs, budget).detach()
    return x


def blended_with_the_clean_image(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Ascend the loss, and return a quarter of the change."""
    return inputs + 0.25 * (gradient_ascent(model, inputs, labels, budget, seed) - inputs)


def on_saturated_probabilities(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Give the cross entropy probabilities at a low temperature in place of logits: most gradients are zero."""
    return _ascend(inputs, budget, lambda x, _: _gradient(lambda point: (50 * model(point)).softmax(1), x, labels))


def towards_the_label(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """A targeted attack that was given the label as its target."""

    def gradient_at(x: Tensor, step: int) -> Tensor:
        point = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(point).gather(1, labels[:, None]).sum(), point)
        return gradient

    return _ascend(inputs, budget, gradient_at)


def on_permuted_labels(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Ascend the loss of other classes than the label, as where labels and images were shuffled apart."""
    return _ascend(inputs, budget, lambda x, _: _gradient(model, x, (labels + 1 + torch.arange(len(labels)) % 8) % 10))


def forgets_to_sort_back(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Attack the samples in the order of their loss, and return the results in this order."""
    with torch.no_grad():
        order = nn.functional.cross_entropy(model(inputs), labels, reduction="none").argsort()
    return gradient_ascent(model, inputs[order], labels[order], budget, seed)


def only_brighter(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Drop the changes that make a pixel darker."""
    return torch.maximum(gradient_ascent(model, inputs, labels, budget, seed), inputs)


def leaves_black_and_white(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Leave black and white pixels as they are, as if no change of them stayed in the range."""
    moved = gradient_ascent(model, inputs, labels, budget, seed)
    return torch.where((inputs < 0.02) | (inputs > 0.98), inputs, moved)


def wide_differences(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Estimate the gradient by differences over 0.5 along five random directions."""
    generator, x = torch.Generator().manual_seed(seed), inputs
    with torch.no_grad():
        for _ in range(10):
            slope = torch.zeros_like(x)
            for _ in range(5):
                u = torch.randn(x.shape, generator=generator)
                losses = [
                    nn.functional.cross_entropy(model(x + step * u), labels, reduction="none") for step in (0.5, -0.5)
                ]
                slope += (losses[0] - losses[1]).view(-1, *[1] * (x.ndim - 1)) * u
            x = _inside(x + 0.2 * (budget.epsilon or 0.0) * _unit(slope, budget.norm), inputs, budget)
    return x


def one_pixel(model: Model, inputs: Tensor, labels: Tensor, budget: Budget, seed: int) -> Tensor:
    """Under L0, set the pixel of the largest gradient alone, however many the budget has."""
    gradient = _gradient(model, inputs, labels).flatten(1)
    place = gradient.abs().argmax(1, keepdim=True)
    return inputs.flatten(1).scatter(1, place, (gradient.gather(1, place) > 0).float()).view_as(inputs)


def another_network(model: nn.Module) -> nn.Module:
    """For `adapt`: a network whose gradients have nothing to do with the model's."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
