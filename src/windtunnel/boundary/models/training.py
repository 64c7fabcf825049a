"""Training recipes of the embedded default: standard, noise, augmented images, both, and PGD adversarial training."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor, nn

from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.params.model import Recipe
from windtunnel.runtime.progress import progress_bar

Clip = Callable[[Tensor], Tensor]  # into the range of the inputs
HELD_OUT = 10  # with `patience`, one sample of so many is held out


def train_classifier(
    recipe: Recipe, data: Dataset, seed: int, device: torch.device, build: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """Train the recipe's architecture, or what `build` makes, on `data`; the module in eval mode, on the CPU.

    With `patience` a tenth of the data is held out, and the weights of the smallest loss on it are what is returned.

    Deterministic in `seed` on one device: weights, batch order, noise and PGD starts come from it.
    Adversarial training is that of Madry et al. 2018 (arXiv 1706.06083): every batch is replaced by PGD examples.
    """
    if "augmentation" in recipe.recipe and not data.is_image:
        raise UserError(
            f"model.train.recipe: {recipe.recipe} changes images; for tabular data take standard, noise or adversarial"
        )
    build = build or partial(ARCHITECTURES[recipe.architecture], tuple(data.inputs.shape[1:]), data.num_classes)
    with seeded(derive_seed(seed, "train", recipe.architecture)):
        module = build().to(device).train()
    data, held_out = _split(recipe, data, seed)
    best = Best(recipe.patience)
    clip = partial(torch.clamp, min=data.value_range[0], max=data.value_range[1])
    generator = Generator().manual_seed(derive_seed(seed, "train", recipe.recipe))
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate)
    steps = recipe.epochs * -(-len(data) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.learning_rate, total_steps=steps)
    with progress_bar() as progress:
        for _ in progress.track(range(recipe.epochs), description=f"train {recipe.recipe} {recipe.architecture}"):
            for indices in torch.randperm(len(data), generator=generator).split(recipe.batch_size):
                x, y = data.inputs[indices].to(device), data.targets[indices].to(device)
                x = _augmented(recipe, module, x, y, clip, generator)
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimiser.step()
                schedule.step()
            if held_out is not None and best.is_over(module, _loss(module, held_out, device)):
                break
    best.restore(module)
    return module.eval().cpu()


class Best:
    """The weights of the smallest loss so far; over after `patience` losses that are no smaller, never without one."""

    def __init__(self, patience: int | None) -> None:
        self._patience, self._loss, self._waited = patience, math.inf, 0
        self._weights: dict[str, Tensor] = {}

    def is_over(self, module: nn.Module, loss: float) -> bool:
        """Take in the loss after an epoch; whether training ends."""
        if loss < self._loss:
            self._loss, self._waited = loss, 0
            self._weights = {key: value.clone() for key, value in module.state_dict().items()}
            return False
        self._waited += 1
        return self._patience is not None and self._waited >= self._patience

    def restore(self, module: nn.Module) -> None:
        """Put the best weights back, where any were kept."""
        if self._weights:
            module.load_state_dict(self._weights)


def _split(recipe: Recipe, data: Dataset, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return (what is trained on, what is held out for `patience`)."""
    if recipe.patience is None or len(data) < HELD_OUT:
        return data, None
    order = torch.randperm(len(data), generator=Generator().manual_seed(derive_seed(seed, "train", "held out")))
    held_out = len(data) // HELD_OUT
    return data.subset(order[held_out:]), data.subset(order[:held_out])


@torch.no_grad()
def _loss(module: nn.Module, data: Dataset, device: torch.device) -> float:
    module.eval()
    total = 0.0
    for x, y in zip(data.inputs.split(512), data.targets.split(512), strict=True):
        total += float(nn.functional.cross_entropy(module(x.to(device)), y.to(device), reduction="sum"))
    module.train()
    return total / len(data)


def _augmented(recipe: Recipe, module: nn.Module, x: Tensor, y: Tensor, clip: Clip, generator: Generator) -> Tensor:
    if "augmentation" in recipe.recipe:
        x = augment(x, generator)
    if "noise" in recipe.recipe:
        noise = torch.randn(x.shape, generator=generator).to(x.device)
        return clip(x + recipe.noise_sigma * noise)
    if recipe.recipe == "adversarial":
        return _pgd(recipe, module, x, y, clip, generator)
    return x


def _pgd(recipe: Recipe, module: nn.Module, x: Tensor, y: Tensor, clip: Clip, generator: Generator) -> Tensor:
    step = 2.5 * recipe.epsilon / recipe.steps
    start = (2 * torch.rand(x.shape, generator=generator) - 1).to(x.device) * recipe.epsilon
    moved = clip(x + start)
    for _ in range(recipe.steps):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(module(moved), y), moved)
        moved = clip((moved.detach() + step * gradient.sign()).clamp(x - recipe.epsilon, x + recipe.epsilon))
    return moved


DEGREES, SCALE, SHIFT = 10.0, 0.1, 0.1  # rotation up to 10 degrees, size and place up to a tenth
ERASED, LARGEST = 0.5, 0.4  # half of the images lose a rectangle of at most 0.4 of each side


def augment(images: Tensor, generator: Generator) -> Tensor:
    """Images (N, C, H, W), each rotated, scaled and shifted by bilinear interpolation (0 beyond the edge), then erased.

    Random erasing (Zhong et al. 2020, arXiv 1708.04896) with the image's own mean. `generator` is on the CPU.
    """
    return erase(affine(images, generator), generator)


def affine(images: Tensor, generator: Generator) -> Tensor:
    """Images under a random rotation, scale and shift of their own."""
    n = len(images)
    angle, size, down, right = (2 * torch.rand(4, n, generator=generator) - 1).unbind()
    angle, size = angle * math.radians(DEGREES), 1 + SCALE * size
    matrices = torch.zeros(n, 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = angle.cos() / size
    matrices[:, 0, 1], matrices[:, 1, 0] = -angle.sin() / size, angle.sin() / size
    # affine_grid measures from -1 to 1: twice the share of a side.
    matrices[:, 0, 2], matrices[:, 1, 2] = 2 * SHIFT * right, 2 * SHIFT * down
    grid = torch.nn.functional.affine_grid(matrices.to(images), list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def erase(images: Tensor, generator: Generator) -> Tensor:
    """Images of which half lose a rectangle of random size and place, filled with the image's mean."""
    n, _, height, width = images.shape
    draw = torch.rand(5, n, generator=generator)
    tall, wide = (LARGEST * draw[1] * height).ceil(), (LARGEST * draw[2] * width).ceil()
    top, column = (draw[3] * (height - tall + 1)).floor(), (draw[4] * (width - wide + 1)).floor()
    rows, columns = torch.arange(height)[None], torch.arange(width)[None]
    in_rows = (rows >= top[:, None]) & (rows < (top + tall)[:, None])
    in_columns = (columns >= column[:, None]) & (columns < (column + wide)[:, None])
    gone = in_rows[:, :, None] & in_columns[:, None, :] & (draw[0] < ERASED)[:, None, None]
    return torch.where(gone[:, None].to(images.device), images.mean((1, 2, 3), keepdim=True), images)
