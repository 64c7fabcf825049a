"""Accuracy curves of two runs on the same samples: the difference at each point, by a paired bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import bootstrap
from torch import Tensor

from windtunnel.core.contracts import Verdict
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import corruption_pairs, number

RESAMPLES = 2000
_AT_ONCE = 50  # resamples in memory together


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's curve: `scores` float64 (N, M) in [0, 1] are each sample's share of being right at the M points.

    of: what was averaged at the points; two curves of other things are not compared.
    """

    axis: str
    points: tuple[float, ...]
    scores: Tensor
    of: object = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The two rates at one point and their difference, second minus first, with its 95 % interval."""

    at: str
    first: float
    second: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CurveDifference:
    """Two curves, point by point (intervals are pointwise), and on the whole: `overall`, whose `at` says what it is."""

    axis: str
    points: tuple[CurvePoint, ...]
    overall: CurvePoint


def curve_of(artifacts: Artifacts) -> Curve | None:
    """Accuracy by epsilon (a sweep), severity (a suite of corruptions) or queries (a black-box attack); None for others."""
    targets, data = artifacts.tensor("targets"), artifacts.data
    if "sweep_predictions" in data:
        right = artifacts.tensor("sweep_predictions") == targets
        # A larger ball holds the example of the smaller one.
        scores = right.cummin(0).values.double().T
        return Curve("epsilon", tuple(round(e, 9) for e in artifacts.tensor("epsilons").tolist()), scores)
    if "corruption_predictions" in data:
        right = (artifacts.tensor("corruption_predictions") == targets).double()
        pairs = corruption_pairs(artifacts.metadata.kwargs)
        of_row = torch.tensor([float(severity) for _, severity in pairs])
        points = of_row.unique()
        scores = torch.stack([right[of_row == s].mean(0) for s in points], dim=1)
        return Curve("severity", tuple(points.tolist()), scores, pairs)
    options = artifacts.metadata.kwargs.extra
    if "queries" in data and options.get("max_queries") is not None:
        right = artifacts.tensor("clean_predictions") == targets
        most = int(number(options, "max_queries"))
        budgets = [b * 10**k for k in range(len(str(most))) for b in (1, 2, 5) if b * 10**k < most] + [most]
        broken = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
        survived = [right & ~(broken & (artifacts.tensor("queries") <= budget)) for budget in budgets]
        return Curve("queries", tuple(map(float, budgets)), torch.stack(survived, dim=1).double())
    return None


def compare_curves(first: Artifacts, second: Artifacts) -> CurveDifference | None:
    """Return the difference of the two curves; None unless both have one at the same points, of two samples or more.

    Percentile bootstrap over samples, each resample keeping a sample's two curves together (Efron, Tibshirani 1993).
    The seed is fixed, so that two comparisons of the same runs are equal.
    """
    first_curve, two = curve_of(first), curve_of(second)
    if first_curve is None or two is None or len(first_curve.scores) < 2:
        return None
    if (first_curve.axis, first_curve.points, first_curve.of) != (two.axis, two.points, two.of):
        return None
    weights = _weights(first_curve)
    columns = [np.column_stack([c.scores.numpy(), c.scores.numpy() @ weights]) for c in (first_curve, two)]
    difference = columns[1] - columns[0]
    options = {"batch": _AT_ONCE, "axis": 0, "method": "percentile", "rng": np.random.default_rng(0)}
    interval = bootstrap((difference,), np.mean, n_resamples=RESAMPLES, **options).confidence_interval
    summary_name = "area under the curve" if first_curve.axis == "epsilon" else "mean of the rows above"
    names, means = [*(f"{p:g}" for p in first_curve.points), summary_name], [column.mean(0) for column in columns]
    rows = [
        CurvePoint(name, *map(float, values))
        for name, *values in zip(names, *means, interval.low, interval.high, strict=True)
    ]
    return CurveDifference(first_curve.axis, tuple(rows[:-1]), rows[-1])


def _weights(curve: Curve) -> NDArray[np.float64]:
    """Return the weight of each point: the trapezoid rule over [0, largest epsilon], or all alike."""
    if curve.axis != "epsilon":
        return np.full(len(curve.points), 1 / len(curve.points))
    steps = np.diff(np.array(curve.points))
    weights: NDArray[np.float64] = (np.append(steps, 0) + np.append(0, steps)) / 2 / curve.points[-1]
    return weights
