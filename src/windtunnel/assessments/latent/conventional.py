"""The conventional counterparts, on the same samples and by the same search, with pixels in place of codes.

Adversarial frequency and severity: Bastani et al. 2016, arXiv 1605.07262.
"""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.assessments.latent.search import LINF, SCALED_L2, Geometry, Plan, Problem, minimum_search
from windtunnel.core.classifier import Classifier
from windtunnel.core.seeds import derive_seed
from windtunnel.params.latent import Conventional

GEOMETRY: dict[str, Geometry] = {"scaled_l2": SCALED_L2, "linf": LINF}


def bounds_of(options: Conventional, norm: str) -> tuple[float, ...]:
    """The bounds of adversarial frequency under `norm`, in the units of the inputs."""
    return {"scaled_l2": options.scaled_l2, "linf": options.linf}[norm]


def conventional(
    options: Conventional, classifier: Classifier, inputs: Tensor, classes: Tensor, span: tuple[float, float], seed: int
) -> dict[str, Tensor]:
    """Distances (S,) to the nearest found change of class under each norm, inf for none; noise_predictions (S, D).

    Noise of `noise_sigma` of the range `span` is added and clipped to it, since models take no other inputs.
    """
    device = classifier.device
    centres, labels = inputs.to(device), classes.to(device)
    results = {}
    for norm, geometry in GEOMETRY.items():
        plan = Plan(max(bounds_of(options, norm)) * options.reach, options.restarts, options.steps, options.step_size)
        problem = Problem(lambda points, indices: classifier.module(points).float(), centres, labels, geometry, span)
        results[norm] = minimum_search(problem, plan, _generator(seed, norm)).distances.cpu()
    generator = _generator(seed, "noise")
    sigma = options.noise_sigma * (span[1] - span[0])
    draws = [
        classifier.predict((inputs + sigma * torch.randn(inputs.shape, generator=generator)).clamp(*span), classes)
        for _ in range(options.noise_draws)
    ]
    return {**results, "noise_predictions": torch.stack(draws, 1)}


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "conventional", purpose))
