"""Stored points of an assessment with an epsilon: adversarial examples inside it, and beside them the points of any distance.

`perturbed_inputs` of robustness_data.pt holds an example for a sample that was broken and the clean input for every other one.
Where the search ended for those, an example beyond the epsilon or a point that is still classified correctly, is stored
under the keys of `KEYS`. `write_artifacts` is the one place that stores a result, `read_artifacts` puts the points back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.chunks import put_samples
from windtunnel.core.contracts import AssessmentKind, PerturbationBudget, Semantics, Verdict
from windtunnel.core.distances import DISTANCE, within
from windtunnel.core.errors import UnsoundError
from windtunnel.core.transformations import transformation_of
from windtunnel.records.result import Tensors, plain_tensors

SAMPLES, INPUTS = "any_distance_samples", "any_distance_inputs"
# key of robustness_data.pt: (where the points are stored, the value of a sample that was not changed)
_OF_SAMPLES = {
    "perturbed_predictions": ("any_distance_predictions", "clean_predictions"),
    "perturbation_distance": ("any_distance_distances", ""),
    "perturbed_logits": ("any_distance_logits", "clean_logits"),
}
KEYS = (SAMPLES, INPUTS, *(stored for stored, _ in _OF_SAMPLES.values()))


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
    broken = _is_broken(table)
    image_indices = table.get("kept", torch.arange(len(broken)))
    moved = ~broken & (table["perturbation_distance"] != 0)
    samples = moved.nonzero().flatten()
    if not len(samples):
        return data
    images = moved[image_indices].nonzero().flatten()
    points = scratch.samples_at(table["perturbed_inputs"], images)
    inputs = scratch.copy_of(table["perturbed_inputs"])
    put_samples(inputs, images, table["clean_inputs"], images)
    stored: Tensors = {**data, "perturbed_inputs": inputs, SAMPLES: samples, INPUTS: points}
    for key, (name, clean) in _OF_SAMPLES.items():
        if key in table and (not clean or clean in table):
            stored[name] = table[key][samples]
            value = table[key].clone()
            value[samples] = table[clean][samples].to(value) if clean else 0
            stored[key] = value
    return stored


def search_form(stored: Tensors) -> Tensors:
    """Return what `stored_form` was given: the points of any distance in their rows, and their keys gone."""
    samples = stored.get(SAMPLES)
    if not isinstance(samples, Tensor):
        return stored
    data: Tensors = {key: value for key, value in stored.items() if key not in KEYS}
    table = plain_tensors(stored)
    image_indices = table.get("kept", torch.arange(len(table["targets"])))
    moved = torch.zeros(len(table["targets"]), dtype=torch.bool)
    moved[samples] = True
    images = moved[image_indices].nonzero().flatten()
    inputs = scratch.copy_of(table["perturbed_inputs"])
    put_samples(inputs, images, table[INPUTS], torch.arange(len(images)))
    data["perturbed_inputs"] = inputs
    for key, (name, _) in _OF_SAMPLES.items():
        if name in table:
            value = table[key].clone()
            value[samples] = table[name]
            data[key] = value
    return data
