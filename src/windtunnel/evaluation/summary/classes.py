"""How the worst case and the certificates spread over the classes: a rate with its interval per class, and the gap."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from windtunnel.core.binomial import IntervalMethod, binomial_rate
from windtunnel.core.contracts import Json


def class_metrics(
    name: str, held: Tensor, targets: Tensor, class_names: Sequence[str], method: IntervalMethod = "wilson"
) -> dict[str, Json]:
    """`{name}_per_class`, and what to lead with: `{name}_weakest_class_accuracy` (its interval too), `{name}_class_gap`.

    held: (N,) bool, which samples count for their class; targets: (N,) int64, indices into `class_names`. A row per class:
    `class`, `n`, and `accuracy` with its 95 % interval where n is not 0. The gap is the best class's accuracy minus the
    weakest's, in [0, 1], over the classes with samples; without two of these there is nothing to lead with. Extremes are
    chosen after the fact, so among many small classes the gap is wide by chance alone: read it with the intervals.
    """
    rates = []
    for label in range(len(class_names)):
        mine = targets == label
        rates.append(binomial_rate(int(held[mine].sum()), int(mine.sum()), method=method))
    rows: list[Json] = [
        {"class": word, "n": rate.n, **(rate.metrics("accuracy") if rate.n else {})}
        for word, rate in zip(class_names, rates, strict=True)
    ]
    metrics: dict[str, Json] = {f"{name}_per_class": rows}
    present = [rate for rate in rates if rate.n]
    if len(present) > 1:
        weakest = min(present, key=lambda rate: rate.value)
        metrics |= weakest.metrics(f"{name}_weakest_class_accuracy")
        metrics[f"{name}_class_gap"] = max(rate.value for rate in present) - weakest.value
    return metrics
