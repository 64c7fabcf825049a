"""Pictures of latent assessments: nearest examples, generated images, what noise makes of an image, two classifiers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from windtunnel.assessments.attacks.figures import NOT_IMAGES
from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.core.contracts import AssessmentKind
from windtunnel.records.metadata import names_in, number, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.assessments.figures.pictures import Picture
    from windtunnel.records.artifacts import Artifacts

    Row = tuple[str, list[Picture | None]]
    Stage = tuple[str, Tensor, Tensor]  # what it is, images, predictions

Side = Literal["reconstruction", "generation"]
_ACROSS = 8


@dataclass(frozen=True)
class LatentVisualiser(
    Visualiser,
    kinds=frozenset({AssessmentKind.EMPIRICAL_ATTACK}),
    families=frozenset({"latent"}),
    needs=("latents", "No latent codes on disk: this assessment is not a latent one."),
):
    """A figure of a latent assessment."""

    def __post_init__(self) -> None:
        """Refuse a side that does not exist, in the option `of`."""
        if (of := getattr(self, "of", "generation")) not in {"reconstruction", "generation"}:
            raise ValueError(f"of: '{of}' is neither reconstruction nor generation")


def drawn_side(of: Side, artifacts: Artifacts) -> Side:
    """Return the side to draw: the generated images where no samples were encoded."""
    return of if len(artifacts.tensor("latents")) else "generation"


def made(artifacts: Artifacts) -> dict[str, Tensor]:
    """Return the tensors of the generated images."""
    return artifacts.tensors("generated")


@register
@dataclass(frozen=True)
class LatentGridVisualiser(
    LatentVisualiser,
    scope="per_sample",
    embeds_clean_input=True,
    embeds_perturbation_map=True,
    essential=True,
    title="Nearest examples in latent space",
):
    """Original, reconstructed, decayed, perturbed and difference, with what the classifier says of each.

    of: `reconstruction` (of the samples) or `generation`, where there is no original. epsilon: one of several decay
    epsilons; the first where absent.
    """

    max_samples: int = 4
    cmap: str = "RdBu_r"
    of: Side = "reconstruction"
    epsilon: float | None = None

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample."""
        from windtunnel.assessments.figures.pictures import WORDS, sheets

        side, names, prefix = drawn_side(self.of, artifacts), artifacts.class_names, self._prefix(artifacts)
        if f"{prefix}decayed_inputs" not in artifacts.data:
            raise NothingToDraw(f"Nothing was searched from decay epsilon {self.epsilon:g}.")
        stages, classes, data = _unchanged(artifacts, side, "original")
        distances = data[f"{prefix}distances" if prefix or side == "generation" else "perturbation_distance"]
        for key in ("decayed", "perturbed"):
            stages.append((key, data[f"{prefix}{key}_inputs"], data[f"{prefix}{key}_predictions"]))
        chosen = _spread(classes, distances, self.max_samples)
        rows = [_row(names, chosen, *stage) for stage in stages]
        cells: list[Picture | None] = []
        for i in chosen:
            size = float(distances[i])
            text = f"‖δ‖ = {size:.2f}" if size < float("inf") else "none found"
            change = stages[-1][1][i] - stages[-2][1][i]
            cells.append(_change(change, self.cmap, f"change, {text}", text))
        caption = f"{artifacts.name}: the nearest examples on the manifold with another prediction; change from decayed, {WORDS}"
        return sheets(caption, [f"class {names[int(classes[i])]}" for i in chosen], [*rows, ("change", cells)])

    def _prefix(self, artifacts: Artifacts) -> str:
        """Return the key prefix of the tensors computed at this decay epsilon."""
        from windtunnel.assessments.latent.metrics import at_epsilon

        first = number(artifacts.metadata.kwargs.extra, "decay_epsilon")
        return "" if self.epsilon is None or self.epsilon == first else at_epsilon(self.epsilon)


def _spread(classes: Tensor, distances: Tensor, count: int) -> list[int]:
    """Rows that show most: found ones of different classes first, in their order."""
    import torch

    rank = torch.zeros(len(classes))
    counts: dict[int, int] = {}
    for index, label in enumerate(classes.tolist()):
        if 0 < float(distances[index]) < float("inf"):
            rank[index] = counts.get(label, 0)
            counts[label] = counts.get(label, 0) + 1
        else:
            rank[index] = len(classes)
    return [int(i) for i in rank.argsort(stable=True)[:count]]


@register
@dataclass(frozen=True)
class GeneratorSheetVisualiser(LatentVisualiser, title="Sample sheet of the generative models"):
    """Generated images, a column per class, above real ones of the class: is this a picture of it?

    columns: generated images of each class; real: real ones.
    """

    columns: int = 4
    real: int = 2
    max_classes: int = 12

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One grid, or two of more than eight classes."""
        from windtunnel.assessments.figures.pictures import picture, sheets

        drawn_ones = made(artifacts)
        inputs, targets = artifacts.tensor("clean_inputs"), artifacts.tensor("targets")
        if inputs.ndim != 4:
            raise NothingToDraw(NOT_IMAGES)
        names = artifacts.class_names[: self.max_classes]
        rows = []
        for what, images, classes, count in (
            ("generated", drawn_ones["inputs"], drawn_ones["classes"], self.columns),
            ("real", inputs, targets, self.real if len(inputs) else 0),
        ):
            of_class = [images[classes == label][:count] for label in range(len(names))]
            rows += [
                (
                    what if k == 0 else "",
                    [
                        picture(mine[k], f"{what} image of class {name}") if k < len(mine) else None
                        for name, mine in zip(names, of_class, strict=True)
                    ],
                )
                for k in range(count)
            ]
        caption = f"{artifacts.name}: what the generative models draw, beside real images"
        return sheets(caption, names, rows, across=max(_ACROSS, -(-len(names) // 2)) if len(names) > 10 else 10)


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

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample, a row per level."""
        from windtunnel.assessments.figures.pictures import picture, sheets

        stored = artifacts.tensors("pictures") if "pictures" in artifacts.data else None
        if stored is None:
            raise NothingToDraw(NOT_IMAGES)
        side, names = drawn_side(self.of, artifacts), artifacts.class_names
        stages, classes, data = _unchanged(artifacts, side)
        noisy = data["noisy_predictions"]
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

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample. Nothing where a classifier is not there."""
        from windtunnel.assessments.figures.pictures import WORDS, sheets

        model_names = names_in(artifacts.metadata.kwargs, "models")
        second = self.second or next((name for name in model_names if name != self.first), "")
        for model in (self.first, second):
            if model not in model_names:
                what = f"'{model}' is none of the classifiers" if model else "There is one classifier"
                raise NothingToDraw(f"{what}: latent.{artifacts.name}.models names further ones.")
        side, names = drawn_side(self.of, artifacts), artifacts.class_names
        stages, classes, data = _unchanged(artifacts, side)
        stages.append(("decayed", data["decayed_inputs"], data["decayed_predictions"]))
        examples = [_examples(artifacts, model_names.index(name), side) for name in (self.first, second)]
        both = examples[0][2].isfinite() & examples[1][2].isfinite()
        chosen = sorted(range(len(classes)), key=lambda i: (not both[i], i))[: self.max_samples]
        rows = [_row(names, chosen, *stage) for stage in stages]
        for name, (images, predicted, distances) in zip((self.first, second), examples, strict=True):
            rows.append(_row(names, chosen, name, images, predicted, distances))
        cells: list[Picture | None] = []
        for i in chosen:
            cells.append(_change(examples[1][0][i] - examples[0][0][i], self.cmap, "second less first"))
        caption = (
            f"{artifacts.name}: the nearest examples of {self.first} and of {second} from the same decayed code; second less "
            f"first, {WORDS}"
        )
        return sheets(caption, [f"class {names[int(classes[i])]}" for i in chosen], [*rows, ("difference", cells)])


def _unchanged(artifacts: Artifacts, side: Side, first: str = "clean") -> tuple[list[Stage], Tensor, dict[str, Tensor]]:
    """Return the images before any change, their classes, and the tensors of a side. Raises NothingToDraw for what are no images."""
    if side == "generation":
        data = made(artifacts)
        stages, classes = [("generated", data["inputs"], data["predictions"])], data["classes"]
    else:
        data = artifacts.flat_tensors
        reconstructed = ("reconstructed", data["reconstructed_inputs"], data["reconstructed_predictions"])
        stages = [(first, data["clean_inputs"], data["clean_predictions"]), reconstructed]
        classes = data["targets"]
    if stages[0][1].ndim != 4:
        raise NothingToDraw(NOT_IMAGES)
    return stages, classes, data


def _change(difference: Tensor, cmap: str, alt: str, text: str = "") -> Picture:
    """Return a change on its own scale, which is its text where none is given."""
    from windtunnel.assessments.figures.pictures import SIDE, Picture, map_png, signed_map

    change = signed_map(difference)
    scale = max(float(change.abs().max()), 1e-8)
    if not text:
        text = f"at most {scale:.2f}"
        alt = f"{alt}, {text}"
    return Picture(map_png(change, scale, SIDE, cmap), alt, text)


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
