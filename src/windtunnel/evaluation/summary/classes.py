"""Compute worst case and certificates per class: a rate with its interval per class, and the gap."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from windtunnel.core.binomial import IntervalMethod, Rate, binomial_interval, binomial_rate
from windtunnel.core.contracts import Json
from windtunnel.records.tables import ClassShare, written

LEVEL = 0.95


def class_metrics(
    name: str, held: Tensor, targets: Tensor, class_names: Sequence[str], method: IntervalMethod = "wilson"
) -> dict[str, Json]:
    """`{name}_per_class`, and what to lead with: `{name}_weakest_class_accuracy` and `{name}_class_gap`, with intervals.

    held: (N,) bool, which samples count for their class; targets: (N,) int64, indices into `class_names`. A row per class:
    `class`, `n`, and `accuracy` with its 95 % interval where n is not 0. The gap is the best class's accuracy minus the
    weakest's, in [0, 1], over the classes with samples (its interval: `gap_interval`); without two of these there is nothing
    to lead with. The weakest class's interval is that of its row, which does not know that it was chosen for being lowest.
    """
    rates = []
    for label in range(len(class_names)):
        mine = targets == label
        rates.append(binomial_rate(int(held[mine].sum()), int(mine.sum()), LEVEL, method))
    lines = [ClassShare.of(rate, **{"class": word}) for word, rate in zip(class_names, rates, strict=True)]
    metrics: dict[str, Json] = {f"{name}_per_class": written(lines)}
    present = [rate for rate in rates if rate.n]
    if len(present) > 1:
        weakest = min(present, key=lambda rate: rate.value)
        metrics |= weakest.metrics(f"{name}_weakest_class_accuracy")
        low, high = gap_interval(present)
        metrics[f"{name}_class_gap"] = max(rate.value for rate in present) - weakest.value
        metrics |= {f"{name}_class_gap_ci_low": low, f"{name}_class_gap_ci_high": high}
    return metrics


def gap_interval(rates: Sequence[Rate]) -> tuple[float, float]:
    """Interval of the largest minus the smallest of at least two independent binomial rates with samples, in [0, 1].

    The two are chosen after the fact, as the extremes of K, so that an interval of their difference alone would find a gap
    among classes that are all alike. Here all K true rates lie in their intervals at once in at least 95 % of runs:
    Clopper-Pearson's, each at the level 0.95^(1/K) (Šidák 1967, doi:10.1080/01621459.1967.10482935). Where they do, the gap lies
    between the highest lower end minus the lowest upper end (0 where these overlap) and the largest distance of one class's
    upper end from another's lower end. A lower end of 0 says that the gap may be chance.
    """
    each = LEVEL ** (1 / len(rates))
    ends = [binomial_interval(rate.successes, rate.n, each, "clopper_pearson") for rate in rates]
    lows, highs = zip(*ends, strict=True)
    # Two of each, since no class is apart from itself.
    lowest = sorted(range(len(rates)), key=lambda i: lows[i])[:2]
    highest = sorted(range(len(rates)), key=lambda i: -highs[i])[:2]
    widest = max(highs[i] - lows[j] for i in highest for j in lowest if i != j)
    return max(0.0, max(lows) - min(highs)), widest
