"""Randomised smoothing: certificates, in probability, of the smoothed model under L2, from forward passes alone.

Source: Cohen, Rosenfeld, Kolter 2019, arXiv 1902.02918, whose symbols these are.
"""

from __future__ import annotations

import time

import torch
from scipy.stats import norm
from statsmodels.stats.proportion import proportion_confint
from torch import Tensor

from windtunnel.assessments.verification.cascade.radius import curve_metrics
from windtunnel.assessments.verification.rates import verdict_rates
from windtunnel.assessments.verification.rows import SMOOTHING
from windtunnel.core.batches import Batch, batches_of
from windtunnel.core.binomial import binomial_rate
from windtunnel.core.classifier import FORWARD_BATCH, Classifier
from windtunnel.core.contracts import Caveat, Json, PerturbationBudget, Semantics, Verdict
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget
from windtunnel.params.verification import Smoothing, VerificationEntry
from windtunnel.records.artifacts import AssessmentResult, Tensors, base_data, base_kwargs, tensor_in
from windtunnel.runtime.batch_runner import run_batches
from windtunnel.runtime.checkpoint import Checkpoint

ABSTAIN = -1


def noisy_counts(classifier: Classifier, x: Tensor, n: int, sigma: float, generator: torch.Generator) -> Tensor:
    """Count how often each class is predicted for `n` copies of x (C, H, W) with Gaussian noise; int64 (K,)."""
    counts = torch.zeros(classifier.num_classes, dtype=torch.int64)
    for start in range(0, n, FORWARD_BATCH):
        size = min(FORWARD_BATCH, n - start)
        noise = torch.randn(size, *x.shape, generator=generator) * sigma
        predictions = classifier.predict(x + noise, None)
        counts += torch.bincount(predictions[predictions >= 0], minlength=classifier.num_classes)
    return counts


def lower_confidence_bound(successes: int, n: int, alpha: float) -> float:
    """One-sided Clopper-Pearson: the chance of success is at least this, with probability 1 - alpha."""
    return float(proportion_confint(successes, n, alpha=2 * alpha, method="beta")[0])


def radius_of(successes: int, n: int, smoothing: Smoothing) -> float:
    """Sigma * Phi^-1(p), p the lower confidence bound; negative where p is below a half and nothing is certified."""
    return smoothing.sigma * float(norm.ppf(lower_confidence_bound(successes, n, smoothing.alpha)))


def certify(classifier: Classifier, x: Tensor, smoothing: Smoothing, seed: int) -> tuple[int, int]:
    """(class, how many of the n copies are of it): the class is chosen by the n0 copies, which certify nothing."""
    generator = torch.Generator().manual_seed(seed)
    chosen = int(noisy_counts(classifier, x, smoothing.n0, smoothing.sigma, generator).argmax())
    return chosen, int(noisy_counts(classifier, x, smoothing.n, smoothing.sigma, generator)[chosen])


def assess_smoothing(name: str, entry: VerificationEntry, budget: Budget, subject: Subject) -> AssessmentResult:
    """Certify the smoothed model around each sample, one sample a unit of work, so that a killed run continues.

    VERIFIED where it predicts the target and the radius reaches the budget, UNKNOWN elsewhere; nothing is falsified.
    Extra keys of robustness_data.pt: `smoothed_predictions` int64 (N,), -1 where it abstains; `certified_radius` float32
    (N,), 0 where it abstains; `top_counts` int64 (N,), of the n copies.
    """
    region, smoothing = entry.budget.over(budget), Smoothing.model_validate(entry.params)
    assert region.epsilon is not None
    identity = [smoothing.model_dump(), subject.dataset.digest(), subject.classifier.digest, subject.seed]
    checkpoint = Checkpoint(name, subject.resolved, [*identity, str(subject.classifier.device)])

    def work(batch: Batch) -> dict[str, Tensor]:
        started = time.perf_counter()
        x = subject.dataset.inputs[int(batch.indices)]
        chosen, count = certify(subject.classifier, x, smoothing, batch.seed)
        seconds = torch.tensor([time.perf_counter() - started])
        return {"chosen": torch.tensor([chosen]), "counts": torch.tensor([count]), "seconds": seconds}

    batches = batches_of(torch.arange(len(subject.dataset)), 1, subject.seed, name)
    results = run_batches(batches, work, name=name, checkpoint=checkpoint)
    radii = torch.tensor([radius_of(int(count), smoothing.n, smoothing) for count in results["counts"]])
    predictions = torch.where(radii > 0, results["chosen"], ABSTAIN)
    radii = radii.clamp(min=0)
    certified = (predictions == subject.dataset.targets) & (radii >= region.epsilon)
    no_bounds = torch.full((len(radii), subject.classifier.num_classes), torch.nan)
    data: Tensors = {
        **base_data(subject, torch.where(certified, int(Verdict.VERIFIED), int(Verdict.UNKNOWN))),
        "smoothed_predictions": predictions,
        "certified_radius": radii,
        "top_counts": results["counts"],
        "runtime_per_sample": results["seconds"],
        "output_bounds": {"lower": no_bounds, "upper": no_bounds},
    }
    result = AssessmentResult(
        name=name,
        semantics=Semantics(SMOOTHING, PerturbationBudget(region.norm, region.epsilon)),
        data=data,
        metrics=smoothing_metrics(data, smoothing),
        caveats=tuple(_caveats(smoothing, region.epsilon)),
        kwargs=base_kwargs(subject),
        call_kwargs={"x": subject.dataset.inputs, "epsilon": region.epsilon, **smoothing.model_dump()},
    )
    checkpoint.clear()
    return result


def smoothing_metrics(data: Tensors, smoothing: Smoothing) -> dict[str, Json]:
    """The contract's rates, the smoothed model's own accuracy and abstentions, and the certified curve."""
    verdicts, clean, targets, predictions, radii = (
        tensor_in(data, key)
        for key in ("verdicts", "clean_predictions", "targets", "smoothed_predictions", "certified_radius")
    )
    n, correct = len(verdicts), predictions == targets
    return {
        **binomial_rate(int((clean == targets).sum()), n).metrics("clean_accuracy"),
        **verdict_rates(verdicts, verdicts == Verdict.VERIFIED),
        **binomial_rate(int(correct.sum()), n).metrics("smoothed_accuracy"),
        **binomial_rate(int((predictions == ABSTAIN).sum()), n).metrics("abstain_rate"),
        "n_samples": n,
        **curve_metrics(radii, correct, largest_radius(smoothing)),
    }


def largest_radius(smoothing: Smoothing) -> float:
    """The radius where all n copies agree: no sample can be certified beyond it."""
    return radius_of(smoothing.n, smoothing.n, smoothing)


def _caveats(smoothing: Smoothing, epsilon: float) -> list[Caveat]:
    caveats = [
        Caveat(
            "probabilistic_certificate",
            f"Each certificate holds with probability {1 - smoothing.alpha:g}, not for certain, and it is of the model "
            f"smoothed by Gaussian noise of {smoothing.sigma:g}, which is what must be deployed: it says nothing of the "
            f"model itself, and does not count in the sandwich.",
        )
    ]
    if largest_radius(smoothing) < epsilon:
        caveats.append(
            Caveat(
                "vacuous",
                f"With n = {smoothing.n} copies no radius above {largest_radius(smoothing):.3g} can be certified, and the "
                f"budget is {epsilon:g}: raise sigma or n.",
            )
        )
    if smoothing.n < 10_000:
        caveats.append(Caveat("few_copies", f"n = {smoothing.n} noisy copies a sample; 10,000 or more are usual."))
    return caveats
