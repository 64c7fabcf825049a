"""Pictures of samples: thumbnails on sheets for the per-sample table, and a few samples side by side under every attack.

A report holds thumbnails of as many samples as fit into PIXELS; with more, of samples evenly spaced in the run's order.
Only those rows are read from an assessment's tensors, which are dropped before the next assessment is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor
from torch.nn.functional import interpolate

from windtunnel.assessments.figures.pictures import picture_mode, pixels_of, png_bytes
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.evaluation.summary.evidence import in_latent_space
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.model import Sprite

PIXELS = 2_400_000  # of all thumbnails together: about 9 MB of HTML at worst (noise in colour)
TILE = 40  # pixels; larger images are averaged down
SIDE_BY_SIDE = 3
LARGE = 160  # pixels of a picture side by side, at least


@dataclass
class Pictures:
    """Images taken from the tensors while they are in memory.

    `thumbnails`: rows of the samples shown in the per-sample table with a clean thumbnail, `perturbed_thumbnails` with
    one per assessment too; `chosen`: rows shown side by side; `nearest`: their nearest known examples, where there are any.
    All are indices into `names`.
    """

    names: list[str]
    chosen: tuple[int, ...]
    thumbnails: tuple[int, ...]
    perturbed_thumbnails: tuple[int, ...]
    sprites: list[Sprite] = field(default_factory=list)
    clean: dict[int, Tensor] = field(default_factory=dict)
    perturbed: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    nearest: dict[int, Tensor] = field(default_factory=dict)

    def take(self, artifacts: Artifacts, source: int) -> None:
        """Take the pictures of one worst-case assessment, which is number `source` of the report."""
        artifacts = artifacts.pictured
        images = artifacts.data.get("perturbed_inputs")
        # Elsewhere the images are no changed clean images: averages over corruptions, or decoded ones.
        changed = artifacts.kind is not AssessmentKind.STATISTICAL_SAMPLING
        if not changed or in_latent_space(artifacts) or not isinstance(images, Tensor) or images.ndim != 4:
            return
        row_of = {name: i for i, name in enumerate(artifacts.sample_names)}
        row_of_sample = {i: row_of[self.names[i]] for i in self.perturbed_thumbnails if self.names[i] in row_of}
        finite = {i: row for i, row in row_of_sample.items() if bool(images[row].isfinite().all())}
        if finite:
            self.sprites.append(_sprite(images[list(finite.values())], tuple(finite), source))
        for i in self.chosen:
            row = row_of.get(self.names[i])
            if row is not None and bool(images[row].isfinite().all()):
                self.perturbed[artifacts.name, i] = images[row].clone()


def plan_pictures(base: Artifacts | None, assessments: int) -> Pictures | None:
    """Which samples get pictures; None where there are no images. `base`: the summary, else the clean evaluation."""
    images = base.data.get("clean_inputs") if base else None
    if (
        picture_mode() == "none"
        or base is None
        or not isinstance(images, Tensor)
        or images.ndim != 4
        or not len(images)
    ):
        return None
    height, width = _tile(images)
    room = PIXELS // (2 * height * width)
    stored = base.kept.tolist()
    row, n = {sample: i for i, sample in enumerate(stored)}, len(stored)
    clean = _evenly(stored, room if n * (assessments + 1) > 2 * room else n)
    perturbed = clean if n * (assessments + 1) <= 2 * room else _evenly(stored, room // max(1, assessments))
    pictures = Pictures(base.sample_names, _chosen(base, stored), tuple(sorted({*clean, *perturbed})), perturbed)
    pictures.sprites.append(_sprite(images[[row[i] for i in pictures.thumbnails]], pictures.thumbnails, -1))
    pictures.clean = {i: images[row[i]].clone() for i in pictures.chosen}
    perturbed_inputs = base.data.get("perturbed_inputs")
    if isinstance(perturbed_inputs, Tensor) and perturbed_inputs.shape == images.shape:
        nearest = {i: perturbed_inputs[row[i]].clone() for i in pictures.chosen}
        pictures.nearest = {i: image for i, image in nearest.items() if bool(image.isfinite().all())}
    return pictures


def _chosen(base: Artifacts, stored: Sequence[int]) -> tuple[int, ...]:
    """Select samples of `kept` to show side by side: broken with the smallest change, each of another class; else the first."""
    targets, n = base.tensor("targets"), len(base.sample_names)
    verdicts, moved = base.tensor("verdicts"), base.data.get("perturbation_distance")
    right = base.tensor("clean_predictions") == targets
    broken = ((verdicts == Verdict.ATTACK_SUCCEEDED) & right).tolist()
    distances = moved.tolist() if isinstance(moved, Tensor) else [0.0] * n
    order = sorted(stored, key=lambda i: (not broken[i], distances[i] if broken[i] else 0.0, i))
    first_of_class: dict[int, int] = {}
    for i in order:
        first_of_class.setdefault(int(targets[i]), i)
    rest = [i for i in order if i not in set(first_of_class.values())]
    return tuple([*first_of_class.values(), *rest][:SIDE_BY_SIDE])


def _evenly(samples: Sequence[int], count: int) -> tuple[int, ...]:
    n = len(samples)
    places = range(n) if count >= n else (int(i) for i in np.linspace(0, n - 1, max(1, count)))
    return tuple(samples[i] for i in places)


def _tile(images: Tensor) -> tuple[int, int]:
    height, width = images.shape[-2:]
    shrink = min(1.0, TILE / max(height, width))
    return max(1, round(height * shrink)), max(1, round(width * shrink))


def _sprite(images: Tensor, slots: tuple[int, ...], source: int) -> Sprite:
    height, width = _tile(images)
    if images.shape[-2:] != (height, width):
        images = interpolate(images, (height, width), mode="area")
    pixels = pixels_of(images)
    columns = max(1, min(len(pixels), round(len(pixels) ** 0.5)))
    rows = -(-len(pixels) // columns)
    sheet = np.zeros((rows * columns, *pixels.shape[1:]), np.uint8)
    sheet[: len(pixels)] = pixels
    tail = sheet.shape[3:]
    laid = sheet.reshape(rows, columns, height, width, *tail).swapaxes(1, 2)
    return Sprite(
        source, png_bytes(laid.reshape(rows * height, columns * width, *tail)), (width, height), columns, slots
    )


def thumbnails_note(pictures: Pictures | None, total: int) -> str:
    """Return the note on the sampling of thumbnails; empty where every sample has all of them."""
    if pictures is None or len(pictures.perturbed_thumbnails) == total:
        return ""
    note = f"{len(pictures.thumbnails)} of {total} samples have a thumbnail, evenly spaced"
    return f"{note}; {len(pictures.perturbed_thumbnails)} of them also one per attack, so that this file stays small."
