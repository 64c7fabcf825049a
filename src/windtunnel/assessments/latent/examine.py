"""Results of one classifier on latent codes: their images, noisy versions of them, and the nearest that it takes for another class."""

from dataclasses import replace

import torch
from torch import Tensor

from windtunnel.assessments.latent import search
from windtunnel.assessments.latent.metrics import at_epsilon
from windtunnel.assessments.latent.noise import perturb, shrink
from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.core.classifier import Classifier
from windtunnel.core.seeds import derive_seed
from windtunnel.params.latent import Conventional, Effort, LatentEntry


def examine(
    entry: LatentEntry, generators: FittedGenerator, classifier: Classifier, latents: Tensor, classes: Tensor, seed: int
) -> dict[str, Tensor]:
    """Compute all that the metrics need of S codes (S, n_L) of `classes` (S,), all on the CPU.

    inputs, predictions: of the images (S, ...) of the codes. noisy_latents: (S, E, n_L), the first draw at each of E noise
    levels. noisy_predictions: (S, E, D) for D draws. Beside them what `nearest` finds at the first decay epsilon, and under
    keys with the prefix of `at_epsilon` what it finds at each further one.
    """
    device = classifier.device
    latents, classes = latents.to(device), classes.to(device)
    images = decode(generators, latents, classes)
    results = {
        "inputs": images,
        "predictions": classifier.predict(images, classes.cpu()),
        **_noisy(entry, generators, classifier, latents, classes, seed),
    }
    for index, epsilon in enumerate(entry.decay_epsilon):
        prefix = at_epsilon(epsilon) if index else ""
        at = nearest(entry, generators, classifier, latents, classes, epsilon, seed)
        results |= {f"{prefix}{key}": value for key, value in at.items()}
    return results


def nearest(
    entry: LatentEntry,
    generators: FittedGenerator,
    classifier: Classifier,
    latents: Tensor,
    classes: Tensor,
    epsilon: float,
    seed: int,
) -> dict[str, Tensor]:
    """Return the nearest change of class around the codes (S, n_L) decayed at `epsilon`, all on the CPU.

    decayed_inputs, perturbed_inputs: (S, ...), decoded from the centre of the search and from `perturbed_latents`
    (S, n_L); with decayed_predictions, perturbed_predictions: (S,). distances: (S,) scaled norm of the change from the
    decayed code; inf where no change of class was found, and then the perturbed code is the decayed one. unconfirmed: (S,)
    bool, whether a second forward pass took back what the search had found.
    """
    device = classifier.device
    centres = latents * shrink(epsilon)
    problem = search.Problem(
        lambda points, indices: classifier.module(generators.decode(points, classes[indices])).float(),
        centres,
        classes,
        search.SCALED_L2,
    )
    minimum = search.minimum_search(problem, plan_of(entry.minimum, entry.minimum.rho), _generator(seed, "minimum"))
    for rho in entry.bounded.rho:
        _search_within(rho, entry, problem, minimum, seed)
    decayed, perturbed = (decode(generators, codes, classes) for codes in (centres, centres + minimum.changes))
    predictions = classifier.predict(perturbed, classes.cpu())
    unconfirmed = minimum.distances.isfinite().cpu() & (predictions == classes.cpu())
    minimum.distances[unconfirmed.to(device)] = torch.inf
    return {
        "decayed_inputs": decayed,
        "decayed_predictions": classifier.predict(decayed, classes.cpu()),
        "perturbed_latents": (centres + minimum.changes).cpu(),
        "perturbed_inputs": perturbed,
        "perturbed_predictions": predictions,
        "distances": minimum.distances.cpu(),
        "unconfirmed": unconfirmed,
    }


def _search_within(
    rho: float, entry: LatentEntry, problem: search.Problem, minimum: search.NearestChanges, seed: int
) -> None:
    """Search within `rho` for the samples that nothing so far brought inside; enter what is nearer into `found`."""
    remaining = (minimum.distances > rho).nonzero().flatten()
    if not len(remaining):
        return
    rest = replace(
        problem,
        scores=lambda points, indices: problem.scores(points, remaining[indices]),
        centres=problem.centres[remaining],
        classes=problem.classes[remaining],
    )
    near = search.bounded_search(rest, plan_of(entry.bounded, rho), _generator(seed, "bounded"))
    closer = near.distances < minimum.distances[remaining]
    minimum.changes[remaining[closer]] = near.changes[closer]
    minimum.distances[remaining[closer]] = near.distances[closer]


def plan_of(effort: Effort | Conventional, rho: float) -> search.SearchSettings:
    """Return the plan of a block of params inside a radius."""
    return search.SearchSettings(rho, effort.restarts, effort.steps, effort.step_size)


@torch.no_grad()
def decode(generators: FittedGenerator, latents: Tensor, classes: Tensor) -> Tensor:
    """Images (N, ...) of codes, on the CPU."""
    return generators.decode(latents, classes).float().cpu()


def predict_codes(generators: FittedGenerator, classifier: Classifier, latents: Tensor, classes: Tensor) -> Tensor:
    """Predictions (N,) for the images of codes, which are not kept."""
    answers = []
    with torch.no_grad():
        for z, c in zip(latents.split(1024), classes.split(1024), strict=True):
            answers.append(classifier.criterion.predict(classifier.module(generators.decode(z, c)), c).cpu())
    return torch.cat(answers)


def _noisy(
    entry: LatentEntry, generators: FittedGenerator, classifier: Classifier, latents: Tensor, classes: Tensor, seed: int
) -> dict[str, Tensor]:
    generator, draws = _generator(seed, "noise"), entry.noise_draws
    repeated, labels = latents.repeat_interleave(draws, 0), classes.repeat_interleave(draws)
    codes = [perturb(repeated, epsilon, generator) for epsilon in entry.noise_levels]
    indices = [predict_codes(generators, classifier, noisy, labels) for noisy in codes]
    return {
        "noisy_latents": torch.stack([noisy[::draws].cpu() for noisy in codes], 1),
        "noisy_predictions": torch.stack([row.view(len(latents), draws) for row in indices], 1),
    }


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, purpose))
