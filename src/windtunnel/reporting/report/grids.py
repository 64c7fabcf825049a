"""Pictures in place of pictures of pictures: what a visualiser lays out from images, the report lays out in its own style.

A row of GRIDS stands for the picture of that visualiser, as one of charts/of_visualiser.py does for charts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.figures.pictures import SIDE, Picture, PictureGrid, picture
from windtunnel.assessments.figures.png import enlarged, pixels_of, png_bytes
from windtunnel.core.artifacts import Artifacts, load_tensors
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.files import DATA_FILE
from windtunnel.reporting.report.words import class_name, suite_pairs

_ACROSS = 8


def extremes(artifacts: Artifacts, values: Tensor, what: str, count: int = 4) -> PictureGrid | None:
    """The samples with the smallest and the largest finite `values` (N,), right at first: the ends of a sorted picture."""
    images, targets = artifacts.data.get("clean_inputs"), artifacts.tensor("targets")
    known = (artifacts.tensor("clean_predictions") == targets) & values.isfinite()
    order = [int(i) for i in values.masked_fill(~known, torch.inf).argsort(stable=True)[: int(known.sum())]]
    if not isinstance(images, Tensor) or images.ndim != 4 or len(order) < 2 * count:
        return None
    names = artifacts.sample_names

    def row(chosen: Sequence[int]) -> tuple[Picture, ...]:
        return tuple(
            picture(images[i], f"{names[i]}, {what} {float(values[i]):.3g}", f"{float(values[i]):.3g}") for i in chosen
        )

    cells = (*row(order[:count]), *row(order[-count:]))
    header = (*("least" for _ in range(count)), *("most" for _ in range(count)))
    return PictureGrid(f"{artifacts.name}: the samples with the least and the most {what}", header, (("", cells),))


def _corruption_sheet(a: Artifacts) -> PictureGrid | None:
    """One sample under every corruption at its highest severity, from the directories of the single corruptions."""
    pairs, images = suite_pairs(a), a.data.get("clean_inputs")
    if not pairs or not isinstance(images, Tensor) or images.ndim != 4:
        return None
    worst, names = max(s for _, s in pairs), a.class_names
    target = int(a.tensor("targets")[0])
    tiles = [("clean", picture(images[0], f"{a.sample_names[0]}, clean", class_name(names, target)))]
    for corruption in [c for c, s in pairs if s == worst]:
        try:
            data = load_tensors(a.directory / f"{corruption}-{worst}" / DATA_FILE, mapped=True)
        except UserError:
            continue
        inputs, answers = data.get("perturbed_inputs"), data.get("perturbed_predictions")
        if isinstance(inputs, Tensor) and isinstance(answers, Tensor) and len(inputs):
            said = class_name(names, int(answers[0]))
            words = said if int(answers[0]) == target else f"{class_name(names, target)} → {said}"
            tiles.append((corruption.replace("_", " "), picture(inputs[0], f"under {corruption}: {words}", words)))
    if len(tiles) == 1:
        return None
    rows = tuple(
        ("", tuple(Picture(p.png, p.alt, f"{name}: {p.text}") for name, p in tiles[start : start + _ACROSS]))
        for start in range(0, len(tiles), _ACROSS)
    )
    return PictureGrid(f"{a.name}: {a.sample_names[0]} under every corruption at severity {worst}", (), rows)


def _nearest_on_the_manifold(a: Artifacts) -> PictureGrid | None:
    keys = ("clean_inputs", "reconstructed_inputs", "perturbed_inputs")
    images = [a.data.get(key) for key in keys]
    distances = a.data.get("perturbation_distance")
    if (
        "latents" not in a.data
        or not isinstance(distances, Tensor)
        or not all(isinstance(i, Tensor) and i.ndim == 4 for i in images)
    ):
        return None
    targets, order = a.tensor("targets"), distances.argsort(stable=True).tolist()
    first: dict[int, int] = {}
    for i in order:
        if bool(distances[i].isfinite()) and float(distances[i]) > 0:
            first.setdefault(int(targets[i]), i)
    chosen = list(first.values())[:4]
    if not chosen:
        return None
    names, header, rows = a.class_names, ("original", "reconstructed", "nearest with another answer"), []
    for i in chosen:
        cells = []
        for key, of in zip(keys, ("clean", "reconstructed", "perturbed"), strict=True):
            said = class_name(names, int(a.tensor(f"{of}_predictions")[i]))
            words = f"answer {said}" + (f", {float(distances[i]):.2f} away" if of == "perturbed" else "")
            cells.append(picture(a.tensor(key)[i], f"{a.sample_names[i]}, {of}: {words}", words))
        rows.append((class_name(names, int(targets[i])), tuple(cells)))
    grid = PictureGrid(
        f"{a.name}: the nearest images on the manifold with another answer, each of another class", header, tuple(rows)
    )
    return _turned(grid)


def _turned(grid: PictureGrid) -> PictureGrid:
    """Rows as columns: a page is wide."""
    columns = tuple(label for label, _ in grid.rows)
    rows = tuple((name, tuple(cells[i] for _, cells in grid.rows)) for i, name in enumerate(grid.header))
    return PictureGrid(grid.caption, tuple(f"class {c}" for c in columns), rows)


def _sample_sheet(a: Artifacts) -> PictureGrid | None:
    """Generated images beside real ones, a strip per class: is this a picture of it?"""
    made, real = a.data.get("generated"), a.data.get("clean_inputs")
    if not isinstance(made, dict) or not isinstance(real, Tensor) or real.ndim != 4:
        return None
    targets, cells = a.tensor("targets"), []
    classes = [int(k) for k in made["classes"].unique().tolist()][:12]
    for k in classes:
        strips = (("generated", made["inputs"][made["classes"] == k][:4]), ("real", real[targets == k][:2]))
        cells.append([(what, _strip(images)) for what, images in strips])
    rows = tuple(
        (what, tuple(Picture(cell[j][1], f"{what} images of class {class_name(a.class_names, k)}")
                     for k, cell in zip(classes, cells, strict=True)))
        for j, what in enumerate(("generated", "real"))
    )  # fmt: skip
    header = tuple(class_name(a.class_names, k) for k in classes)
    return PictureGrid(f"{a.name}: what the generative models draw, beside real images", header, rows)


def _strip(images: Tensor) -> bytes:
    """Images (N, C, H, W) below each other as one PNG."""
    if not len(images):
        images = torch.ones(1, *images.shape[1:])
    pixels = pixels_of(images)
    pad = [(0, 0), (0, 1), *[(0, 0)] * (pixels.ndim - 2)]
    return png_bytes(enlarged(np.concatenate(list(np.pad(pixels, pad, constant_values=255))), SIDE))


def _gallery(a: Artifacts) -> PictureGrid | None:
    """Successes from the cheapest to the dearest, each with its queries."""
    queries, images = a.data.get("queries"), a.data.get("perturbed_inputs")
    if not isinstance(queries, Tensor) or not isinstance(images, Tensor) or images.ndim != 4:
        return None
    broken = (a.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED).nonzero().flatten()
    if not len(broken):
        return None
    broken = broken[queries[broken].argsort(stable=True)]
    chosen = broken[torch.linspace(0, len(broken) - 1, min(7, len(broken))).round().long()].tolist()
    targets, after, names = a.tensor("targets"), a.tensor("perturbed_predictions"), a.class_names
    said = {i: class_name(names, int(after[i])) for i in chosen}
    inputs = a.tensor("clean_inputs")
    clean = tuple(picture(inputs[i], f"{a.sample_names[i]}, clean", class_name(names, int(targets[i]))) for i in chosen)
    changed = tuple(
        picture(images[i], f"{a.sample_names[i]} under {a.name}", f"{said[i]}, {int(queries[i])} queries")
        for i in chosen
    )
    return PictureGrid(
        f"{a.name}: from the cheapest to the dearest success", (), (("clean", clean), ("broken", changed))
    )


Grid = Callable[[Artifacts], "PictureGrid | None"]
GRIDS: dict[str, Grid] = {
    "CorruptionSheetVisualiser": _corruption_sheet,
    "LatentGridVisualiser": _nearest_on_the_manifold,
    "GeneratorSheetVisualiser": _sample_sheet,
    "QueryGalleryVisualiser": _gallery,
}
