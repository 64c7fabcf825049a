"""Pictures of latent assessments: what noise makes of an image, and two classifiers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from windtunnel.assessments.attacks.figures import bare, show_image, signed_map
from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import register
from windtunnel.assessments.latent.visualiser import NOT_IMAGES, LatentVisualiser, Side, drawn_side, known_side, made
from windtunnel.core.metadata import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from windtunnel.core.artifacts import Artifacts


@register
@dataclass(frozen=True)
class LatentNoiseVisualiser(LatentVisualiser):
    """An image, its reconstruction, and one noisy reconstruction at each level, with the accuracy of all draws (LLNA).

    of: `reconstruction` (of the samples) or `generation`, where the generated image stands first.
    """

    max_samples: int = 4
    of: Side = "reconstruction"
    scope: ClassVar = "per_sample"
    embeds_clean_input: ClassVar[bool] = True
    title: ClassVar[str] = "Images under latent noise"

    def __post_init__(self) -> None:
        """Refuse a side that does not exist."""
        known_side(self.of)

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        kept = cast("dict[str, Tensor] | None", artifacts.data.get("pictures"))
        if kept is None:
            return style.placeholder(NOT_IMAGES)
        side = drawn_side(self.of, artifacts)
        columns, classes, noisy = _without_noise(artifacts, side)
        levels = numbers(artifacts.metrics, "noise_levels")
        rows = kept[f"{side}_rows"][: self.max_samples].tolist()
        width = len(columns) + len(levels)
        figure, grid = pyplot.subplots(len(rows), width, figsize=(1.5 * width, 1.75 * len(rows)), squeeze=False)
        names = artifacts.class_names
        for place, (index, row) in enumerate(zip(rows, grid, strict=True)):
            label = int(classes[index])
            right = (noisy[index] == label).double().mean(1)
            cells = [(title, images[index], int(said[index]), "") for title, images, said in columns]
            cells += [
                (
                    f"ε {level:g}",
                    kept[f"{side}_noisy"][place, e],
                    int(noisy[index, e, 0]),
                    f", LLNA {float(right[e]):.0%}",
                )
                for e, level in enumerate(levels)
            ]
            for axes, (title, image, said, words) in zip(row, cells, strict=True):
                head = f"{title}\n" if not place else ""
                _cell(axes, image, f"{head}→ {names[said]}{words}", wrong=said != label)
            row[0].set_ylabel(f"class {names[label]}", fontsize=9)
        return figure


@register
@dataclass(frozen=True)
class LatentComparisonVisualiser(LatentVisualiser):
    """Two classifiers on the same codes: clean, reconstruction, decayed, the nearest example of each, and how these differ.

    first, second: the classifiers, as `latent.<name>.models` names them; this run and the first further one where absent.
    """

    max_samples: int = 4
    first: str = "this run"
    second: str = ""
    of: Side = "reconstruction"
    cmap: str = "RdBu_r"
    scope: ClassVar = "per_sample"
    embeds_clean_input: ClassVar[bool] = True
    embeds_perturbation_map: ClassVar[bool] = True
    title: ClassVar[str] = "Nearest examples of two classifiers"

    def __post_init__(self) -> None:
        """Refuse a side that does not exist."""
        known_side(self.of)

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder where a classifier is not there, or is the other one."""
        from matplotlib import pyplot

        names = [str(name) for name in cast("list[str]", artifacts.metadata.kwargs.extra.get("models", []))]
        second = self.second or next((name for name in names if name != self.first), "")
        for wanted in (self.first, second):
            if wanted not in names:
                what = f"'{wanted}' is none of the classifiers" if wanted else "There is one classifier"
                return style.placeholder(f"{what}: latent.{artifacts.name}.models names further ones.")
        side = drawn_side(self.of, artifacts)
        columns, classes, _ = _without_noise(artifacts, side)
        if columns[0][1].ndim != 4:
            return style.placeholder(NOT_IMAGES)
        data = made(artifacts) if side == "generation" else cast("dict[str, Tensor]", artifacts.data)
        columns.append(("decayed", data["decayed_inputs"], data["decayed_predictions"]))
        examples = [(name, *_examples(artifacts, names.index(name), side)) for name in (self.first, second)]
        both = examples[0][3].isfinite() & examples[1][3].isfinite()
        rows = sorted(range(len(classes)), key=lambda i: (not both[i], i))[: self.max_samples]
        width = len(columns) + 3
        figure, grid = pyplot.subplots(len(rows), width, figsize=(1.6 * width, 1.85 * len(rows)), squeeze=False)
        shown = artifacts.class_names
        for place, (index, row) in enumerate(zip(rows, grid, strict=True)):
            label = int(classes[index])
            cells = [(title, images[index], int(said[index]), "") for title, images, said in columns]
            for name, images, said, distances in examples:
                size = float(distances[index])
                words = f", ‖δ‖ {size:.2f}" if size < float("inf") else ", none found"
                cells.append((name[-18:], images[index], int(said[index]), words))
            for axes, (title, image, answer, words) in zip(row, cells, strict=False):
                head = f"{title}\n" if not place else ""
                _cell(axes, image, f"{head}→ {shown[answer]}{words}", wrong=answer != label)
            change = signed_map(examples[1][1][index] - examples[0][1][index])
            scale = max(float(change.abs().max()), 1e-8)
            row[-1].imshow(change.numpy(), cmap=self.cmap, vmin=-scale, vmax=scale, interpolation="nearest")
            bare(row[-1])
            row[-1].set_title(f"{'second less first' if not place else ''}\n± {scale:.2f}".strip(), fontsize=8)
            row[0].set_ylabel(f"class {shown[label]}", fontsize=9)
        return figure


def _without_noise(artifacts: Artifacts, side: Side) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor, Tensor]:
    """((title, images, predictions) of each column before any change, classes, predictions under noise (N, E, D))."""
    if side == "generation":
        data = made(artifacts)
        return [("generated", data["inputs"], data["predictions"])], data["classes"], data["noisy_predictions"]
    data = cast("dict[str, Tensor]", artifacts.data)
    columns = [
        ("clean", data["clean_inputs"], data["clean_predictions"]),
        ("reconstructed", data["reconstructed_inputs"], data["reconstructed_predictions"]),
    ]
    return columns, data["targets"], data["noisy_predictions"]


def _examples(artifacts: Artifacts, index: int, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """(images, predictions, distances) of the nearest examples of classifier `index`, 0 for this run's."""
    if index:
        data = cast("dict[str, Tensor]", artifacts.data[f"model_{index}"])
        keys = [f"{side}.{key}" for key in ("perturbed_inputs", "perturbed_predictions", "distances")]
    else:
        data = made(artifacts) if side == "generation" else cast("dict[str, Tensor]", artifacts.data)
        keys = ["perturbed_inputs", "perturbed_predictions",
                "distances" if side == "generation" else "perturbation_distance"]  # fmt: skip
    return data[keys[0]], data[keys[1]], data[keys[2]]


def _cell(axes: Axes, image: Tensor, title: str, *, wrong: bool) -> None:
    show_image(axes, image)
    axes.set_title(title, fontsize=8, color=style.VERMILION if wrong else "black")
