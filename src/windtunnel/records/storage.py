"""For which samples the images themselves stay in robustness_data.pt (`storage.inputs` of params.yaml).

Of everything else there is an entry for every sample. `kept` says which samples have their images; without it all have. What was
measured of the images before they were dropped is beside them: the distances under every norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import Caveat, Norm
from windtunnel.core.distances import DISTANCE
from windtunnel.core.transformations import PARAMETERS, transformation_of
from windtunnel.core.transformed import parameter_distances
from windtunnel.records.result import AssessmentResult, Tensors, tensor_in

KEPT = "kept"
DISTANCES = "perturbation_distances"
CLEAN, PERTURBED = IMAGES = ("clean_inputs", "perturbed_inputs")
Wanted = int | Literal["all"]

_LOGITS = ("clean_logits", "perturbed_logits")
_NOT_OF_SAMPLES = ("epsilons", KEPT)


def evenly(n: int, count: Wanted) -> Tensor:
    """Which of n samples keep their images: `count` of them, evenly spaced, so that data in the order of its classes shows all."""
    if count == "all" or count >= n:
        return torch.arange(n)
    return torch.arange(count) * n // count


def keep_images(result: AssessmentResult, count: Wanted) -> AssessmentResult:
    """Return `result` with the images of as many samples as `count`, and of none that had none to begin with (`result.pictured`).

    Unchanged where that is every sample.
    """
    data = result.data
    n = len(tensor_in(data, "targets"))
    image_indices = evenly(n, count)
    if result.pictured is not None:
        image_indices = image_indices[result.pictured[image_indices]]
    if len(image_indices) == n:
        return result
    images = {key: scratch.samples_at(tensor_in(data, key), image_indices) for key in IMAGES if key in data}
    caveat = Caveat(
        "images_not_kept",
        f"Of {n} samples the images of {len(image_indices)} are kept (storage.inputs): everything was computed before the others were "
        f"dropped, but pictures, and checks that look at images again, are of those alone.",
    )
    return replace(
        result,
        data={**data, **_measured(result.data), **images, KEPT: image_indices},
        caveats=(*result.caveats, caveat),
        pictured=None,
    )


def distances_of(data: Mapping[str, Tensor | dict[str, Tensor]], norm: Norm) -> Tensor:
    """Return the distance of each perturbed input from its clean one; float32 (N,), NaN where there is none.

    Measured from the images; as they were measured where not all of them were kept. Under the parameters of a transformation
    measured from these; inf for a changed sample that has none.
    """
    if transformation := transformation_of(norm):
        if PARAMETERS in data:
            parameters = data[PARAMETERS]
            assert not isinstance(parameters, Tensor)
            return parameter_distances(transformation, parameters)
        moved = distances_of(data, Norm.L0)
        return moved.where(moved.isnan() | (moved == 0), torch.inf)
    stored = data.get(DISTANCES)
    if stored is not None and not isinstance(stored, Tensor):
        return stored[norm.value]
    return DISTANCE[norm](tensor_in(data, PERTURBED), tensor_in(data, CLEAN))


def of_samples(data: Tensors, indices: Tensor) -> Tensors:
    """Select from `data` the samples at `indices`, whose images are all of those that it has; without tables over several models."""
    n = len(tensor_in(data, "targets"))
    selected: Tensors = {}
    for key, value in data.items():
        if key == DISTANCES:
            continue  # they can be measured again
        if not isinstance(value, Tensor):
            selected[key] = {name: tensor[indices] for name, tensor in value.items() if len(tensor) == n}
        elif key in IMAGES:
            selected[key] = value
        elif key in _LOGITS or (value.ndim == 1 and len(value) == n and key not in _NOT_OF_SAMPLES):
            selected[key] = value[indices]
    return selected


def _measured(data: Tensors) -> Tensors:
    """Return the distances under every norm, which nobody can measure afterwards."""
    if PERTURBED not in data or DISTANCES in data:
        return {}
    return {DISTANCES: {norm.value: distances_of(data, norm) for norm in DISTANCE}}
