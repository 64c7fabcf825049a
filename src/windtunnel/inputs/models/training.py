"""Training recipes of the embedded default: standard, noise-augmented, and PGD adversarial training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from windtunnel.core.batches import progress_bar
from windtunnel.core.dataset import Dataset
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.inputs.models.architectures import ARCHITECTURES
from windtunnel.params.model import Recipe


def train_classifier(recipe: Recipe, data: Dataset, seed: int, device: torch.device) -> nn.Module:
    """Train the recipe's architecture on `data`; the module in eval mode, on the CPU.

    Deterministic in `seed` on one device: weights, batch order, noise and PGD starts come from it.
    Adversarial training is that of Madry et al. 2018 (arXiv 1706.06083): every batch is replaced by PGD examples.
    """
    with seeded(derive_seed(seed, "train", recipe.architecture)):
        module = ARCHITECTURES[recipe.architecture](tuple(data.inputs.shape[1:]), data.num_classes).to(device)
    generator = torch.Generator().manual_seed(derive_seed(seed, "train", recipe.recipe))
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate)
    steps = recipe.epochs * -(-len(data) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.learning_rate, total_steps=steps)
    with progress_bar() as progress:
        for _ in progress.track(range(recipe.epochs), description=f"train {recipe.recipe} {recipe.architecture}"):
            for indices in torch.randperm(len(data), generator=generator).split(recipe.batch_size):
                x, y = data.inputs[indices].to(device), data.targets[indices].to(device)
                x = _augmented(recipe, module, x, y, data.value_range, generator)
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimiser.step()
                schedule.step()
    return module.eval().cpu()


def _augmented(
    recipe: Recipe,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    value_range: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    if recipe.recipe == "noise":
        noise = torch.randn(x.shape, generator=generator).to(x.device)
        return (x + recipe.noise_sigma * noise).clamp(*value_range)
    if recipe.recipe == "adversarial":
        return _pgd(recipe, module, x, y, value_range, generator)
    return x


def _pgd(
    recipe: Recipe,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    value_range: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    step = 2.5 * recipe.epsilon / recipe.steps
    start = (2 * torch.rand(x.shape, generator=generator) - 1).to(x.device) * recipe.epsilon
    moved = (x + start).clamp(*value_range)
    for _ in range(recipe.steps):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(module(moved), y), moved)
        moved = (
            (moved.detach() + step * gradient.sign()).clamp(x - recipe.epsilon, x + recipe.epsilon).clamp(*value_range)
        )
    return moved
