"""Charts of latent assessments: the metrics, the sizes of the perturbations found, and several classifiers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.base import Drawing, NothingToDraw, register
from windtunnel.assessments.figures.plots import HALF, Bar, Cloud, Series, bars, clouds, histogram, lines, ranks
from windtunnel.assessments.latent.pictures import LatentVisualiser, made  # which registers its figures too
from windtunnel.assessments.latent.tables import ClassifierMetrics, Correlation
from windtunnel.records.metadata import limits, number, numbers
from windtunnel.records.tables import table

if TYPE_CHECKING:
    from windtunnel.assessments.figures.scene import Scene
    from windtunnel.records.artifacts import Artifacts

_SIDES = {"reconstruction": "clean", "generation": "corrupted"}  # the colour of each
_MODELS = tuple("clean broken certified corrupted attack-3 certificate-3 attack-4 certificate-4 attack-5 ink".split())


@register
@dataclass(frozen=True)
class LatentMetricsVisualiser(LatentVisualiser, essential=True, title="Latent-space metrics"):
    """The metrics with their intervals: accuracies, accuracy against latent noise, sorted minimum perturbations."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return one chart for each group of metrics that has values."""
        drawn = (_accuracies(artifacts), _noise(artifacts), _smallest_changes(artifacts))
        return [scene for scene in drawn if scene]


def _accuracies(a: Artifacts) -> Scene:
    names = {"clean_accuracy": "as they are", "lra": "reconstructed, LRA", "lga": "generated, LGA"}
    names |= {"lara": "attacked, LARA", "laga": "attacked, LAGA"}
    roles = {"clean_accuracy": "clean", "lara": "broken", "laga": "broken"}
    rows = [
        Bar(text, number(a.metrics, key), roles.get(key, "accent"), limits(a.metrics, key))
        for key, text in names.items()
        if key in a.metrics
    ]
    alt = "; ".join(f"{r.label} {r.value:.1%}" for r in rows)
    return bars(rows, f"accuracy; attacked within {number(a.metrics, 'rho'):g} in latent space", alt, width=HALF)


def _noise(a: Artifacts) -> Scene | None:
    """Accuracy under latent noise (LLNA); None where no level has a value."""
    drawn = []
    for side, colour in _SIDES.items():
        if f"llna_{side}_curve" not in a.metrics:
            continue
        columns = (
            table(tuple[float | None, ...], a.metrics, f"llna_{side}_curve{end}") for end in ("", "_ci_low", "_ci_high")
        )
        levels = zip(numbers(a.metrics, "noise_levels"), *columns, strict=True)
        measured = [((x, y), (low, high)) for x, y, low, high in levels if None not in (y, low, high)]
        if measured:
            drawn.append(
                Series(side, colour, tuple(point for point, _ in measured), tuple(ends for _, ends in measured))
            )
    if not drawn:
        return None
    ends = "; ".join(f"{s.label} {s.points[-1][1]:.1%} at the largest" for s in drawn)
    most = max(x for s in drawn for x, _ in s.points)
    return lines(
        drawn, "size of the latent noise", "accuracy (LLNA)", f"Accuracy under latent noise (LLNA): {ends}", (0, most)
    )


def _smallest_changes(a: Artifacts) -> Scene | None:
    """Return the smallest changes found, sorted; None where none was found."""
    sides = (
        ("clean", "reconstructed (LARS is the mean)", a.tensor("perturbation_distance")),
        ("corrupted", "generated (LAGS is the mean)", made(a)["distances"]),
    )
    groups = [(colour, text, values[values.isfinite()].tolist()) for colour, text, values in sides]
    groups = [group for group in groups if group[2]]
    if not groups:
        return None
    top = max(max(values) for _, _, values in groups)
    bound = (number(a.metrics, "rho"), "bound of LARA and LAGA")
    alt = "Smallest perturbation of a code that changes the prediction, sorted; an attack of that size breaks the share below it."
    return ranks(groups, "smallest change found (latent norm)", alt, top, horizontal=bound)


@register
@dataclass(frozen=True)
class LatentDistributionsVisualiser(LatentVisualiser, title="Sizes of the nearest examples"):
    """Histograms of the size of what was found, in latent space and in the image."""

    bins: int = 20

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a chart for each size. Raises NothingToDraw where nothing was found."""
        from windtunnel.assessments.latent.metrics import changes
        from windtunnel.assessments.latent.noise import shrink

        factor = shrink(number(artifacts.metadata.kwargs.extra, "decay_epsilon"))
        real = artifacts.flat_tensors
        drawn_ones = made(artifacts)
        sides = {
            "reconstruction": changes(real["latents"], {**real, "distances": real["perturbation_distance"]}, factor),
            "generation": changes(drawn_ones["latents"], drawn_ones, factor),
        }
        titles = {
            "latent_change": "size of the change of the code, ‖δl‖",
            "latent_norm_change": "change of the norm of the code, ‖l‖",
            "image_change_l2": "change of the image, ‖δx‖₂, scaled",
            "image_change_l1": "change of the image, ‖δx‖₁, per value",
        }
        drawn = []
        for key, title in titles.items():
            groups = [(_SIDES[side], side, values[key].tolist()) for side, values in sides.items() if len(values[key])]
            if groups:
                means = ", ".join(f"{side} {sum(v) / len(v):.3g} in the mean of {len(v)}" for _, side, v in groups)
                drawn.append(histogram(groups, self.bins, title, f"{title}: {means}."))
        if not drawn:
            raise NothingToDraw("No example was found: there is nothing to measure.")
        return drawn


@register
@dataclass(frozen=True)
class LatentCorrelationVisualiser(LatentVisualiser, title="What goes with what over classifiers"):
    """Every pair of metrics of `correlations` over several classifiers, with Pearson's and Spearman's coefficients.

    only: the metrics that must be in a pair; all pairs where it is empty.
    """

    only: tuple[str, ...] = ()
    columns: int = 4

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a panel per pair. Raises NothingToDraw for fewer than three classifiers."""
        rows = table(tuple[Correlation, ...], artifacts.metrics, "correlations")
        pairs = [row for row in rows if not self.only or {row.x, row.y} & set(self.only)]
        if not pairs:
            raise NothingToDraw("Correlations need three classifiers: latent.<name>.models names further ones.")
        models = table(tuple[ClassifierMetrics, ...], artifacts.metrics, "models")
        panels = [_cloud(row, models) for row in pairs]
        colours = {row.model: _MODELS[k % len(_MODELS)] for k, row in enumerate(models)}
        alt = f"{len(panels)} pairs of metrics over {len(models)} classifiers. " + "; ".join(
            f"{p.y_label} against {p.x_label}: {p.title}" for p in panels
        )
        return [clouds(panels, colours, self.columns, alt)]


def _cloud(pair: Correlation, models: Sequence[ClassifierMetrics]) -> Cloud:
    x, y = pair.x, pair.y
    points = tuple((m.model, float(m.numbers[x]), float(m.numbers[y])) for m in models if {x, y} <= m.numbers.keys())
    is_defined = pair.pearson is not None and pair.spearman is not None
    text = f"r {pair.pearson:.2f}, rank {pair.spearman:.2f}" if is_defined else "constant"
    return Cloud(text, _axis(x), _axis(y), points)


def _axis(metric: str) -> str:
    return metric.replace("adversarial_", "").replace("_", " ").replace("image change", "image")
