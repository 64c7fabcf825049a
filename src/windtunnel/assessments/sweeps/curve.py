"""The epsilon grid of a sweep and its results: the degradation curve, critical epsilons and the rating, from predictions alone.

The procedure is that of neural-api's `TNNet.AdversarialRobustnessReport`; intervals, area and censoring are ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windtunnel.core import statistics
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.params.sweeps import MOST_EPSILONS, EpsilonRange
from windtunnel.records.tables import Share, written

HISTOGRAM_BINS = 10


def epsilon_grid(epsilons: Sequence[float] | EpsilonRange, where: str) -> tuple[list[float], bool]:
    """Return (the grid, sorted, with zero; whether zero had to be added).

    Raises UserError for an empty grid, one of more than `MOST_EPSILONS`, a negative or a repeated epsilon.
    """
    if isinstance(epsilons, EpsilonRange):
        space = np.linspace if epsilons.spacing == "linear" else np.geomspace
        values = [float(v) for v in space(epsilons.start, epsilons.stop, epsilons.steps)]
    else:
        values = [float(v) for v in epsilons]
    if not values:
        raise UserError(f"{where}.epsilons: is empty; give at least one epsilon above 0, for example [0, 2/255, 4/255]")
    if len(values) > MOST_EPSILONS:
        raise UserError(f"{where}.epsilons: has {len(values)} values; {MOST_EPSILONS} at most")
    if min(values) < 0:
        raise UserError(f"{where}.epsilons: {min(values):g} is negative; an epsilon is 0 or larger")
    if repeated := sorted(value for value, count in Counter(values).items() if count > 1)[:5]:
        raise UserError(f"{where}.epsilons: {', '.join(f'{v:g}' for v in repeated)} is repeated; each epsilon once")
    if max(values) == 0:
        raise UserError(f"{where}.epsilons: holds only 0, the clean baseline; add an epsilon above 0")
    added = 0.0 not in values
    return sorted([*values, 0.0] if added else values), added


def median_index(grid: Sequence[float]) -> int:
    """Index of the median epsilon: n // 2, the upper median, as in neural-api's report."""
    return len(grid) // 2


@dataclass(frozen=True, slots=True)
class Sweep:
    """A finished sweep of N samples over E epsilons.

    epsilons: (E,), ascending from 0. predictions: int64 (E, N); row 0 is clean. targets: int64 (N,).
    clean_confidence: (N,), max softmax in [0, 1]. critical_epsilon: (N,), inf for a sample that never flips.
    """

    epsilons: Tensor
    predictions: Tensor
    targets: Tensor
    clean_confidence: Tensor
    critical_epsilon: Tensor
    num_classes: int

    @property
    def raw_accuracy(self) -> Tensor:
        """(E,) share of samples that are right at each epsilon taken alone."""
        return (self.predictions == self.targets).double().mean(1)

    @property
    def cumulative_correct(self) -> Tensor:
        """Return bool (E, N): correct at this and every smaller epsilon; a larger ball contains the smaller one's example."""
        return (self.predictions == self.targets).cummin(0).values

    @property
    def violations(self) -> int:
        """Count the samples that are wrong at one epsilon and right again at the next larger (overshoot, or masking)."""
        correct = self.predictions == self.targets
        return int((~correct[:-1] & correct[1:]).any(0).sum())


def critical_epsilon(epsilons: Tensor, predictions: Tensor) -> Tensor:
    """Return the smallest epsilon above 0 whose prediction differs from the clean one; (N,) float32, inf where none does.

    epsilons (E,) ascending from 0, predictions (E, N). Misclassified samples are included: it is the prediction that
    flips, as in neural-api.
    """
    flipped = predictions[1:] != predictions[:1]
    first = flipped.int().argmax(0)
    return torch.where(flipped.any(0), epsilons[1:][first], torch.inf).float()


def rating_of(drop: float, robust: float, moderately_fragile: float) -> str:
    """`robust`, `moderately fragile` or `fragile`, from the accuracy drop at the median epsilon."""
    if drop < robust:
        return "robust"
    return "moderately fragile" if drop < moderately_fragile else "fragile"


def area_under_curve(epsilons: Tensor, accuracy: Tensor) -> Tensor:
    """Trapezoid area under accuracy against epsilon, divided by the largest epsilon, in [0, 1]: (E,) -> (), (E, N) -> (N,).

    The area under a curve of many samples is the mean of the areas under theirs.
    """
    # By hand: torch.trapezoid over the first axis would want the epsilons spread out to (E, N).
    steps = epsilons.double().diff()
    middles = (accuracy[1:].double() + accuracy[:-1].double()) / 2
    area: Tensor = torch.tensordot(steps, middles, dims=1) / epsilons[-1].double()
    return area


def sweep_metrics(sweep: Sweep, robust: float, moderately_fragile: float) -> dict[str, Json]:
    """Every number of the report, sections (a) to (f), as plain values."""
    n = len(sweep.targets)
    counts = sweep.cumulative_correct.sum(1).tolist()
    intervals = [statistics.binomial_interval(k, n) for k in counts]
    areas = area_under_curve(sweep.epsilons, sweep.cumulative_correct)
    area_low, area_high = statistics.percentile_interval(statistics.bootstrap_means(areas[None].numpy())[:, 0])
    middle = median_index(sweep.epsilons.tolist())
    drop = max(0.0, float(sweep.raw_accuracy[0] - sweep.raw_accuracy[middle]))
    flips = sweep.critical_epsilon.isfinite()
    chance = 1 / sweep.num_classes
    classes = per_class(sweep, middle)
    metrics: dict[str, Json] = {
        "n_samples": n,
        **statistics.binomial_rate(counts[0], n).metrics("clean_accuracy"),
        "adversarial_accuracy": counts[-1] / n,
        "adversarial_accuracy_ci_low": intervals[-1][0],
        "adversarial_accuracy_ci_high": intervals[-1][1],
        "epsilons": [float(f"{e:.9g}") for e in sweep.epsilons.tolist()],
        "accuracy_curve": [k / n for k in counts],
        "accuracy_curve_ci_low": [low for low, _ in intervals],
        "accuracy_curve_ci_high": [high for _, high in intervals],
        "accuracy_curve_raw": sweep.raw_accuracy.tolist(),
        "monotonicity_violations": sweep.violations,
        "never_flips": float((~flips).double().mean()),
        "critical_epsilon_histogram": histogram(sweep),
        "critical_epsilon_bins": bin_ends(sweep),
        "median_epsilon": float(f"{float(sweep.epsilons[middle]):.9g}"),
        "accuracy_drop_at_median_epsilon": drop,
        "verdict": rating_of(drop, robust, moderately_fragile),
        "area_under_curve": float(areas.mean()),
        "area_under_curve_ci_low": area_low,
        "area_under_curve_ci_high": area_high,
        "curve_has_come_down": bool(intervals[-1][0] <= chance),
        "per_class_accuracy_at_median_epsilon": [share.accuracy for share in classes],
        "per_class_at_median_epsilon": written(classes),
        **_confidence(sweep),
    }
    # Over all samples, survivors counted as inf: not reached where fewer than half flip.
    epsilons = (float(f"{epsilon:.9g}") for epsilon in sweep.critical_epsilon.tolist())
    return {**metrics, **statistics.median_metric("median_critical_epsilon", epsilons)}


def histogram(sweep: Sweep) -> list[Json]:
    """Return counts of critical epsilons in ten equal bins of (0, largest epsilon]; survivors are not in it."""
    finite = sweep.critical_epsilon[sweep.critical_epsilon.isfinite()]
    counts = torch.histc(finite, bins=HISTOGRAM_BINS, min=0.0, max=float(sweep.epsilons[-1]))
    return [int(count) for count in counts.tolist()]


def bin_ends(sweep: Sweep) -> list[Json]:
    """Return the upper end of each bin of `histogram`."""
    largest = float(sweep.epsilons[-1])
    return [float(f"{largest * (i + 1) / HISTOGRAM_BINS:.9g}") for i in range(HISTOGRAM_BINS)]


def per_class(sweep: Sweep, index: int) -> list[Share]:
    """`n` and top-1 `accuracy` with its interval, of each class at epsilon number `index`; n alone for a class without samples."""
    correct = sweep.predictions[index] == sweep.targets
    members = [sweep.targets == label for label in range(sweep.num_classes)]
    return [Share.of(statistics.binomial_rate(int(correct[mine].sum()), int(mine.sum()))) for mine in members]


def extremes(sweep: Sweep) -> tuple[Tensor, Tensor]:
    """Return the samples that flip at the smallest epsilon of the grid at which anybody does, and who lasts longest; bool (N,) each.

    By the grid's epsilons, not by the bisected ones, whose earliest group is a sample or two. Those that never flip last
    longest; where all flip, those at the largest critical epsilon. Nobody is earliest where nobody flips.
    """
    critical = critical_epsilon(sweep.epsilons, sweep.predictions)
    flips = critical.isfinite()
    longest = ~flips if (~flips).any() else critical == critical.max()
    return flips & (critical == critical.min()), longest


def _confidence(sweep: Sweep) -> dict[str, Json]:
    """Count the samples that flip earliest and last longest, and their mean clean confidence; none is left out for no sample."""
    metrics: dict[str, Json] = {}
    for name, mine in zip(("earliest", "longest"), extremes(sweep), strict=True):
        metrics[f"n_{name}"] = int(mine.sum())
        if mine.any():
            metrics[f"confidence_{name}"] = float(sweep.clean_confidence[mine].double().mean())
    return metrics
