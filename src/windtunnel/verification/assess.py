"""The pipeline of a verification: steps decide samples, and the contract's numbers are made of what they decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from windtunnel.catalogue import find_algorithm
from windtunnel.core.artifacts import AssessmentResult, Tensors, base_data, base_kwargs
from windtunnel.core.binomial import binomial_rate
from windtunnel.core.contracts import Algorithm, Json, PerturbationBudget, Semantics, Verdict
from windtunnel.core.distances import distance
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry
from windtunnel.verification.ledger import Ledger
from windtunnel.verification.steps import Task, run_step
from windtunnel.verification.table import CASCADE, MARABOU

_PACKAGE = {"auto-LiRPA": "auto-LiRPA", "Marabou": "maraboupy"}
_RATES = {"verified_rate": Verdict.VERIFIED, "falsified_rate": Verdict.FALSIFIED, "unknown_rate": Verdict.UNKNOWN,
          "error_rate": Verdict.ERROR}  # fmt: skip


def assess(name: str, entry: VerificationEntry, budget: Budget, subject: Subject) -> AssessmentResult:
    """Verify that the target's class holds in the whole ball around each sample.

    A misclassified sample is falsified by its own clean input, at distance 0, and sent to no verifier. Extra keys of
    robustness_data.pt: `lower_margins` float32 (N,), `decided_by` int64 (N,) into kwargs.decided_by_names, -1 for none.
    """
    algorithm = find_algorithm(entry.library, entry.algorithm, f"verification.{name}", "verification")
    region = entry.budget.over(budget)
    assert region.epsilon is not None
    task = Task(name, subject, region.norm, region.epsilon, entry)
    ledger = Ledger.of(subject)
    for step in steps_of(algorithm, entry):
        run_step(step, ledger, task)
    found = ledger.examples.flatten(1).isfinite().all(1)
    predictions, far = torch.full((len(found),), -1), torch.full((len(found),), torch.nan)
    if found.any():
        predictions[found] = subject.classifier.predict(ledger.examples[found])
        far[found] = distance(region.norm, ledger.examples[found], subject.dataset.inputs[found])
    data: Tensors = {
        **base_data(subject, ledger.verdicts),
        "perturbed_inputs": ledger.examples,
        "perturbed_predictions": predictions,
        "perturbation_distance": far,
        "output_bounds": {"lower": ledger.lower, "upper": ledger.upper},
        "runtime_per_sample": ledger.seconds,
        "lower_margins": ledger.lower_margins,
        "decided_by": ledger.decided_by,
    }
    names: list[Json] = list(ledger.names)
    return AssessmentResult(
        name=name,
        semantics=Semantics(algorithm, PerturbationBudget(region.norm, region.epsilon)),
        data=data,
        metrics=verification_metrics(data, ledger.names, ledger.timeouts),
        caveats=tuple(dict.fromkeys(ledger.caveats)),
        kwargs={**base_kwargs(subject), "decided_by_names": names, **_options(entry)},
        library_package=_PACKAGE.get(entry.library),
    )


def steps_of(algorithm: Algorithm, entry: VerificationEntry) -> tuple[str, ...]:
    """The steps behind an algorithm: a single verifier is a cascade of one."""
    if algorithm is CASCADE:
        return entry.steps
    if algorithm is MARABOU:
        return ("marabou",)
    return (algorithm.name.removesuffix("-l2").removesuffix("-l1"),)


def verification_metrics(
    data: Mapping[str, Tensor | dict[str, Tensor]], names: list[str], timeouts: int
) -> dict[str, Json]:
    """The contract's rates with their intervals, certified accuracy, who decided, and solver times."""
    verdicts, predictions, targets, seconds, decided = (
        cast(Tensor, data[key])
        for key in ("verdicts", "clean_predictions", "targets", "runtime_per_sample", "decided_by")
    )
    n, correct = len(verdicts), predictions == targets
    metrics: dict[str, Json] = dict(binomial_rate(int(correct.sum()), n).metrics("clean_accuracy"))
    certified = int(((verdicts == Verdict.VERIFIED) & correct).sum())
    metrics |= binomial_rate(certified, n, method="clopper_pearson").metrics("certified_accuracy")
    for key, verdict in _RATES.items():
        metrics |= binomial_rate(int((verdicts == verdict).sum()), n).metrics(key)
    metrics |= {
        "n_samples": n,
        "decided_by": {name: int((decided == i).sum()) for i, name in enumerate(names)},
        "timeouts": timeouts,
        "mean_runtime": float(seconds.double().mean()),
        "median_runtime": float(seconds.double().quantile(0.5)),
        "p95_runtime": float(seconds.double().quantile(0.95)),
    }
    return metrics


def _options(entry: VerificationEntry) -> dict[str, Json]:
    return entry.model_dump(mode="json", include={"batch_size", "timeout", "time_budget", "steps"})
