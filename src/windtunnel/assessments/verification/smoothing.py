"""Randomised smoothing: certificates, in probability, of the smoothed model under L2, from forward passes alone.

Source: Cohen, Rosenfeld, Kolter 2019, arXiv 1902.02918, whose symbols these are. Sequential: Voracek 2024, arXiv 2406.17830, by
one-sided Clopper-Pearson bounds at sample sizes that double, which share alpha by the union bound.
"""

import time
from math import inf

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from windtunnel.assessments.verification.cascade.radius import curve_metrics
from windtunnel.assessments.verification.rates import verdict_rates
from windtunnel.assessments.verification.rows import SMOOTHING
from windtunnel.core.batches import Batch, batches_of
from windtunnel.core.classifier import FORWARD_BATCH, Classifier
from windtunnel.core.contracts import Caveat, Json, PerturbationBudget, Semantics, Verdict
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget
from windtunnel.params.verification import Smoothing, VerificationEntry
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.result import AssessmentResult, Tensors, tensor_in
from windtunnel.runtime.batch_runner import Checkpoint, run_batches

ABSTAIN = -1
KEYS = ("chosen", "counts", "copies")  # what `certify` returns
_FIRST_LOOK = 50  # fewest noisy copies after which a sequential run may stop


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
    from statsmodels.stats.proportion import proportion_confint  # a second, which every other verifier need not spend

    return float(proportion_confint(successes, n, alpha=2 * alpha, method="beta")[0])


def looks_of(smoothing: Smoothing) -> dict[int, float]:
    """Return the numbers of copies after which a run may stop, ascending, and the alpha of each; they sum to `alpha`.

    The last look has half of alpha, so that n copies certify nearly what they do without `sequential`.
    """
    looks = [smoothing.n]
    while smoothing.sequential and looks[0] >= 2 * _FIRST_LOOK:
        looks.insert(0, looks[0] // 2)
    early = len(looks) - 1
    return {n: smoothing.alpha / (2 * early if n < smoothing.n else 2) if early else smoothing.alpha for n in looks}


def radius_of(successes: int, n: int, smoothing: Smoothing) -> float:
    """Return sigma * Phi^-1(p), p the lower confidence bound after n copies, one of the looks; negative where p is below a half."""
    alpha = looks_of(smoothing).get(n, smoothing.alpha)
    return smoothing.sigma * float(ndtri(lower_confidence_bound(successes, n, alpha)))


def certify(
    classifier: Classifier, x: Tensor, smoothing: Smoothing, seed: int, epsilon: float = inf
) -> tuple[int, int, int]:
    """(class, how many copies are of it, how many copies there are): the class is chosen by the n0 copies, which certify nothing.

    With `sequential` the copies end when they decide whether the radius reaches epsilon, and whether the model abstains.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = int(noisy_counts(classifier, x, smoothing.n0, smoothing.sigma, generator).argmax())
    count = copies = 0
    needed = float(ndtr(epsilon / smoothing.sigma))
    for n, alpha in looks_of(smoothing).items():
        count += int(noisy_counts(classifier, x, n - copies, smoothing.sigma, generator)[chosen])
        copies = n
        low, high = lower_confidence_bound(count, n, alpha), 1 - lower_confidence_bound(n - count, n, alpha)
        if low >= needed or (high < needed and (low > 1 / 2 or high < 1 / 2)):
            break
    return chosen, count, copies


def assess_smoothing(name: str, entry: VerificationEntry, budget: Budget, subject: Subject) -> AssessmentResult:
    """Certify the smoothed model around each sample, one sample a unit of work, so that a killed run continues.

    VERIFIED where it predicts the target and the radius reaches the budget, UNKNOWN elsewhere; nothing is falsified.
    Extra keys of robustness_data.pt: `smoothed_predictions` int64 (N,), -1 where it abstains; `certified_radius` float32
    (N,), 0 where it abstains; `top_counts` and `copies` int64 (N,): how many of the sample's copies are of the class.
    """
    region, smoothing = entry.budget.over(budget), Smoothing.model_validate(entry.params)
    epsilon = region.epsilon
    assert epsilon is not None
    checkpoint = Checkpoint.of(name, subject, smoothing.model_dump(), epsilon)

    def work(batch: Batch) -> dict[str, Tensor]:
        started = time.perf_counter()
        x = subject.dataset.inputs[int(batch.indices)]
        outcome = zip(KEYS, certify(subject.classifier, x, smoothing, batch.seed, epsilon), strict=True)
        seconds = torch.tensor([time.perf_counter() - started])
        return {**{key: torch.tensor([number]) for key, number in outcome}, "seconds": seconds}

    batches = batches_of(torch.arange(len(subject.dataset)), 1, subject.seed, name)
    results = run_batches(batches, work, name=name, checkpoint=checkpoint)
    counts = zip(results["counts"].tolist(), results["copies"].tolist(), strict=True)
    radii = torch.tensor([radius_of(*count, smoothing) for count in counts])
    predictions = torch.where(radii > 0, results["chosen"], ABSTAIN)
    radii = radii.clamp(min=0)
    certified = (predictions == subject.dataset.targets) & (radii >= epsilon)
    no_bounds = torch.full((len(radii), subject.classifier.num_classes), torch.nan)
    data: Tensors = {
        **base_data(subject, torch.where(certified, int(Verdict.VERIFIED), int(Verdict.UNKNOWN))),
        "smoothed_predictions": predictions,
        "certified_radius": radii,
        "top_counts": results["counts"],
        "copies": results["copies"],
        "runtime_per_sample": results["seconds"],
        "output_bounds": {"lower": no_bounds, "upper": no_bounds},
    }
    result = AssessmentResult(
        name=name,
        semantics=Semantics(SMOOTHING, PerturbationBudget(region.norm, epsilon)),
        data=data,
        metrics=smoothing_metrics(data, smoothing),
        caveats=tuple(_caveats(smoothing, epsilon)),
        kwargs=base_kwargs(subject),
        call_kwargs={"x": subject.dataset.inputs, "epsilon": epsilon, **smoothing.model_dump()},
    )
    checkpoint.clear()
    return result


def smoothing_metrics(data: Tensors, smoothing: Smoothing) -> dict[str, Json]:
    """Return the contract's rates, the smoothed model's own accuracy and abstentions, and the certified curve."""
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
        "copies_used": int(tensor_in(data, "copies").sum()),
        **curve_metrics(radii, correct, largest_radius(smoothing)),
    }


def largest_radius(smoothing: Smoothing) -> float:
    """Return the radius where all n copies agree: no sample can be certified beyond it."""
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
    if smoothing.sequential:
        caveats.append(
            Caveat(
                "radius_up_to_budget",
                f"The copies of a sample end when its radius reaches {epsilon:g} or cannot: the radii of `certified_radius` and "
                f"the curve are lower than `sequential: false` finds, beyond {epsilon:g} most.",
            )
        )
    if smoothing.n < 10_000:
        caveats.append(Caveat("few_copies", f"n = {smoothing.n} noisy copies a sample; 10,000 or more are usual."))
    return caveats
