"""A second model to make transfer examples on: the user's, or a student of the one under assessment."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.boundary.models.load import fit
from windtunnel.boundary.models.loaders import TORCH, Loaded
from windtunnel.boundary.models.others import named_classifier
from windtunnel.core.classifier import Classifier
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.evaluation.sanity.check import NotRun
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.probes import uniform_in_ball

LESSONS = 500  # samples of each split that the student learns from at most
STEPS, BATCH, RATE = 40, 128, 8e-3  # of Adam


def surrogate_of(evidence: Evidence, epsilon: float) -> Classifier:
    """The model at `sanity.surrogate`, else a student of the model under assessment. Raises NotRun where the former is not there."""
    settings, dataset = evidence.params.sanity, evidence.subject.dataset
    if settings.surrogate is None:
        return evidence.once("student", lambda: student_of(evidence, epsilon))
    device = str(evidence.subject.classifier.device)
    try:
        return named_classifier("sanity.surrogate", settings.surrogate, dataset, device, evidence.params.tracking.uri)
    except UserError as error:
        raise NotRun(str(error)) from error


def student_of(evidence: Evidence, epsilon: float) -> Classifier:
    """A small network that learned the model's answers on the samples, and on random points around them.

    It knows of the model what an adversary with queries can know (Papernot et al. 2017, arXiv 1602.02697).
    """
    data, seed = evidence.subject.dataset, derive_seed(evidence.subject.seed, "student")
    generator = torch.Generator().manual_seed(seed)
    known = [data.inputs[:LESSONS], *([] if evidence.train is None else [evidence.train.inputs[:LESSONS]])]
    inputs = torch.cat([torch.cat([part, uniform_in_ball(part, epsilon, generator)]) for part in known])
    answers = evidence.subject.classifier.predict(inputs).clamp(min=0)
    small = not data.is_image or min(data.inputs.shape[2:]) < 3
    with seeded(seed):
        module = ARCHITECTURES["mlp" if small else "cnn"](tuple(inputs.shape[1:]), data.num_classes)
    _teach(module, inputs, answers, generator)
    return fit(
        Loaded(module.eval(), TORCH, "student", "student of the model"), evidence.subject.classifier.device, data
    )


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
