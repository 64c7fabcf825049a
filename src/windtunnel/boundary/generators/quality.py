"""Measure the quality of a generative model before any metric that relies on it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.seeds import derive_seed
from windtunnel.params.model import Recipe
from windtunnel.records.files import read_json
from windtunnel.records.metadata import Record, fitting

QUALITY_JSON = "quality.json"
ENOUGH = 20  # images a side below which a covariance says nothing
MOST = 5000  # and above which nothing is gained


class Quality(Record):
    """Quality of the models, as `quality` measures it; all None where it could not."""

    frechet_distance: float | None = None
    frechet_distance_of_real: float | None = None
    frechet_images: int | None = None


def read_quality(directory: Path) -> Quality:
    """Read the quality of the models in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / QUALITY_JSON
    return fitting(Quality, read_json(path), str(path), "the quality of generators")


def quality(generators: FittedGenerator, train: Dataset | None, seed: int, device: torch.device) -> Quality:
    """Frechet distance of generated to training images, and of two halves of the training images to each other.

    In the last hidden layer of a small network trained here for that, since there is no Inception for arbitrary images;
    the distance is comparable only with one of the same data. Both sides have equally many images of the same classes,
    so the halves show what a perfect generator would get. Empty where there are no labelled training images.
    """
    if train is None or not train.labelled or len(train) < 2 * ENOUGH:
        return Quality()
    generator = torch.Generator().manual_seed(derive_seed(seed, "generators", "quality"))
    order = torch.randperm(len(train), generator=generator)[: 2 * MOST]
    first_half, other = order[: len(order) // 2], order[len(order) // 2 :]
    network = train_classifier(Recipe(architecture="mlp", epochs=10), train.subset(order), seed, device)
    features = nn.Sequential(*list(network.children())[:-1]).to(device)
    codes = generators.draw(len(first_half), generator).to(device)
    with torch.no_grad():
        generated = generators.decode(codes, train.targets[first_half].to(device))
        reference, real, decoded = (
            features(x.to(device)).cpu() for x in (train.inputs[first_half], train.inputs[other], generated)
        )
    return Quality(
        frechet_distance=frechet_distance(decoded, real),
        frechet_distance_of_real=frechet_distance(reference, real),
        frechet_images=len(first_half),
    )


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Frechet distance of Gaussians fitted to features (N, F) and (M, F): ||m - n||^2 + tr(S + T - 2 (S T)^(1/2)).

    It has 9 significant digits: in two runs of one program LAPACK's eigenvalues may differ in their last digits.
    Source: Heusel et al. 2017, arXiv 1706.08500.
    """
    first, two = a.double().numpy(), b.double().numpy()
    s, t = np.cov(first, rowvar=False), np.cov(two, rowvar=False)
    # The trace of the root is the sum of the roots of the eigenvalues, which are 0 or larger but for rounding. Units that
    # are never active make the product singular, and scipy's sqrtm unsure.
    roots = np.sqrt(np.linalg.eigvals(s @ t).real.clip(min=0))
    distance = float(np.sum((first.mean(0) - two.mean(0)) ** 2) + np.trace(s + t) - 2 * roots.sum())
    return float(f"{distance:.9g}")
