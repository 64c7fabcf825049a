"""Metrics of a corruption suite, from predictions and targets alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.corruptions.reference import Pair, Reference
from windtunnel.assessments.corruptions.rows import IMAGECORRUPTIONS
from windtunnel.assessments.corruptions.table import category_of, common_of
from windtunnel.core import statistics
from windtunnel.core.contracts import Json

NEVER = 6  # minimal severity of a sample that no severity up to 5 breaks
K = TypeVar("K")
_NEGLIGIBLE = 1e-9  # a reference error below this divides nothing


@dataclass(frozen=True, slots=True)
class Interval:
    """The confidence interval that the entry specifies."""

    method: statistics.IntervalMethod = "wilson"
    level: float = 0.95

    def of(self, correct: Tensor) -> statistics.BinomialRate:
        """Return the share of True in (N,) bool."""
        return statistics.binomial_rate(int(correct.sum()), len(correct), self.level, self.method)

    def of_mean(self, mean: float, n: int) -> list[float]:
        """[mean, low, high] for a mean over n images of accuracies per image: its corruptions share images, so n counts once."""
        return [mean, *statistics.binomial_interval(mean * n, n, self.level, self.method)]


@dataclass(frozen=True, slots=True)
class SuiteData:
    """A finished suite of P (corruption, severity) pairs on N samples.

    predictions: int64 (P, N). clean, quantised, targets: int64 (N,). resized: int64 (N,), None without upsampling.
    minimal: int64 (N,), the mildest severity that breaks a sample, NEVER for none.
    """

    pairs: Sequence[Pair]
    predictions: Tensor
    clean: Tensor
    quantised: Tensor
    resized: Tensor | None
    targets: Tensor
    minimal: Tensor
    library: str = IMAGECORRUPTIONS


def accuracy_metrics(predictions: Tensor, clean: Tensor, targets: Tensor, interval: Interval) -> dict[str, Json]:
    """One corruption: corrupted accuracy with its interval, and how many predictions flipped against clean; (N,) each."""
    rate = interval.of(predictions == targets)
    return {
        **interval.of(clean == targets).metrics("clean_accuracy"),
        **rate.metrics("corrupted_accuracy"),
        "accuracy_ci_low": rate.low,
        "accuracy_ci_high": rate.high,
        "n_samples": rate.n,
        "n_correct": rate.successes,
        "prediction_flips": int((predictions != clean).sum()),
    }


def suite_metrics(suite: SuiteData, interval: Interval, reference: Reference | None = None) -> dict[str, Json]:
    """Means over the suite, by pair, corruption, category and severity; severity 0; flips; minimal severities; mCE."""
    targets, n = suite.targets, len(suite.targets)
    accuracy = (suite.predictions == targets).double().mean(1)
    by_corruption = _means_by(lambda pair: pair[0], suite.pairs, accuracy)
    worst = min(by_corruption, key=lambda name: by_corruption[name])
    by_severity = _means_by(lambda pair: pair[1], suite.pairs, accuracy)
    severities = sorted(by_severity)
    quantised = interval.of(suite.quantised == targets)
    clean = interval.of(suite.clean == targets)
    mean = interval.of_mean(float(accuracy.mean()), n)
    flips = suite.predictions != suite.clean
    metrics: dict[str, Json] = {
        **clean.metrics("clean_accuracy"),
        **_rates("corrupted_accuracy", mean),
        "accuracy_ci_low": mean[1],
        "accuracy_ci_high": mean[2],
        "n_samples": n,
        "n_pairs": len(suite.pairs),
        "n_correct": int((suite.predictions == targets).sum()),
        "mean_corruption_error": 1 - float(np.mean(list(by_corruption.values()))),
        **_named("accuracy_by_corruption", by_corruption, n, interval),
        **_named(
            "accuracy_by_family",
            _means_by(lambda p: category_of(suite.library, p[0]), suite.pairs, accuracy),
            n,
            interval,
        ),
        "severities": list(severities),
        **_listed("accuracy_by_severity", [by_severity[s] for s in severities], n, interval),
        **_listed("accuracy_by_pair", accuracy.tolist(), n, interval),
        "worst_corruption": worst,
        **_rates("worst_corruption_accuracy", interval.of_mean(by_corruption[worst], n)),
        **quantised.metrics("severity_0_accuracy"),
        "quantisation_change": quantised.value - clean.value,
        "prediction_flips": int(flips.sum()),
        **_rates("prediction_flip_rate", interval.of_mean(float(flips.double().mean()), n)),
        "minimal_severity_histogram": [int((suite.minimal == s).sum()) for s in (*severities, NEVER)],
        "never_broken": float((suite.minimal == NEVER).double().mean()),
    }
    if suite.resized is not None:
        resized = interval.of(suite.resized == targets)
        metrics |= {**resized.metrics("resized_accuracy"), "resizing_change": resized.value - clean.value}
    return metrics if reference is None else {**metrics, **mce_metrics(suite, reference, interval.level)}


def mce_metrics(suite: SuiteData, reference: Reference, level: float) -> dict[str, Json]:
    """MCE and relative mCE as fractions (1: as many errors as the reference), with paired bootstrap intervals.

    CE_c = sum_s E_{s,c} / sum_s E_ref_{s,c}; relative with the clean error taken from each E first. `mce` is the mean over
    the common corruptions of the suite (all of one that is not of ImageNet-C), those without a defined ratio left out
    (`mce_undefined`). Nothing where none is.
    Source: Hendrycks, Dietterich 2019, arXiv 1903.12261, section 4.
    """
    ours = (torch.cat([suite.predictions, suite.clean[None]]) != suite.targets).double().numpy()
    theirs = np.broadcast_to(reference.wrong, ours.shape)
    names = list(dict.fromkeys(c for c, _ in suite.pairs))
    groups = np.array([[float(c == name) for c, _ in suite.pairs] for name in names])
    means = np.stack([ours.mean(1), theirs.mean(1)])
    draws = statistics.bootstrap_means(np.concatenate([ours, theirs])).reshape(-1, 2, len(ours))
    common = common_of(suite.library, names)
    metrics: dict[str, Json] = {}
    for prefix, relative in (("", False), ("relative_", True)):
        ratio, defined = _ratios(means, groups, relative=relative)
        counted = [name in common for name in names] & defined
        metrics[f"{prefix}corruption_errors"] = {
            name: float(value) for name, value, fine in zip(names, ratio, defined, strict=True) if fine
        }
        metrics[f"{prefix}mce_undefined"] = [name for name, fine in zip(names, defined, strict=True) if not fine]
        if counted.any():
            metrics[f"{prefix}mce"] = float(ratio[counted].mean())
            resampled, _ = _ratios(draws, groups[counted], relative=relative)
            values = resampled.mean(-1)
            if np.isfinite(values).all():
                low, high = statistics.percentile_interval(values, level)
                metrics |= {f"{prefix}mce_ci_low": low, f"{prefix}mce_ci_high": high}
    return metrics


def _ratios(means: np.ndarray, groups: np.ndarray, *, relative: bool) -> tuple[np.ndarray, np.ndarray]:
    """(ratio (..., C), defined (..., C)) from error rates (..., 2, P + 1) of ours and the reference, clean last."""
    errors = means[..., :-1] - means[..., -1:] if relative else means[..., :-1]
    sums = errors @ groups.T
    ours, theirs = sums[..., 0, :], sums[..., 1, :]
    defined = theirs > _NEGLIGIBLE
    return np.divide(ours, theirs, out=np.full_like(ours, np.nan), where=defined), defined


def _means_by(key: Callable[[Pair], K], pairs: Sequence[Pair], accuracy: Tensor) -> dict[K, float]:
    """Return the mean accuracy of the pairs of each key, in the order in which the keys come."""
    groups: dict[K, list[float]] = {}
    for pair, value in zip(pairs, accuracy.tolist(), strict=True):
        groups.setdefault(key(pair), []).append(value)
    return {group: float(np.mean(values)) for group, values in groups.items()}


def _named(name: str, means: Mapping[str, float], n: int, interval: Interval) -> dict[str, Json]:
    rows = {key: interval.of_mean(mean, n) for key, mean in means.items()}
    return _rates(name, [{key: row[i] for key, row in rows.items()} for i in range(3)])


def _listed(name: str, means: Sequence[float], n: int, interval: Interval) -> dict[str, Json]:
    rows = [interval.of_mean(mean, n) for mean in means]
    return _rates(name, [[row[i] for row in rows] for i in range(3)])


def _rates(name: str, value_low_high: Sequence[Json]) -> dict[str, Json]:
    return dict(zip((name, f"{name}_ci_low", f"{name}_ci_high"), value_low_high, strict=True))
