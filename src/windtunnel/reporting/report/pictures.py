"""Pictures of samples and figures of assessments, taken while the tensors of an assessment are in memory; kept are blocks alone.

Thumbnails are on sheets for the per-sample table, and a few samples side by side under every attack.
A report holds thumbnails of as many samples as fit into PIXELS; with more, of samples evenly spaced in the run's order.
Only those rows are read from an assessment's tensors, which are dropped before the next assessment is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from windtunnel.assessments.figures.base import VISUALISERS, drawn
from windtunnel.assessments.figures.pictures import picture_mode, pixels_of, sheet_png, shrunk, tile_of
from windtunnel.assessments.figures.registry import register_figures
from windtunnel.assessments.figures.scene import Scene
from windtunnel.boundary.pictures import is_picture
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.evaluation.summary.evidence import in_latent_space
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import FigureRecord
from windtunnel.reporting.report.model import ODD_METADATA, Block, Chart, Figure, Sprite, Text

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
        finite = {
            i: row
            for i in {*self.perturbed_thumbnails, *self.chosen}
            if (row := row_of.get(self.names[i])) is not None and bool(images[row].isfinite().all())
        }
        if small := tuple(i for i in self.perturbed_thumbnails if i in finite):
            self.sprites.append(_sprite(images[[finite[i] for i in small]], small, source))
        for i in self.chosen:
            if i in finite:
                self.perturbed[artifacts.name, i] = images[finite[i]].clone()


def plan_pictures(base: Artifacts | None, assessments: int) -> Pictures | None:
    """Which samples get pictures; None where there are no images. `base`: the summary, else the clean evaluation."""
    images = base.data.get("clean_inputs") if base else None
    if base is None or not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        return None
    if picture_mode() == "none":
        return None
    width, height = tile_of(images, TILE)
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


def _sprite(images: Tensor, slots: tuple[int, ...], source: int) -> Sprite:
    pixels = pixels_of(shrunk(images, TILE))
    columns = max(1, min(len(pixels), round(len(pixels) ** 0.5)))
    return Sprite(source, sheet_png(pixels, columns), tile_of(images, TILE), columns, slots)


def thumbnails_note(pictures: Pictures | None, total: int) -> str:
    """Return the note on the sampling of thumbnails; empty where every sample has all of them."""
    if pictures is None or len(pictures.perturbed_thumbnails) == total:
        return ""
    note = f"{len(pictures.thumbnails)} of {total} samples have a thumbnail, evenly spaced"
    return f"{note}; {len(pictures.perturbed_thumbnails)} of them also one per attack, so that this file stays small."


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure of an assessment. `repeats`: shows clean images or maps of the change, which the report may show elsewhere.

    essential: whether the section on its family shows it.
    """

    visualiser: str
    blocks: tuple[Block, ...]
    repeats: bool = False
    essential: bool = False


def figures_of(artifacts: Artifacts) -> tuple[Drawn, ...]:
    """Return the figures that metadata.json lists, in its order."""
    register_figures()
    return tuple(_figures(artifacts))


def _figures(artifacts: Artifacts) -> Iterator[Drawn]:
    pictures = picture_files(artifacts)
    for row in artifacts.metadata.visualisers:
        name, title = row.name, row.title or row.name
        path = pictures.get(row.file)
        repeats = row.embeds_clean_input or row.embeds_perturbation_map
        essential = name in VISUALISERS and VISUALISERS[name].essential
        if row.empty:
            yield Drawn(name, (Text(f"{title}: {row.empty}"),), essential=essential)
        elif blocks := _described(artifacts, row, title):
            yield Drawn(name, blocks, repeats, essential)
        elif path:
            yield Drawn(name, (Figure(path, f"{artifacts.name}: {title}"),), repeats, essential)


def _described(artifacts: Artifacts, row: FigureRecord, title: str) -> tuple[Block, ...]:
    """Yield the blocks that the visualiser of a row of metadata.json draws with its options; nothing where it is unknown or cannot."""
    visualiser = VISUALISERS.get(row.name)
    if visualiser is None:
        return ()
    try:
        drawings, empty = drawn(visualiser(**row.options), artifacts)
    except ODD_METADATA:
        return ()
    if empty:
        return (Text(f"{title}: {empty}"),)
    caption = f"{artifacts.name}: {title}"
    return tuple(Chart(drawing, caption) if isinstance(drawing, Scene) else drawing for drawing in drawings)


def picture_files(artifacts: Artifacts) -> Mapping[str, Path]:
    """Return the files of `visualisers` in metadata.json that are pictures in the assessment's own directory."""
    names = [row.file for row in artifacts.metadata.visualisers]
    paths = {name: artifacts.directory / name for name in names if Path(name).name == name}
    return {name: path for name, path in paths.items() if path.suffix == ".png" and is_picture(path)}
