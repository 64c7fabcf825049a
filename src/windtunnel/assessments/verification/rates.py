"""The numbers that every verification has: rates of the verdicts, and bounds of the logits."""

from torch import Tensor

from windtunnel.core.contracts import Json, Verdict
from windtunnel.core.statistics import binomial_rate

_COUNTED = (Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN, Verdict.ERROR)


def verdict_rates(verdicts: Tensor, certified: Tensor) -> dict[str, Json]:
    """`certified_accuracy`, of `certified` (N,) bool, and the rate of each verdict (N,), with their intervals."""
    n = len(verdicts)
    certified_rate = binomial_rate(int(certified.sum()), n, method="clopper_pearson")
    metrics: dict[str, Json] = dict(certified_rate.metrics("certified_accuracy"))
    for verdict in _COUNTED:
        metrics |= binomial_rate(int((verdicts == verdict).sum()), n).metrics(f"{verdict.label}_rate")
    return metrics


def bounds_metrics(lower: Tensor, upper: Tensor) -> dict[str, Json]:
    """Return the metrics of bounds of the logits (N, K each, NaN rows where there are none), over the samples that have them all.

    `n_bounded`, and `mean_lower_bound` and `mean_upper_bound`, lists of K; without a bounded sample the lists are left out.
    """
    is_bounded = (lower.isfinite() & upper.isfinite()).all(1)
    metrics: dict[str, Json] = {"n_bounded": int(is_bounded.sum())}
    if is_bounded.any():
        for end, bounds in (("lower", lower), ("upper", upper)):
            metrics[f"mean_{end}_bound"] = bounds[is_bounded].double().mean(0).tolist()
    return metrics
