"""The metrics of a query-counted attack, all from the tensors on disk, and success against the number of queries."""

from collections.abc import Mapping
from math import prod

import numpy as np
from torch import Tensor

from windtunnel.assessments.attacks.metrics import attack_rates, summary
from windtunnel.core.contracts import Json, Norm, Verdict
from windtunnel.core.statistics import binomial_interval, median_metric
from windtunnel.records.storage import distances_of

CURVE_POINTS = 100


def query_metrics(data: Mapping[str, Tensor | dict[str, Tensor]]) -> dict[str, Json]:
    """RobustCheck's metrics by its names, with intervals, totals and the curve of success against queries.

    Over the images that were attacked, which are those the model gets right: count_succ, count_fail, attack_success_rate,
    indices_* (places in robustness_data.pt). Over successes: queries_succ, l0_dists_succ (each channel counted),
    l2_dists_succ (on [0, 1] pixels), each with mean, median and max; l2_dists_succ_mean_pp is also per value of an image.
    Without a success the lists are empty and what is computed from them is left out.
    adversarial_accuracy: share of all samples that are right and not broken; what has no result is neither. queries_total: of all samples.
    queries_median_censored: over attacked images, a failure counting as infinitely many; where
    that is the median, `queries_median_censored_status` says so in its place.
    """
    table = {key: value for key, value in data.items() if isinstance(value, Tensor)}
    clean, attacked, queries = table["clean_inputs"], table["attacked"], table["queries"]
    succeeded = table["verdicts"] == Verdict.ATTACK_SUCCEEDED
    wins, fails = attacked & succeeded, attacked & ~succeeded
    lists = {
        "queries": queries[wins],
        "l0_dists": distances_of(data, Norm.L0)[wins].long(),
        "l2_dists": distances_of(data, Norm.L2)[wins],
    }
    metrics: dict[str, Json] = {
        **attack_rates(table),
        "n_samples": len(queries),
        "n_attacked": int(attacked.sum()),
        "count_succ": int(wins.sum()),
        "count_fail": int(fails.sum()),
    }
    for name, values in lists.items():
        metrics |= {f"{name}_succ_{key}": value for key, value in summary(values).items()}
    if wins.any():
        metrics["l2_dists_succ_mean_pp"] = float(lists["l2_dists"].double().mean()) / prod(clean.shape[1:])
    metrics["queries_total"] = int(queries.sum())
    censored = np.where(succeeded[attacked], queries[attacked].double(), np.inf)
    metrics |= median_metric("queries_median_censored", censored.tolist())
    metrics |= {f"{name}_succ": values.tolist() for name, values in lists.items()}
    metrics["indices_succ"], metrics["indices_fail"] = (mask.nonzero().flatten().tolist() for mask in (wins, fails))
    return {**metrics, **success_curve(queries[attacked], succeeded[attacked])}


def success_curve(queries: Tensor, succeeded: Tensor) -> dict[str, Json]:
    """`success_rate_curve` at each of `query_budgets`, with Wilson intervals: the share of images broken within that many queries.

    queries int64 (n,), succeeded bool (n,), of the attacked images; empty for none of them. The budgets are 1, the
    numbers of queries at which the curve rises (thinned where they are many), and the largest number used; a failure counts as a
    failure at every budget, also above what it spent.
    """
    if not len(queries):
        return {"query_budgets": [], **{f"success_rate_curve{end}": [] for end in ("", "_ci_low", "_ci_high")}}
    rises = queries[succeeded].unique().tolist()
    thinned = rises[:: -(-len(rises) // CURVE_POINTS) or 1]
    budgets = sorted({1, *thinned, int(queries.max())})
    counts = [int((succeeded & (queries <= budget)).sum()) for budget in budgets]
    intervals = [binomial_interval(count, len(queries)) for count in counts]
    return {
        "query_budgets": budgets,
        "success_rate_curve": [count / len(queries) for count in counts],
        "success_rate_curve_ci_low": [low for low, _ in intervals],
        "success_rate_curve_ci_high": [high for _, high in intervals],
    }
