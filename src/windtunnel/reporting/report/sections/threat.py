"""Describe the adversary of the first budget, in words and as a picture of the user's own samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from windtunnel.assessments.figures.pictures import Picture, PictureGrid, picture
from windtunnel.core.contracts import AssessmentKind, Norm, Objective
from windtunnel.core.distances import distance
from windtunnel.core.sample_states import SampleState, states_of
from windtunnel.core.transformations import epsilon_text, transformation_of
from windtunnel.evaluation.witness.parameters import at_units, random_units
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.sandwich import Layer
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Text
from windtunnel.reporting.report.phrases import class_name, listed, prediction_name, region
from windtunnel.reporting.report.sections.statement import layers

SAMPLES = 3
_SEES = {
    "white_box": "the model's weights and gradients",
    "black_box_score": "only the scores of the model",
    "black_box_decision": "only the predicted class",
}


def threat_blocks(inputs: ReportInputs) -> Iterator[Block]:
    """Yield a paragraph, and three samples: clean, with a random change of the full size, and the nearest known example."""
    budgets = layers(inputs.summary)
    if not budgets:
        return
    first = budgets[0]
    description = allowed(first.norm, first.epsilon, _values(inputs))
    yield Text(f"The adversary {description}. {_adversaries(inputs.assessments, first)}".strip())
    if grid := _size(inputs, first):
        yield grid


def _values(inputs: ReportInputs) -> int:
    """Return the number of values of a sample; 0 where nothing says so."""
    pictures = inputs.pictures
    return int(next(iter(pictures.clean.values())).numel()) if pictures and pictures.clean else 0


def allowed(norm: Norm, epsilon: float, values: int = 0) -> str:
    """Describe what a budget allows, on values from 0 to 1."""
    size = epsilon_text(epsilon)
    if transformation := transformation_of(norm):
        manner = "by the worst of all within" if not transformation.is_square else "by, at the worst place, a"
        return f"may transform the image {manner} {transformation.words(epsilon)}"
    if norm == Norm.LINF:
        levels = f", about {epsilon * 255:.0f} of 255 grey levels" if "/255" not in size else ""
        return f"may change every pixel by up to {size} on the scale from 0 (black) to 1 (white){levels}"
    if norm == Norm.L2:
        each = (
            f", like all {values} values by {epsilon / values**0.5:.2g}, or one by {min(1.0, epsilon):.2g}"
            if values
            else ""
        )
        return f"may change the pixels by {size} in all (root of the sum of squares{each})"
    if norm == Norm.L1:
        return f"may change the pixels by {size} in all (sum of the absolute changes)"
    return f"may change {size} values arbitrarily" if norm == Norm.L0 else f"may change a sample by {size} under {norm}"


def _adversaries(assessments: Sequence[Artifacts], layer: Layer) -> str:
    attacks = [a for a in assessments if a.kind is AssessmentKind.EMPIRICAL_ATTACK]
    mine = [a for a in attacks if (region(a).norm, region(a).epsilon) == (layer.norm, layer.epsilon)]
    if not mine:
        return ""
    counts = Counter(a.metadata.semantics.threat_model.value for a in mine)
    names = {
        kind: [a.name for a in mine if a.metadata.semantics.threat_model == kind] for kind in counts if kind in _SEES
    }
    parts = [f"{_who(who)} {'see' if len(who) > 1 else 'sees'} {_SEES[kind]}" for kind, who in names.items()]
    targeted = any(a.metadata.semantics.objective is Objective.TARGETED for a in mine)
    aim = "Some attacks aim at a chosen target class." if targeted else "Any wrong class is a success."
    return f"At this budget: {'; '.join(parts)}. {aim}" if parts else aim


def _who(names: list[str]) -> str:
    return " and ".join(names) if len(names) <= 6 else f"{len(names)} attacks, as {listed(names, 3)},"


def _size(inputs: ReportInputs, layer: Layer) -> PictureGrid | None:
    pictures, base = inputs.pictures, inputs.summary
    if pictures is None or base is None or not pictures.chosen:
        return None
    targets, names = base.tensor("targets"), base.class_names
    header: list[str] = []
    cells: list[Picture | None] = []
    for i in pictures.chosen[:SAMPLES]:
        clean, label = pictures.clean[i], class_name(names, int(targets[i]))
        header += ["clean", "random", "nearest"]
        shifted = random_change(clean, layer.norm, layer.epsilon)
        cells.append(picture(clean, f"{pictures.names[i]}, clean", label))
        cells.append(
            picture(shifted, f"{pictures.names[i]} with a random perturbation of size {layer.budget}", layer.budget)
        )
        cells.append(_nearest(inputs, base, i, label))
    caption = (
        f"What {layer.budget} looks like on three of the samples: clean, with a random perturbation of full size, and the nearest known "
        "adversarial example with its predicted class and distance"
        f"{'' if any(cells[2::3]) else '; none was found of these'}."
    )
    return PictureGrid(caption, tuple(header), (("", tuple(cells)),), small=True)


def _nearest(inputs: ReportInputs, base: Artifacts, i: int, label: str) -> Picture | None:
    pictures = inputs.pictures
    image = pictures.nearest.get(i) if pictures else None
    predictions, distances = base.data.get("perturbed_predictions"), base.data.get("perturbation_distance")
    if pictures is None or image is None or not isinstance(predictions, Tensor) or not isinstance(distances, Tensor):
        return None
    states = states_of(base.data, base.tensor("clean_predictions"), base.tensor("targets"))
    if states[i] != SampleState.BROKEN.code:
        return None  # what stands there is the clean image
    text = f"{label} → {prediction_name(base.class_names, int(predictions[i]))}, {float(distances[i]):.2g}"
    return picture(image, f"nearest known example of {pictures.names[i]}: {text}", text)


def random_change(image: Tensor, norm: str, epsilon: float) -> Tensor:
    """Return a (C, H, W) image in [0, 1] with a random change of size `epsilon` (before clipping), the same on every call."""
    generator = torch.Generator().manual_seed(0)
    if transformation := transformation_of(norm):
        units = random_units(1, len(transformation.names), generator, corner=True)
        content = torch.rand(image[None].shape, generator=generator) if transformation.is_patch else None
        return at_units(transformation, epsilon, image[None], units, content)[0]
    noise = torch.randn(image.shape, generator=generator)
    if norm == Norm.LINF:
        return (image + epsilon * noise.sign()).clamp(0, 1)
    if norm == Norm.L0:
        chosen = torch.randperm(image.numel(), generator=generator)[: int(epsilon)]
        changed = image.flatten().clone()
        changed[chosen] = 1 - changed[chosen]
        return changed.view_as(image)
    size = float(distance(Norm(norm), noise[None], torch.zeros_like(noise)[None])) if norm in set(Norm) else 1.0
    return (image + epsilon * noise / size).clamp(0, 1)
