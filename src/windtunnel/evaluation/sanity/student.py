"""A second model to make transfer examples on: the user's, or a student of the one under assessment."""

from __future__ import annotations

from dataclasses import replace

import torch

from windtunnel.core.classifier import CPU, Classifier
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed
from windtunnel.evaluation.sanity.check import NotRun
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.probes import uniform_in_ball
from windtunnel.inputs.models.load import fit
from windtunnel.inputs.models.loaders import TORCH, Loaded
from windtunnel.inputs.models.others import named_classifier
from windtunnel.inputs.models.training import train_classifier
from windtunnel.params.model import Recipe

LESSONS = 500  # samples of each split that the student learns from at most
BATCHES = 150


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
    ids = tuple(map(str, range(len(inputs))))
    lessons = replace(data, inputs=inputs, targets=answers, ids=ids, labelled=True)
    small = not data.is_image or min(data.inputs.shape[2:]) < 3
    recipe = Recipe(architecture="mlp" if small else "cnn", epochs=max(1, BATCHES * 64 // len(inputs)))
    module = train_classifier(recipe, lessons, seed, CPU)
    return fit(Loaded(module, TORCH, "student", "student of the model"), evidence.subject.classifier.device, data)
