"""A second model whose adversarial examples are tried on the model under assessment: the user's, or a student."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.boundary.models.load import fit
from windtunnel.boundary.models.loaders import TORCH, Loaded
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.seeds import derive_seed, seeded

STEPS, BATCH, RATE = 40, 128, 8e-3  # of Adam


def train_student(
    inputs: Tensor, classes: Tensor, data: Dataset, device: torch.device, seed: int, noise: float
) -> Classifier:
    """Train a small network on what is known of the model: samples with the classes that the model, or their label, gives them.

    The model is asked nothing (compare Papernot et al. 2017, arXiv 1602.02697, whose student asks it about points of its own).

    Of `inputs` (n, ...) with `classes` int64 (n,) a second copy gets uniform noise in [-noise, noise].

    """
    seed = derive_seed(seed, "student")
    generator = torch.Generator().manual_seed(seed)
    low, high = data.value_range
    shaken = (inputs + noise * (2 * torch.rand(inputs.shape, generator=generator) - 1)).clamp(low, high)
    small = not data.is_image or min(data.inputs.shape[2:]) < 3
    with seeded(seed):
        module = ARCHITECTURES["mlp" if small else "cnn"](tuple(inputs.shape[1:]), data.num_classes)
    _teach(module, torch.cat([inputs, shaken]), torch.cat([classes, classes]).clamp(min=0), generator)
    return fit(Loaded(module.eval(), TORCH, "student", "student of the model"), device, data)


def _teach(module: nn.Module, inputs: Tensor, answers: Tensor, generator: torch.Generator) -> None:
    """Adam on the cross entropy of random batches, the rate rising in the first quarter and falling in the last.

    In its functional form: the first optimiser object of a process imports torch's compiler, which takes longer than all this.
    """
    weights: list[Tensor] = list(module.parameters())
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    counts = [torch.zeros(()) for _ in weights]
    for step in range(STEPS):
        drawn = torch.randint(0, len(inputs), (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(module(inputs[drawn]), answers[drawn])
        gradients = torch.autograd.grad(loss, weights)
        rate = RATE * min(1.0, 4 * (step + 1) / STEPS, 4 * (1 - step / STEPS))
        with torch.no_grad():
            adam(
                weights, list(gradients), means, squares, [], counts,
                amsgrad=False, beta1=0.9, beta2=0.999, lr=rate, weight_decay=0.0, eps=1e-8, maximize=False,
            )  # fmt: skip
