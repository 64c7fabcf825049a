"""Figures of attacks: image pairs and signed heat maps of the perturbation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.transformations import PARAMETERS, UNIVERSAL_PATCH, transformation_of

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.records.artifacts import Artifacts

NOT_IMAGES = "Not images: nothing to draw."
_ATTACKS = frozenset({AssessmentKind.EMPIRICAL_ATTACK})


def shown_samples(artifacts: Artifacts, max_samples: int) -> list[int]:
    """Return the samples worth looking at: attacked and broken first, then attacked, then the rest, in their order."""
    if artifacts.tensor("clean_inputs").ndim != 4:
        raise NothingToDraw(NOT_IMAGES)
    verdicts = artifacts.tensor("verdicts")
    tried = artifacts.tensor("attacked") if "attacked" in artifacts.data else verdicts > 0
    rank = 2 - tried.long() - (tried & (verdicts == Verdict.ATTACK_SUCCEEDED)).long()
    return [int(i) for i in rank.argsort(stable=True)[:max_samples]]


def answer(artifacts: Artifacts, of: str, index: int) -> str:
    """Return the name of the predicted class, or of the label (`of`: targets)."""
    names, key = artifacts.class_names, of if of == "targets" else f"{of}_predictions"
    predicted = int(artifacts.tensor(key)[index])
    return names[predicted] if 0 <= predicted < len(names) else str(predicted)


def _caption(artifacts: Artifacts, index: int) -> str:
    target, after = answer(artifacts, "targets", index), answer(artifacts, "perturbed", index)
    return f"{target} → {after}" if after != target else f"stays {target}"


@register
@dataclass(frozen=True)
class ImagePairVisualiser(
    Visualiser,
    kinds=_ATTACKS,
    scope="per_sample",
    embeds_clean_input=True,
    embeds_perturbation_map=True,
    title="Clean and perturbed images",
):
    """Clean image, perturbed image, and signed difference of some samples."""

    max_samples: int = 4
    cmap: str = "RdBu_r"
    diff_scale: float | None = None
    include_clean_input: bool = True
    include_perturbation_map: bool = True

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample."""
        from windtunnel.assessments.figures.pictures import SIDE, WORDS, Picture, map_png, picture, sheets, signed_map

        artifacts = artifacts.pictured
        chosen = shown_samples(artifacts, self.max_samples)
        clean, perturbed = artifacts.tensor("clean_inputs"), artifacts.tensor("perturbed_inputs")
        names, rows = artifacts.shown_names, []
        if self.include_clean_input:
            rows.append(("clean", [picture(clean[i], f"{names[i]}, clean") for i in chosen]))
        captions = {i: _caption(artifacts, i) for i in chosen}
        rows.append(
            ("perturbed", [picture(perturbed[i], f"{names[i]}, perturbed: {captions[i]}", captions[i]) for i in chosen])
        )
        if self.include_perturbation_map:
            maps = []
            for i in chosen:
                change = signed_map(perturbed[i] - clean[i])
                scale = self.diff_scale or max(float(change.abs().max()), 1e-8)
                maps.append(Picture(map_png(change, scale, SIDE, self.cmap), f"change of {names[i]}", f"±{scale:.3g}"))
            rows.append(("change", maps))
        caption = f"{artifacts.name}: {self.title.lower()}; change on the scale below it, {WORDS}"
        return sheets(caption, [names[i] for i in chosen], rows)


@register
@dataclass(frozen=True)
class PerturbationHeatmapVisualiser(
    Visualiser, kinds=_ATTACKS, scope="per_sample", embeds_perturbation_map=True, title="Perturbation heat maps"
):
    """Signed map of the change per sample, on one scale, so that samples can be compared."""

    max_samples: int = 4
    cmap: str = "seismic"
    aggregate_channels: Literal["signed_dominant", "mean", "mean_abs", "max_abs"] = "signed_dominant"

    def __post_init__(self) -> None:
        """Refuse an aggregation that does not exist."""
        if self.aggregate_channels not in {"signed_dominant", "mean", "mean_abs", "max_abs"}:
            raise ValueError(
                f"aggregate_channels: '{self.aggregate_channels}' is none of signed_dominant, mean, mean_abs, max_abs"
            )

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a column per sample."""
        from windtunnel.assessments.figures.pictures import SIDE, WORDS, Picture, map_png, sheets, signed_map

        artifacts = artifacts.pictured
        chosen = shown_samples(artifacts, self.max_samples)
        clean, perturbed = artifacts.tensor("clean_inputs"), artifacts.tensor("perturbed_inputs")
        maps = [signed_map(perturbed[i] - clean[i], self.aggregate_channels) for i in chosen]
        scale, names = max(1e-8, *(float(m.abs().max()) for m in maps)), artifacts.shown_names
        cells = [
            Picture(map_png(m, scale, SIDE, self.cmap), f"change of {names[i]}", _caption(artifacts, i))
            for i, m in zip(chosen, maps, strict=True)
        ]
        caption = f"{artifacts.name}: change per pixel, all on one scale of ±{scale:.3g}, {WORDS}"
        return sheets(caption, [names[i] for i in chosen], [("", cells)])


@register
@dataclass(frozen=True)
class SquarePlacesVisualiser(
    Visualiser,
    kinds=_ATTACKS,
    families=frozenset({"attacks"}),
    needs=(PARAMETERS, "No parameters of a transformation: this attack moves no square."),
    title="Places of patches that break",
):
    """Heat map of the places at which a patch or an occlusion broke samples, and the content of patches."""

    max_patches: int = 7
    cmap: str = "inferno"

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return the map, and beside it the universal patch, or the patches of some samples."""
        import torch

        from windtunnel.assessments.figures.pictures import SIDE, Picture, map_png, picture, sheets
        from windtunnel.core.transformed import inside_square

        transformation = transformation_of(artifacts.metadata.semantics.norm or "")
        if transformation is None or not transformation.is_square:
            raise NothingToDraw("The attack moves no square.")
        shape, attacked = artifacts.tensor("clean_inputs").shape, artifacts.tensor("attacked")
        broken = attacked & (artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)
        if not broken.any():
            raise NothingToDraw("No square broke a sample.")
        squares = torch.stack([artifacts.tensors(PARAMETERS)[name] for name in transformation.names], 1)
        share = inside_square(squares[broken], *shape[2:]).float().sum(0) / attacked.sum()
        most, n = float(share.max()), int(attacked.sum())
        heat = Picture(
            map_png(2 * share - most, most, 2 * SIDE, self.cmap), "where squares broke samples", f"up to {most:.1%}"
        )
        caption = (
            f"{artifacts.name}: share of {n} attacked samples that were broken by a square over this pixel, from 0 (dark) to "
            f"{most:.1%} (bright); each counts at the one place that broke it"
        )
        patches = [("places", heat)]
        if UNIVERSAL_PATCH in artifacts.data:
            patches.append(("the patch", picture(_framed(artifacts.tensor(UNIVERSAL_PATCH)), "the universal patch")))
        elif transformation.is_patch:
            pictured, side = artifacts.pictured, int(squares[broken][0, 0])
            rows = [
                i
                for i in shown_samples(pictured, self.max_patches)
                if pictured.tensor("verdicts")[i] == Verdict.ATTACK_SUCCEEDED
            ]
            for i in rows:
                row, column = (int(pictured.tensors(PARAMETERS)[f"patch_{name}"][i]) for name in ("row", "column"))
                values = _framed(pictured.tensor("perturbed_inputs")[i, :, row : row + side, column : column + side])
                patches.append(
                    (
                        pictured.shown_names[i],
                        picture(values, f"patch on {pictured.shown_names[i]}", _caption(pictured, i)),
                    )
                )
        return sheets(caption, [name for name, _ in patches], [("", [cell for _, cell in patches])])


def _framed(patch: Tensor) -> Tensor:
    """Return a patch (C, h, w) in a frame of grey, so that its white values end somewhere."""
    from torch.nn.functional import pad

    return pad(patch, (1, 1, 1, 1), value=0.5)
