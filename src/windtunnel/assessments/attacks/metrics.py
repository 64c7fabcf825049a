"""The metrics of an attack, all from the tensors on disk."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from windtunnel.assessments.two_phase import two_phase_metrics
from windtunnel.core.contracts import Algorithm, Json, Norm, Verdict
from windtunnel.core.distances import DISTANCE
from windtunnel.core.statistics import binomial_rate, median_metric
from windtunnel.records.result import tensor_in
from windtunnel.records.storage import distances_of


def attack_metrics(
    data: Mapping[str, Tensor | dict[str, Tensor]], norm: Norm, algorithm: Algorithm, num_classes: int
) -> dict[str, Json]:
    """Accuracies, success rates with Wilson intervals, distances over successes, cost and confidence.

    adversarial_accuracy: share of all samples that are right on the clean input and not broken within the budget; a
    sample without a result (error) is neither.
    attack_success_rate: over the samples that were attacked, which are those the model got right (and, where an attack
    was run on survivors, those that the others left). success_rate_all_samples: over all samples, misclassified ones
    counted as successes of an untargeted attack, as some peers do. For an attack that finds its own distance,
    success_rate_any_distance disregards the budget, and any_distance_* is the distribution over all it reached.
    distance_<norm>_*: over successes on attacked samples. Confidence is of the predicted class.
    """
    table = {key: value for key, value in data.items() if isinstance(value, Tensor)}
    targets, attacked = table["targets"], table["attacked"]
    predictions, aims = table["perturbed_predictions"], table.get("target_classes")
    n, succeeded = len(targets), table["verdicts"] == Verdict.ATTACK_SUCCEEDED
    wins, robust = succeeded & attacked, is_robust(table)
    metrics: dict[str, Json] = {
        **attack_rates(table),
        "success_rate_all_samples": float(succeeded.double().mean()) if n else 0.0,
        "n_samples": n,
        "n_attacked": int(attacked.sum()),
        "n_succeeded": int(wins.sum()),
    }
    for name in DISTANCE:
        metrics |= _spread(f"distance_{name.value}", distances_of(data, name)[wins])
    declared = table["perturbation_distance"]
    metrics |= {f"{key}_distance": value for key, value in summary(declared[wins]).items()}
    if algorithm.minimum_norm:
        reached = attacked & (predictions != targets if aims is None else predictions == aims)
        metrics |= binomial_rate(int(reached.sum()), int(attacked.sum())).metrics("success_rate_any_distance")
        metrics |= _spread("any_distance", declared[reached])
        # Not found means infinitely far: the median over all attacked samples, where half of them were reached.
        censored = torch.where(reached, declared, torch.inf)[attacked]
        metrics |= median_metric("censored_median_distance", censored.tolist())
    if attacked.any():
        for key, logits in (("before", table["clean_logits"]), ("after", table["perturbed_logits"])):
            metrics[f"mean_confidence_{key}"] = float(logits[attacked].double().softmax(1).amax(1).mean())
        for key in ("forward_passes", "backward_passes"):
            metrics[f"mean_{key}"] = float(table[key][attacked].double().mean())
    metrics |= two_phase_metrics(data, attacked, robust)
    metrics["class_counts"] = [int((targets == label).sum()) for label in range(num_classes)]
    metrics["per_class_adversarial_accuracy"] = [
        float(robust[targets == label].double().mean()) if (targets == label).any() else 0.0
        for label in range(num_classes)
    ]
    return metrics


def is_robust(table: Mapping[str, Tensor]) -> Tensor:
    """Return bool (N,): right on the clean input, and not broken by a finished attack."""
    # A targeted attack that misses its target may still have left the sample right.
    return (table["clean_predictions"] == table["targets"]) & (table["verdicts"] == Verdict.ATTACK_FAILED)


def attack_rates(table: Mapping[str, Tensor]) -> dict[str, Json]:
    """Return clean and adversarial accuracy and the success rate, with their intervals."""
    right, attacked, robust = table["clean_predictions"] == table["targets"], table["attacked"], is_robust(table)
    wins = attacked & (table["verdicts"] == Verdict.ATTACK_SUCCEEDED)
    return {
        **binomial_rate(int(right.sum()), len(right)).metrics("clean_accuracy"),
        **binomial_rate(int(robust.sum()), len(right)).metrics("adversarial_accuracy"),
        **binomial_rate(int(wins.sum()), int(attacked.sum())).metrics("attack_success_rate"),
    }


def summary(values: Tensor) -> dict[str, float | str]:
    """Return mean, median and maximum of some values (n,); nothing of none."""
    if not len(values):
        return {}
    exact = values.double()
    return {"mean": float(exact.mean()), **median_metric("median", exact.tolist()), "max": float(exact.max())}


def _spread(name: str, values: Tensor) -> dict[str, Json]:
    return {f"{name}_{key}": value for key, value in summary(values).items()}


def transfer_metrics(data: Mapping[str, Tensor | dict[str, Tensor]], names: Sequence[str]) -> dict[str, Json]:
    """`transfer`: per further model, how many of the attack's successes it gets wrong too, with the interval.

    From `transfer_predictions` int64 (M, N) for M names. A success that the other model misclassifies without any
    perturbation (`transfer_clean_predictions`) is left out: nothing was transferred to it.
    """
    verdicts, targets, attacked, fooled, before = (
        tensor_in(data, key)
        for key in ("verdicts", "targets", "attacked", "transfer_predictions", "transfer_clean_predictions")
    )
    wins = (verdicts == Verdict.ATTACK_SUCCEEDED) & attacked
    rates: dict[str, Json] = {}
    for name, predictions, clean in zip(names, fooled, before, strict=True):
        tried = wins & (clean == targets)
        rate = binomial_rate(int((tried & (predictions != targets)).sum()), int(tried.sum()))
        rates[name] = {**rate.metrics("transfer_rate"), "n_examples": rate.n}
    return {"transfer": rates} if rates else {}
