"""What one classifier makes of codes: their images, noisy versions of them, and the nearest that it takes for another class."""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.assessments.latent.noise import perturb, shrink
from windtunnel.assessments.latent.search import SCALED_L2, Plan, Problem, bounded_search, minimum_search
from windtunnel.core.classifier import Classifier, argmax_or_invalid
from windtunnel.core.seeds import derive_seed
from windtunnel.inputs.generators.interface import Generators
from windtunnel.params.latent import LatentEntry, Search


def examine(
    entry: LatentEntry, generators: Generators, classifier: Classifier, latents: Tensor, classes: Tensor, seed: int
) -> dict[str, Tensor]:
    """Everything the metrics need of S codes (S, n_L) of `classes` (S,), all on the CPU.

    inputs, decayed_inputs, perturbed_inputs: (S, ...), decoded from the code itself, from its decayed version (the
    centre of the search) and from `perturbed_latents` (S, n_L). predictions, decayed_predictions,
    perturbed_predictions: (S,). noisy_predictions: (S, E, D) for D draws at each of E noise levels. distances: (S,)
    scaled norm of the change from the decayed code; inf where no change of class was found, and then the perturbed code
    is the decayed one. unconfirmed: (S,) bool, whether a second forward pass took back what the search had found.
    """
    device = classifier.device
    latents, classes = latents.to(device), classes.to(device)
    centres = latents * shrink(entry.decay_epsilon)
    problem = Problem(
        lambda points, rows: classifier.module(generators.decode(points, classes[rows])).float(),
        centres,
        classes,
        SCALED_L2,
    )
    found = minimum_search(problem, plan_of(entry.minimum), _generator(seed, "minimum"))
    outside = (found.distances > entry.bounded.rho).nonzero().flatten()
    if len(outside):
        near = Problem(
            lambda points, rows: problem.scores(points, outside[rows]), centres[outside], classes[outside], SCALED_L2
        )
        repeated = bounded_search(near, plan_of(entry.bounded), _generator(seed, "bounded"))
        closer = repeated.distances < found.distances[outside]
        found.changes[outside[closer]] = repeated.changes[closer]
        found.distances[outside[closer]] = repeated.distances[closer]
    images, decayed, perturbed = (
        decode(generators, codes, classes) for codes in (latents, centres, centres + found.changes)
    )
    predictions = classifier.predict(perturbed)
    unconfirmed = found.distances.isfinite().cpu() & (predictions == classes.cpu())
    found.distances[unconfirmed.to(device)] = torch.inf
    return {
        "inputs": images,
        "predictions": classifier.predict(images),
        "decayed_inputs": decayed,
        "decayed_predictions": classifier.predict(decayed),
        "noisy_predictions": _noisy(entry, generators, classifier, latents, classes, seed),
        "perturbed_latents": (centres + found.changes).cpu(),
        "perturbed_inputs": perturbed,
        "perturbed_predictions": predictions,
        "distances": found.distances.cpu(),
        "unconfirmed": unconfirmed,
    }


def plan_of(search: Search) -> Plan:
    """The plan of a block of params."""
    return Plan(search.rho, search.restarts, search.steps, search.step_size)


@torch.no_grad()
def decode(generators: Generators, latents: Tensor, classes: Tensor) -> Tensor:
    """Images (N, ...) of codes, on the CPU."""
    return generators.decode(latents, classes).float().cpu()


def predict_codes(generators: Generators, classifier: Classifier, latents: Tensor, classes: Tensor) -> Tensor:
    """Predictions (N,) for the images of codes, which are not kept."""
    with torch.no_grad():
        parts = zip(latents.split(1024), classes.split(1024), strict=True)
        return torch.cat([argmax_or_invalid(classifier.module(generators.decode(z, c))).cpu() for z, c in parts])


def _noisy(
    entry: LatentEntry, generators: Generators, classifier: Classifier, latents: Tensor, classes: Tensor, seed: int
) -> Tensor:
    generator = _generator(seed, "noise")
    repeated, labels = latents.repeat_interleave(entry.noise_draws, 0), classes.repeat_interleave(entry.noise_draws)
    rows = [
        predict_codes(generators, classifier, perturb(repeated, epsilon, generator), labels)
        for epsilon in entry.noise_levels
    ]
    return torch.stack([row.view(len(latents), entry.noise_draws) for row in rows], 1)


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, purpose))
