"""The form of the tensors in robustness_data.pt: whose images are there, and where a search ended that broke nothing.

`storage.inputs` of params.yaml says of how many samples the images are stored; of everything else there is an entry for every
sample. `kept` says which samples have their images; without it all have. What was measured of the images before they were dropped
is beside them: the distances under every norm.

`perturbed_inputs` of an attack with an epsilon holds an example for a sample that was broken and the clean input for every other
one. Where the search ended for those, an example beyond the epsilon or a point that is still classified correctly, is stored
under `POINT_KEYS`. `write_artifacts` is the one place that stores a result, `read_artifacts` puts the points back.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import AssessmentKind, Caveat, Norm, PerturbationBudget, Semantics, Verdict
from windtunnel.core.distances import DISTANCE, within
from windtunnel.core.errors import UnsoundError
from windtunnel.core.scratch import put_samples
from windtunnel.core.transformations import PARAMETERS, transformation_of
from windtunnel.core.transformed import parameter_distances
from windtunnel.records.result import AssessmentResult, Tensors, plain_tensors, tensor_in

KEPT = "kept"
DISTANCES = "perturbation_distances"
CLEAN, PERTURBED = IMAGES = ("clean_inputs", "perturbed_inputs")
Wanted = int | Literal["all"]

_LOGITS = ("clean_logits", "perturbed_logits")
_NOT_OF_SAMPLES = ("epsilons", KEPT)

POINT_SAMPLES, POINTS = "any_distance_samples", "any_distance_inputs"
# key of robustness_data.pt: (where the points are stored, the value of a sample that was not changed)
_OF_POINTS = {
    "perturbed_predictions": ("any_distance_predictions", "clean_predictions"),
    "perturbation_distance": ("any_distance_distances", ""),
    "perturbed_logits": ("any_distance_logits", "clean_logits"),
}
POINT_KEYS = (POINT_SAMPLES, POINTS, *(stored for stored, _ in _OF_POINTS.values()))


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
        f"The images of {len(image_indices)} of {n} samples are kept (storage.inputs). All metrics are over all samples; pictures, and "
        f"checks that need images, use the kept ones.",
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


def require_inside(data: Tensors, semantics: Semantics) -> None:
    """Raise UnsoundError where a sample counts as broken by an example outside the epsilon."""
    if (epsilon := _epsilon(data, semantics, of_transformations=True)) is not None:
        table = plain_tensors(data)
        outside = _is_broken(table) & ~within(table["perturbation_distance"], epsilon)
        if outside.any():
            raise UnsoundError(
                f"{int(outside.sum())} samples count as broken by an example outside of epsilon {epsilon:g}"
            )


def _epsilon(data: Tensors, semantics: Semantics, *, of_transformations: bool = False) -> float | None:
    """Return the epsilon of an attack; None if the assessment is no attack, has none, or searched a transformation.

    Rows of a transformation keep the image, the parameters and the distance of the worst point, broken or not.
    """
    region = semantics.perturbation
    if semantics.algorithm.kind is not AssessmentKind.EMPIRICAL_ATTACK or not isinstance(region, PerturbationBudget):
        return None
    has_points = "perturbed_inputs" in data and "perturbation_distance" in data
    is_measured = region.norm in DISTANCE or (of_transformations and transformation_of(region.norm) is not None)
    return region.epsilon if has_points and is_measured else None


def _is_broken(table: Mapping[str, Tensor]) -> Tensor:
    return (table["verdicts"] == Verdict.ATTACK_SUCCEEDED) & (table["clean_predictions"] == table["targets"])


def stored_form(data: Tensors, semantics: Semantics) -> Tensors:
    """Return `data` in the form of robustness_data.pt; unchanged unless it is of an attack with an epsilon.

    Raises UnsoundError as `require_inside`.
    """
    require_inside(data, semantics)
    if _epsilon(data, semantics) is None:
        return data
    table = plain_tensors(data)
    samples = (~_is_broken(table) & (table["perturbation_distance"] != 0)).nonzero().flatten()
    if not len(samples):
        return data
    images = _images_of(samples, table)
    stored: Tensors = {**data, POINT_SAMPLES: samples, POINTS: scratch.samples_at(table[PERTURBED], images)}
    stored[PERTURBED] = _with_images(table[PERTURBED], images, table[CLEAN], images)
    for key, (name, clean) in _OF_POINTS.items():
        if key in table and (not clean or clean in table):
            stored[name] = table[key][samples]
            value = table[key].clone()
            value[samples] = table[clean][samples].to(value) if clean else 0
            stored[key] = value
    return stored


def search_form(stored: Tensors) -> Tensors:
    """Return what `stored_form` was given: the points of any distance in their rows, and their keys gone."""
    samples = stored.get(POINT_SAMPLES)
    if not isinstance(samples, Tensor):
        return stored
    data: Tensors = {key: value for key, value in stored.items() if key not in POINT_KEYS}
    table = plain_tensors(stored)
    images = _images_of(samples, table)
    data[PERTURBED] = _with_images(table[PERTURBED], images, table[POINTS], torch.arange(len(images)))
    for key, (name, _) in _OF_POINTS.items():
        if name in table:
            value = table[key].clone()
            value[samples] = table[name]
            data[key] = value
    return data


def _images_of(samples: Tensor, table: Mapping[str, Tensor]) -> Tensor:
    """Return the rows, among the images that are there, of those of `samples` (int64) that have one."""
    return torch.isin(table[KEPT], samples).nonzero().flatten() if KEPT in table else samples


def _with_images(images: Tensor, at: Tensor, source: Tensor, indices: Tensor) -> Tensor:
    """Return a copy of `images` whose rows `at` are the rows `indices` of `source`."""
    copy = scratch.copy_of(images)
    put_samples(copy, at, source, indices)
    return copy
