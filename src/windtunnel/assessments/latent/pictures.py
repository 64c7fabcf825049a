"""Pictures of latent assessments: what noise makes of an image, and two classifiers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.base import Drawing, NothingToDraw, register
from windtunnel.assessments.latent.visualiser import NOT_IMAGES, LatentVisualiser, Side, drawn_side, known_side, made
from windtunnel.records.metadata import names_in, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.assessments.figures.pictures import Picture
    from windtunnel.records.artifacts import Artifacts

Row = tuple[str, "list[Picture | None]"]


@register
@dataclass(frozen=True)
class LatentNoiseVisualiser(
    LatentVisualiser, scope="per_sample", embeds_clean_input=True, title="Images under latent noise"
):
    """An image, its reconstruction, and one noisy reconstruction at each level, with the accuracy of all draws (LLNA).

    of: `reconstruction` (of the samples) or `generation`, where the generated image stands first.
    """

    max_samples: int = 4
    of: Side = "reconstruction"

    def __post_init__(self) -> None:
        """Refuse a side that does not exist."""
        known_side(self.of)

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample, a row per level."""
        from windtunnel.assessments.figures.pictures import picture, sheets

        stored = artifacts.tensors("pictures") if "pictures" in artifacts.data else None
        if stored is None:
            raise NothingToDraw(NOT_IMAGES)
        side, names = drawn_side(self.of, artifacts), artifacts.class_names
        stages, classes, noisy = _without_noise(artifacts, side)
        chosen = stored[f"{side}_rows"][: self.max_samples].tolist()
        rows = [_row(names, chosen, *stage) for stage in stages]
        for e, level in enumerate(numbers(artifacts.metrics, "noise_levels")):
            cells: list[Picture | None] = []
            for row, i in enumerate(chosen):
                right = float((noisy[i, e] == classes[i]).double().mean())
                text = f"answer {names[int(noisy[i, e, 0])]}, LLNA {right:.0%}"
                cells.append(picture(stored[f"{side}_noisy"][row, e], f"noise of size {level:g}: {text}", text))
            rows.append((f"\u03b5 {level:g}", cells))
        caption = (
            f"{artifacts.name}: one draw of the noise at each size; LLNA is the accuracy of all draws for that image"
        )
        return sheets(caption, [f"class {names[int(classes[i])]}" for i in chosen], rows)


@register
@dataclass(frozen=True)
class LatentComparisonVisualiser(
    LatentVisualiser,
    scope="per_sample",
    embeds_clean_input=True,
    embeds_perturbation_map=True,
    title="Nearest examples of two classifiers",
):
    """Two classifiers on the same codes: clean, reconstruction, decayed, the nearest example of each, and how these differ.

    first, second: the classifiers, as `latent.<name>.models` names them; this run and the first further one where absent.
    """

    max_samples: int = 4
    first: str = "this run"
    second: str = ""
    of: Side = "reconstruction"
    cmap: str = "RdBu_r"

    def __post_init__(self) -> None:
        """Refuse a side that does not exist."""
        known_side(self.of)

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample. Nothing where a classifier is not there."""
        from windtunnel.assessments.figures.pictures import SIDE, WORDS, Picture, map_png, sheets, signed_map

        model_names = names_in(artifacts.metadata.kwargs, "models")
        second = self.second or next((name for name in model_names if name != self.first), "")
        for model in (self.first, second):
            if model not in model_names:
                what = f"'{model}' is none of the classifiers" if model else "There is one classifier"
                raise NothingToDraw(f"{what}: latent.{artifacts.name}.models names further ones.")
        side, names = drawn_side(self.of, artifacts), artifacts.class_names
        stages, classes, _ = _without_noise(artifacts, side)
        if stages[0][1].ndim != 4:
            raise NothingToDraw(NOT_IMAGES)
        data = made(artifacts) if side == "generation" else artifacts.flat_tensors
        stages.append(("decayed", data["decayed_inputs"], data["decayed_predictions"]))
        examples = [_examples(artifacts, model_names.index(name), side) for name in (self.first, second)]
        both = examples[0][2].isfinite() & examples[1][2].isfinite()
        chosen = sorted(range(len(classes)), key=lambda i: (not both[i], i))[: self.max_samples]
        rows = [_row(names, chosen, *stage) for stage in stages]
        for name, (images, predicted, distances) in zip((self.first, second), examples, strict=True):
            rows.append(_row(names, chosen, name, images, predicted, distances))
        cells: list[Picture | None] = []
        for i in chosen:
            change = signed_map(examples[1][0][i] - examples[0][0][i])
            scale = max(float(change.abs().max()), 1e-8)
            text = f"at most {scale:.2f}"
            cells.append(Picture(map_png(change, scale, SIDE, self.cmap), f"second less first, {text}", text))
        caption = (
            f"{artifacts.name}: the nearest examples of {self.first} and of {second} from the same decayed code; second less "
            f"first, {WORDS}"
        )
        return sheets(caption, [f"class {names[int(classes[i])]}" for i in chosen], [*rows, ("difference", cells)])


def _without_noise(artifacts: Artifacts, side: Side) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor, Tensor]:
    """Return ((what, images, predictions) before any change, classes, predictions under noise (N, E, D))."""
    if side == "generation":
        data = made(artifacts)
        return [("generated", data["inputs"], data["predictions"])], data["classes"], data["noisy_predictions"]
    data = artifacts.flat_tensors
    stages = [
        ("clean", data["clean_inputs"], data["clean_predictions"]),
        ("reconstructed", data["reconstructed_inputs"], data["reconstructed_predictions"]),
    ]
    return stages, data["targets"], data["noisy_predictions"]


def _examples(artifacts: Artifacts, index: int, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """(images, predictions, distances) of the nearest examples of classifier `index`, 0 for this run's."""
    if index:
        data = artifacts.tensors(f"model_{index}")
        keys = [f"{side}.{key}" for key in ("perturbed_inputs", "perturbed_predictions", "distances")]
    else:
        data = made(artifacts) if side == "generation" else artifacts.flat_tensors
        keys = [
            "perturbed_inputs",
            "perturbed_predictions",
            "distances" if side == "generation" else "perturbation_distance",
        ]
    return data[keys[0]], data[keys[1]], data[keys[2]]


def _row(
    names: Sequence[str],
    chosen: Sequence[int],
    what: str,
    images: Tensor,
    predicted: Tensor,
    distances: Tensor | None = None,
) -> Row:
    """Return the images of the samples `chosen`, with what the classifier says of each, and how far its code was moved."""
    from windtunnel.assessments.figures.pictures import picture

    cells: list[Picture | None] = []
    for i in chosen:
        text = f"answer {names[int(predicted[i])]}"
        if distances is not None:
            size = float(distances[i])
            text += f", \u2016\u03b4\u2016 {size:.2f}" if size < float("inf") else ", none found"
        cells.append(picture(images[i], f"{what}: {text}", text))
    return what, cells
