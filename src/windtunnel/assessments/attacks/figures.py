"""Figures of attacks: image pairs and signed heat maps of the perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from windtunnel.assessments.figures import style
from windtunnel.assessments.figures.base import Visualiser, register
from windtunnel.core.contracts import AssessmentKind, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from windtunnel.core.artifacts import Artifacts

_ATTACKS = frozenset({AssessmentKind.EMPIRICAL_ATTACK})


def shown_samples(artifacts: Artifacts, max_samples: int) -> list[int]:
    """The samples worth looking at: attacked and broken first, then attacked, then the rest, in their order."""
    verdicts = artifacts.tensor("verdicts")
    attacked = artifacts.data.get("attacked")
    tried = attacked if attacked is not None and not isinstance(attacked, dict) else verdicts > 0
    rank = 2 - tried.long() - (tried & (verdicts == Verdict.ATTACK_SUCCEEDED)).long()
    return [int(i) for i in rank.argsort(stable=True)[:max_samples]]


def show_image(axes: Axes, image: Tensor) -> None:
    """A (C, H, W) image in [0, 1]; one channel is grey, two or more than three show the first."""
    pixels = image.clamp(0, 1)
    if len(pixels) == 3:
        axes.imshow(pixels.permute(1, 2, 0).numpy(), interpolation="nearest")
    else:
        axes.imshow(pixels[0].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    bare(axes)


def bare(axes: Axes) -> None:
    """No ticks, no grid, no frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def signed_map(difference: Tensor, how: str = "signed_dominant") -> Tensor:
    """One map (H, W) of a change (C, H, W): the channel that moved most with its sign, or a mean or maximum."""
    if how == "signed_dominant":
        return difference.gather(0, difference.abs().argmax(0, keepdim=True))[0]
    if how == "mean":
        return difference.mean(0)
    return difference.abs().mean(0) if how == "mean_abs" else difference.abs().amax(0)


def _caption(artifacts: Artifacts, index: int) -> str:
    target = int(artifacts.tensor("targets")[index])
    after = int(artifacts.tensor("perturbed_predictions")[index])
    return f"{target} → {after}" if after != target else f"stays {target}"


@register
@dataclass(frozen=True)
class ImagePairVisualiser(Visualiser):
    """Rows of clean image, perturbed image, and signed difference."""

    max_samples: int = 4
    cmap: str = "RdBu_r"
    diff_scale: float | None = None
    include_clean_input: bool = True
    include_perturbation_map: bool = True
    kinds: ClassVar[frozenset[AssessmentKind]] = _ATTACKS
    scope: ClassVar[Literal["per_sample", "assessor"]] = "per_sample"
    embeds_clean_input: ClassVar[bool] = True
    embeds_perturbation_map: ClassVar[bool] = True
    title: ClassVar[str] = "Clean and perturbed images"

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        clean = artifacts.tensor("clean_inputs")
        if clean.ndim != 4:
            return style.placeholder("Not images: nothing to draw.")
        perturbed, names = artifacts.tensor("perturbed_inputs"), artifacts.shown_names
        chosen = shown_samples(artifacts, self.max_samples)
        columns = 1 + self.include_clean_input + self.include_perturbation_map
        figure, grid = pyplot.subplots(len(chosen), columns, figsize=(2.3 * columns, 2.3 * len(chosen)), squeeze=False)
        for row, index in zip(grid, chosen, strict=True):
            cells = list(row)
            if self.include_clean_input:
                axes = cells.pop(0)
                show_image(axes, clean[index])
                axes.set_title("clean" if index == chosen[0] else "", fontsize=9)
                axes.set_ylabel(names[index], fontsize=8)
            axes = cells.pop(0)
            show_image(axes, perturbed[index])
            axes.set_title(
                f"perturbed\n{_caption(artifacts, index)}" if index == chosen[0] else _caption(artifacts, index),
                fontsize=9,
            )
            if self.include_perturbation_map:
                axes = cells.pop(0)
                difference = signed_map(perturbed[index] - clean[index])
                scale = self.diff_scale or max(float(difference.abs().max()), 1e-8)
                image = axes.imshow(
                    difference.numpy(), cmap=self.cmap, vmin=-scale, vmax=scale, interpolation="nearest"
                )
                bare(axes)
                axes.set_title("difference" if index == chosen[0] else "", fontsize=9)
                figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)
        return figure


@register
@dataclass(frozen=True)
class PerturbationHeatmapVisualiser(Visualiser):
    """Signed map of the change per sample, on one scale, so that samples can be compared."""

    max_samples: int = 4
    cmap: str = "seismic"
    aggregate_channels: Literal["signed_dominant", "mean", "mean_abs", "max_abs"] = "signed_dominant"
    kinds: ClassVar[frozenset[AssessmentKind]] = _ATTACKS
    scope: ClassVar[Literal["per_sample", "assessor"]] = "per_sample"
    embeds_perturbation_map: ClassVar[bool] = True
    title: ClassVar[str] = "Perturbation heat maps"

    def __post_init__(self) -> None:
        """Refuse an aggregation that does not exist."""
        if self.aggregate_channels not in {"signed_dominant", "mean", "mean_abs", "max_abs"}:
            raise ValueError(
                f"aggregate_channels: '{self.aggregate_channels}' is none of signed_dominant, mean, mean_abs, max_abs"
            )

    def draw(self, artifacts: Artifacts) -> Figure:
        """The figure."""
        from matplotlib import pyplot

        clean, perturbed = artifacts.tensor("clean_inputs"), artifacts.tensor("perturbed_inputs")
        if clean.ndim != 4:
            return style.placeholder("Not images: nothing to draw.")
        chosen = shown_samples(artifacts, self.max_samples)
        maps = [signed_map(perturbed[i] - clean[i], self.aggregate_channels) for i in chosen]
        scale = max(1e-8, *(float(m.abs().max()) for m in maps))
        figure, grid = pyplot.subplots(1, len(chosen), figsize=(2.4 * len(chosen) + 0.8, 2.7), squeeze=False)
        for axes, index, values in zip(grid[0], chosen, maps, strict=True):
            image = axes.imshow(values.numpy(), cmap=self.cmap, vmin=-scale, vmax=scale, interpolation="nearest")
            bare(axes)
            axes.set_title(f"{artifacts.shown_names[index]}\n{_caption(artifacts, index)}", fontsize=8)
        figure.colorbar(image, ax=grid[0].tolist(), shrink=0.8, label="change per pixel")
        return figure
