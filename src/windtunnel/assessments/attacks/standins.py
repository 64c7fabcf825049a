"""Ways around gradients that mislead, as invokers: the library's attack on a student of the model in place of the model."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.calls import LibraryCall
from windtunnel.assessments.attacks.gradients import StraightThrough
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.classifier import CPU
from windtunnel.core.criterion import argmax_or_invalid
from windtunnel.core.dataset import Dataset
from windtunnel.params.model import Recipe

BATCHES = 300
COPIES = 4
SPREAD = 0.1  # of the uniform noise around the samples that the student is taught on


def bpda(call: LibraryCall, model: nn.Module) -> Tensor:
    """Attack with the model's answers and the gradients of a student that learned them (Athalye et al. 2018, arXiv 1802.00420)."""
    return _run(call, StraightThrough(model, student_of(call, model)))


def transfer(call: LibraryCall, model: nn.Module) -> Tensor:
    """Attack the student, and evaluate its adversarial examples on the model (Papernot et al. 2017, arXiv 1602.02697)."""
    return _run(call, student_of(call, model))


def student_of(call: LibraryCall, model: nn.Module) -> nn.Module:
    """Train a small network on the model's answers to the batch and to random points around it."""
    return distilled(call.inputs, model)


def distilled(samples: Tensor, model: nn.Module) -> nn.Module:
    """Return a small network taught the model's answers to `samples` (n, ...) and to random points around them."""
    generator = torch.Generator().manual_seed(0)
    clean = samples.detach().cpu()
    noisy = [clean + SPREAD * (2 * torch.rand(clean.shape, generator=generator) - 1) for _ in range(COPIES)]
    inputs = torch.cat([clean, *noisy]).clamp(0, 1)
    with torch.no_grad():
        logits = torch.cat([model(part.to(samples.device)).float().cpu() for part in inputs.split(256)])
    answers = argmax_or_invalid(logits).clamp(min=0)
    names = tuple(map(str, range(logits.shape[1])))
    lessons = Dataset(inputs, answers, tuple(map(str, range(len(inputs)))), names)
    small = inputs.ndim != 4 or min(inputs.shape[2:]) < 3
    recipe = Recipe(architecture="mlp" if small else "cnn", epochs=max(1, BATCHES * 64 // len(inputs)))
    student = train_classifier(recipe, lessons, 0, CPU).to(samples.device)
    for parameter in student.parameters():
        parameter.requires_grad_(False)
    return student


def _run(call: LibraryCall, model: nn.Module) -> Tensor:
    # Entries with these invokers are of torchattacks, whose attacks are built with the model and called with the batch.
    attack = cast(Callable[[Tensor, Tensor], Tensor], call.attack(model, **call.built))
    return attack(call.inputs, call.labels)
