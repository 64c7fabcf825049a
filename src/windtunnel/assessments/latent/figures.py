"""Figures of latent assessments: what was generated, what was found, how far it is, and several classifiers side by side."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from windtunnel.assessments.attacks.figures import bare, show_image, signed_map
from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.metadata import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from windtunnel.core.artifacts import Artifacts
    from windtunnel.core.contracts import Json

NOT_LATENT = "No latent codes on disk: this assessment is not a latent one."
NOT_IMAGES = "Not images: nothing to draw."


@dataclass(frozen=True)
class _LatentVisualiser(Visualiser):
    kinds: ClassVar[frozenset[AssessmentKind]] = frozenset({AssessmentKind.EMPIRICAL_ATTACK})
    families: ClassVar[frozenset[str]] = frozenset({"latent"})

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder where the artifacts are of another family."""
        if "latents" not in artifacts.data:
            return style.placeholder(NOT_LATENT)
        return self.draw_latent(artifacts)

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure of a latent assessment."""
        raise NotImplementedError


def _number(metrics: dict[str, Json], key: str) -> float:
    return float(str(metrics[key]))


def _error(metrics: dict[str, Json], key: str) -> list[list[float]] | None:
    """The interval of a metric as matplotlib's distances below and above; None where it has none."""
    if f"{key}_ci_low" not in metrics:
        return None
    value = _number(metrics, key)
    return [
        [max(0.0, value - _number(metrics, f"{key}_ci_low"))],
        [max(0.0, _number(metrics, f"{key}_ci_high") - value)],
    ]


@register
@dataclass(frozen=True)
class LatentMetricsVisualiser(_LatentVisualiser):
    """The metrics with their intervals: accuracies, accuracy against latent noise, mean minimum perturbations."""

    title: ClassVar[str] = "Latent-space metrics"

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        metrics = artifacts.metrics
        figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3.4), width_ratios=(5, 4, 2.2))
        shares = {"clean_accuracy": style.CLEAN, "lra": style.BLUE, "lga": style.SKY, "lara": style.ATTACKED,
                  "laga": style.ORANGE}  # fmt: skip
        for place, (key, colour) in enumerate(shares.items()):
            left.bar(place, _number(metrics, key), color=colour, yerr=_error(metrics, key), capsize=3)
            left.annotate(f"{_number(metrics, key):.1%}", (place, 0.02), ha="center", color="white", weight="bold")
        left.set_xticks(range(len(shares)), ["clean", "LRA", "LGA", "LARA", "LAGA"])
        left.set(ylabel="accuracy", ylim=(0, 1.05), title=f"bounded search: radius {_number(metrics, 'rho'):g}")
        levels = cast(list[float], metrics["noise_levels"])
        for side, colour in (("reconstruction", style.BLUE), ("generation", style.SKY)):
            values, low, high = (
                [
                    float("nan") if v is None else v
                    for v in cast("list[float | None]", metrics[f"llna_{side}_curve{end}"])
                ]
                for end in ("", "_ci_low", "_ci_high")
            )
            middle.plot(levels, values, "o-", color=colour, label=side)
            middle.fill_between(levels, low, high, color=colour, alpha=0.2)
        middle.set(xlabel="latent noise ε", ylim=(0, 1.05), title="accuracy under noise (LLNA)")
        middle.legend(loc="lower left")
        for place, (key, colour) in enumerate({"lars": style.BLUE, "lags": style.SKY}.items()):
            if key in metrics:
                right.bar(place, _number(metrics, key), color=colour, yerr=_error(metrics, key), capsize=3)
        right.set_xticks([0, 1], ["LARS", "LAGS"])
        right.set(title="mean minimum", ylabel="scaled latent norm")
        return figure


@register
@dataclass(frozen=True)
class LatentGridVisualiser(_LatentVisualiser):
    """Original, reconstructed, decayed, perturbed and difference, with what the classifier says of each.

    of: `reconstruction` (of the samples) or `generation`, where there is no original.
    """

    max_samples: int = 4
    cmap: str = "RdBu_r"
    of: Literal["reconstruction", "generation"] = "reconstruction"
    scope: ClassVar[Literal["per_sample", "assessor"]] = "per_sample"
    embeds_clean_input: ClassVar[bool] = True
    embeds_perturbation_map: ClassVar[bool] = True
    title: ClassVar[str] = "Nearest examples in latent space"

    def __post_init__(self) -> None:
        """Refuse a side that does not exist."""
        if self.of not in {"reconstruction", "generation"}:
            raise ValueError(f"of: '{self.of}' is neither reconstruction nor generation")

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        columns, classes, distances = self._columns(artifacts)
        if columns[0][1].ndim != 4:
            return style.placeholder(NOT_IMAGES)
        chosen = _spread(classes, distances, self.max_samples)
        names = artifacts.class_names
        width = len(columns) + 1
        figure, grid = pyplot.subplots(len(chosen), width, figsize=(1.75 * width, 1.95 * len(chosen)), squeeze=False)
        for row, index in zip(grid, chosen, strict=True):
            label = int(classes[index])
            for axes, (title, images, predictions) in zip(row, columns, strict=False):
                show_image(axes, images[index])
                said = int(predictions[index])
                head = f"{title}\n" if index == chosen[0] else ""
                axes.set_title(
                    f"{head}→ {names[said]}", fontsize=9, color=style.VERMILION if said != label else "black"
                )
            row[0].set_ylabel(f"class {names[label]}", fontsize=9)
            change = signed_map(columns[-1][1][index] - columns[-2][1][index])
            scale = max(float(change.abs().max()), 1e-8)
            row[-1].imshow(change.numpy(), cmap=self.cmap, vmin=-scale, vmax=scale, interpolation="nearest")
            bare(row[-1])
            head = "change from decayed\n" if index == chosen[0] else ""
            distance = float(distances[index])
            row[-1].set_title(
                f"{head}‖δ‖ = {distance:.2f}" if distance < float("inf") else f"{head}none found", fontsize=9
            )
        return figure

    def _columns(self, artifacts: Artifacts) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor, Tensor]:
        """((title, images, predictions) of each column, classes, distances)."""
        if self.of == "generation":
            made = cast("dict[str, Tensor]", artifacts.data["generated"])
            columns = [("generated", made["inputs"], made["predictions"])]
            data, distances, classes = made, made["distances"], made["classes"]
        else:
            data = cast("dict[str, Tensor]", artifacts.data)
            classes, distances = data["targets"], data["perturbation_distance"]
            columns = [
                ("original", data["clean_inputs"], data["clean_predictions"]),
                ("reconstructed", data["reconstructed_inputs"], data["reconstructed_predictions"]),
            ]
        columns += [(key, data[f"{key}_inputs"], data[f"{key}_predictions"]) for key in ("decayed", "perturbed")]
        return columns, classes, distances


def _spread(classes: Tensor, distances: Tensor, count: int) -> list[int]:
    """Rows that show most: found ones of different classes first, in their order."""
    import torch

    rank = torch.zeros(len(classes))
    seen: dict[int, int] = {}
    for index, label in enumerate(classes.tolist()):
        if 0 < float(distances[index]) < float("inf"):
            rank[index] = seen.get(label, 0)
            seen[label] = seen.get(label, 0) + 1
        else:
            rank[index] = len(classes)
    return [int(i) for i in rank.argsort(stable=True)[:count]]


@register
@dataclass(frozen=True)
class GeneratorSheetVisualiser(_LatentVisualiser):
    """Generated images, a row per class, beside real ones of the class: is this a picture of it?"""

    columns: int = 10
    real: int = 2
    max_classes: int = 12
    title: ClassVar[str] = "Sample sheet of the generative models"

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure: one picture of all tiles, since an axes for each would take seconds."""
        import torch
        from matplotlib import pyplot

        made = cast("dict[str, Tensor]", artifacts.data["generated"])
        inputs, targets = artifacts.tensor("clean_inputs"), artifacts.tensor("targets")
        if inputs.ndim != 4:
            return style.placeholder(NOT_IMAGES)
        names = artifacts.class_names[: self.max_classes]
        channels, height, width = inputs.shape[1:]
        gap = max(1, width // 12)
        columns = self.columns + self.real
        sheet = torch.ones(channels, len(names) * (height + gap), columns * (width + gap) + width // 2)
        for label in range(len(names)):
            tiles = [*enumerate(made["inputs"][made["classes"] == label][: self.columns])]
            tiles += [*enumerate(inputs[targets == label][: self.real], self.columns)]
            for column, tile in tiles:
                left = column * (width + gap) + (width // 2 if column >= self.columns else 0)
                sheet[:, label * (height + gap) : label * (height + gap) + height, left : left + width] = tile
        figure, axes = pyplot.subplots(figsize=(0.62 * columns + 0.8, 0.6 * len(names) * (height / width) + 0.5))
        show_image(axes, sheet)
        axes.set_yticks([label * (height + gap) + height / 2 for label in range(len(names))], names)
        starts = (0, self.columns * (width + gap) + width // 2)
        axes.set_xticks([start + width / 2 for start in starts], ["generated", "real"])
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        return figure


@register
@dataclass(frozen=True)
class LatentDistributionsVisualiser(_LatentVisualiser):
    """Histograms of the size of what was found, in latent space and in the image."""

    bins: int = 20
    title: ClassVar[str] = "Sizes of the nearest examples"

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        from windtunnel.assessments.latent.metrics import changes
        from windtunnel.assessments.latent.noise import shrink

        factor = shrink(number(artifacts.metadata.kwargs.extra, "decay_epsilon"))
        real = cast("dict[str, Tensor]", artifacts.data)
        made = cast("dict[str, Tensor]", artifacts.data["generated"])
        sides = {
            "reconstruction": changes(real["latents"], {**real, "distances": real["perturbation_distance"]}, factor),
            "generation": changes(made["latents"], made, factor),
        }
        titles = {"latent_change": "‖δl‖", "latent_norm_change": "change of ‖l‖",
                  "image_change_l2": "‖δx‖₂, scaled", "image_change_l1": "‖δx‖₁, per value"}  # fmt: skip
        figure, grid = pyplot.subplots(1, len(titles), figsize=(11, 2.8))
        for axes, (key, title) in zip(grid, titles.items(), strict=True):
            _histograms(axes, {side: values[key] for side, values in sides.items()}, self.bins)
            axes.set(title=title)
        grid[0].set(ylabel="examples")
        grid[-1].legend(fontsize=8)
        return figure


def _histograms(axes: Axes, groups: dict[str, Tensor], bins: int) -> None:
    import numpy as np

    edges = np.histogram_bin_edges(np.concatenate([values.numpy() for values in groups.values()]), bins)
    for (side, values), colour in zip(groups.items(), (style.BLUE, style.ORANGE), strict=False):
        axes.hist(values.numpy(), edges.tolist(), color=colour, alpha=0.6, label=side)


@register
@dataclass(frozen=True)
class LatentCorrelationVisualiser(_LatentVisualiser):
    """Every pair of metrics of `correlations` over several classifiers, with Pearson's and Spearman's coefficients.

    only: the metrics that must be in a pair; all pairs where it is empty.
    """

    only: tuple[str, ...] = ()
    columns: int = 6
    title: ClassVar[str] = "What goes with what over classifiers"

    def draw_latent(self, artifacts: Artifacts) -> Figure:
        """The figure; a placeholder for fewer than three classifiers."""
        from matplotlib import pyplot

        rows = cast("list[dict[str, Json]]", artifacts.metrics.get("correlations", []))
        lines = [row for row in rows if not self.only or {str(row["x"]), str(row["y"])} & set(self.only)]
        if not lines:
            return style.placeholder("Correlations need three classifiers: latent.<name>.models names further ones.")
        models = cast("list[dict[str, Json]]", artifacts.metrics["models"])
        columns = min(self.columns, len(lines))
        height = -(-len(lines) // columns)
        figure, grid = pyplot.subplots(height, columns, figsize=(2.1 * columns, 2.1 * height + 0.5), squeeze=False)
        markers = "osD^v<>pPX*hH"
        for axes, line in itertools.zip_longest(grid.flat, lines):
            if line is None:
                axes.set_axis_off()
                continue
            x, y = str(line["x"]), str(line["y"])
            for k, row in enumerate(models):
                if x in row and y in row:
                    axes.plot(_number(row, x), _number(row, y), markers[k % len(markers)], markersize=6,
                              label=str(row["model"]))  # fmt: skip
            axes.set_title(_coefficients(line), fontsize=7, weight="normal")
            axes.tick_params(labelsize=6)
            axes.locator_params(nbins=3)
            axes.set_xlabel(_axis(x), fontsize=7)
            axes.set_ylabel(_axis(y), fontsize=7)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=8)
        return figure


def _coefficients(line: dict[str, Json]) -> str:
    if "pearson" not in line:
        return "constant"
    return f"r {_number(line, 'pearson'):.2f}, rank {_number(line, 'spearman'):.2f}"


def _axis(metric: str) -> str:
    return metric.replace("adversarial_", "").replace("_", " ").replace("image change", "image")
