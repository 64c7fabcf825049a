"""Group F, statistics and reporting: does the reader see how sure the numbers are?"""

from collections.abc import Iterator

import torch

from windtunnel.core.statistics import binomial_interval, median
from windtunnel.core.transformations import budget_text
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, our_check, total
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, numbers
from windtunnel.evaluation.sanity.rates import rate_interval

RATE_ENDINGS = ("_accuracy", "_rate")


def _rates(assessment: Assessment) -> dict[str, tuple[float, bool]]:
    """Every rate among the metrics: (value, whether its interval is there)."""
    stated = numbers(assessment.artifacts.metrics)
    return {
        key: (value, (f"{key}_ci_low" in stated and f"{key}_ci_high" in stated) or "accuracy_ci_low" in stated)
        for key, value in stated.items()
        if key.endswith(RATE_ENDINGS)
    }


@our_check("F1", "{named}", value=total)
def every_rate_has_interval(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A rate without an interval looks exact. Every `*_accuracy` and `*_rate` of every assessment."""
    for assessment in evidence.assessments:
        keys = [key for key, (_, has_interval) in _rates(assessment).items() if not has_interval]
        yield CheckResult(bool(keys), len(keys), assessments=[assessment.name], reason=", ".join(keys))


@our_check("F2")
def enough_samples(evidence: Evidence, limit: float) -> CheckResult:
    """The largest half width of a 95 % Wilson interval among the clean accuracy and the attacks' and certificates' rates."""
    widest = {"clean": _half_width(int(evidence.subject.clean_correct.sum()), len(evidence.ids))}
    for assessment in evidence.assessments:
        for key in ("adversarial_accuracy", "certified_accuracy"):
            value = numbers(assessment.artifacts.metrics).get(key)
            if value is not None and len(assessment.indices):
                widest[assessment.name] = _half_width(round(value * len(assessment.indices)), len(assessment.indices))
    bad = [name for name, width in widest.items() if width > limit]
    widest_name, worst = max(widest.items(), key=lambda item: item[1])
    reason = f"indicative: intervals of up to ±{100 * worst:.1f} points ({widest_name})"
    each = {name: f"indicative: its interval is ±{100 * widest[name]:.1f} points" for name in bad}
    assessments = [name for name in bad if name != "clean"]
    return CheckResult(bool(bad), worst, len(evidence.ids), assessments=assessments, reason=reason, each=each)


def _half_width(successes: int, n: int) -> float:
    low, high = binomial_interval(successes, n)
    return (high - low) / 2


@our_check("F3")
def comparisons_paired(evidence: Evidence, limit: float) -> CheckResult:
    """Two models on the same samples differ by their discordant samples, not by two independent intervals.

    Asked by `windtunnel sanity`: every metric of `gate.maximum_regression` must have been assessed on the same samples
    under the same settings as the champion's, without which the gate has nothing to pair.
    """
    raise NotRun("the champion is no input of a cached stage; windtunnel sanity compares the samples with its samples")


@our_check("F4", "{named}", value=total)
def extremes_bounded(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """0 % and 100 % of a few samples are not never and always.

    Flags a rate of exactly 0 or 1 whose interval is missing or has no width.
    """
    for assessment in evidence.assessments:
        stated, keys = numbers(assessment.artifacts.metrics), []
        for key, (value, has_interval) in _rates(assessment).items():
            ends = ("ci_low", "ci_high")
            low, high = (stated.get(f"{key}_{end}", stated.get(f"accuracy_{end}", value)) for end in ends)
            if value in (0.0, 1.0) and (not has_interval or high - low <= 0):
                keys.append(key)
        yield CheckResult(bool(keys), len(keys), assessments=[assessment.name], reason=", ".join(keys))


@our_check("F5", "cut off above chance: {names}")
def curves_come_down(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """The area under a curve that ends above chance depends on where it was cut. Lower 95 % bound at the last epsilon."""
    for assessment in evidence.of("sweeps"):
        right = assessment.tensor("sweep_predictions") == assessment.tensor("targets")
        rate, low, _ = rate_interval(right.all(0))
        yield CheckResult(low > 1 / evidence.data.num_classes, rate, assessments=[assessment.name])


@our_check("F6", "another median in {names}")
def median_censored(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """The median over successes alone moves the wrong way: the harder samples drop out.

    `censored_median_distance` of every minimum-norm attack against the one recomputed, with infinity for not found.
    """
    for assessment in evidence.attacks(lambda p: p.minimum_norm, "minimum-norm attack"):
        tried = assessment.tried & assessment.right
        has_example = assessment.tensor("perturbed_predictions") != assessment.tensor("targets")
        distances = torch.where(has_example, assessment.tensor("perturbation_distance"), torch.inf)[tried]
        stated = numbers(assessment.artifacts.metrics).get("censored_median_distance", torch.inf)
        middle = median(distances.tolist())
        true = torch.inf if middle is None else middle
        same = true == stated or abs(true - stated) <= limit * max(1.0, abs(true))
        yield CheckResult(not same, 0.0 if same else abs(true - stated), assessments=[assessment.name])


@our_check("F7")
def no_best_of_many(evidence: Evidence, limit: float) -> CheckResult:
    """A gate on one attack among several is passed by the attack that happens to be weakest.

    Flags a floor of `gate.minimum` on one attack while another attack at the same budget is left out.
    """
    floors = {key.split("/")[0] for key in evidence.params.gate.minimum}
    if not floors:
        raise NotApplicable("the gate has no floors")
    try:
        attacks = evidence.attacks()
    except NotApplicable:
        attacks = []
    bad = [
        p.name
        for p in attacks
        if p.name in floors and any(q.region == p.region and q.name not in floors for q in attacks)
    ]
    if "worst_case" in floors:
        bad = []
    reason = f"the gate reads {', '.join(bad)} and not the worst case"
    return CheckResult(bool(bad), len(bad), len(floors), assessments=bad, reason=reason)


@our_check("F8")
def worst_class(evidence: Evidence, limit: float) -> CheckResult:
    """Worst-case accuracy of the worst class at one budget, and how far it lies under the mean (threshold).

    At the global budget, over the samples that its attacks drew; where nothing attacked there, at the first budget of an attack.
    """
    evidence.attacks()
    result = evidence.sandwiched
    robust, covered = ~result.incorrect, result.drawn
    targets, names = evidence.data.targets, evidence.data.class_names
    rates = {
        names[k]: rate_interval(robust[covered & (targets == k)])
        for k in range(len(names))
        if (covered & (targets == k)).any()
    }
    name, (rate, low, high) = min(rates.items(), key=lambda item: item[1][0])
    mean = float(robust[covered].double().mean())
    budget = budget_text(result.region.norm, result.region.epsilon)
    note = f"class {name} at {budget}: {rate:.0%} [{low:.0%}, {high:.0%}], mean {mean:.0%}"
    return CheckResult(mean - rate > limit, rate, n=len(rates), note=note)
