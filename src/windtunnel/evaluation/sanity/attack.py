"""Group B, post-conditions of an attack: do its tensors agree with its reported results?"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from scipy.stats import binomtest
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import AssessmentKind, Norm, Objective, Verdict
from windtunnel.core.distances import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, within
from windtunnel.core.scratch import by_samples, finite_samples
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, Severity, largest, our_check, total
from windtunnel.evaluation.sanity.evidence import GREY_LEVELS, Assessment, Evidence, numbers
from windtunnel.evaluation.sanity.model import is_random
from windtunnel.evaluation.sanity.probes import need_several_answers
from windtunnel.evaluation.summary.evidence import region_evidence

_PAIRS = 4  # of answers of a random model to the same inputs
_LEVEL = 1e-3  # of the test whether its randomness explains verdicts that differ


def perturbing(evidence: Evidence) -> list[Assessment]:
    """Every assessment with perturbed inputs."""
    perturbed = [p for p in evidence.assessments if p.has("perturbed_inputs") and p.has("perturbed_predictions")]
    if not perturbed:
        raise NotApplicable("no assessment has perturbed inputs")
    return perturbed


def claims(assessment: Assessment) -> Tensor:
    """Return the samples that the assessment reports as broken by a perturbation; (n,) bool."""
    if assessment.artifacts.kind == AssessmentKind.FORMAL_VERIFICATION:
        return (assessment.tensor("verdicts") == Verdict.FALSIFIED) & assessment.right
    return assessment.succeeded & assessment.right


@our_check("B1", "{count} examples beyond epsilon", threshold=RELATIVE_TOLERANCE)
def budget_respected(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A success outside the budget is a success at another budget.

    Distances are recomputed from the tensors; flags where a broken sample lies beyond
    epsilon x (1 + threshold) + 1e-6. The value is the largest distance in epsilons.
    """
    for assessment in perturbing(evidence):
        ball, claimed = assessment.region, claims(assessment)
        if ball is None or assessment.family == "sweeps" or not claimed.any():
            continue
        if assessment.artifacts.kind == AssessmentKind.STATISTICAL_SAMPLING:
            continue
        distances = assessment.distance(ball.norm)
        beyond = claimed & (distances > ball.epsilon * (1 + limit) + ABSOLUTE_TOLERANCE)
        largest_distance, n = float(distances[claimed].max()) / ball.epsilon, int(claimed.sum())
        names = [assessment.name]
        yield CheckResult(bool(beyond.any()), largest_distance, n, assessment.named(beyond), names)


@our_check("B2", "{count} examples are no images", value=None)
def examples_are_images(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A value outside [0, 1], NaN or infinity is no input that the deployed model can get.

    Every stored example; samples where a verifier has no counter-example are left out.
    """
    low, high = evidence.data.value_range
    for assessment in map(evidence.pictured, perturbing(evidence)):
        has_example, images = assessment.tensor("perturbed_predictions") >= 0, assessment.tensor("perturbed_inputs")
        if assessment.family == "sweeps" and assessment.options.get("clip") is False:
            good = finite_samples(images)
        else:  # NaN is inside of nothing
            good = by_samples(lambda x: ((x >= low - limit) & (x <= high + limit)).flatten(1).all(1), images)
        wrong = has_example & ~good
        n = int(has_example.sum())
        yield CheckResult(bool(wrong.any()), None, n, assessment.named(wrong), [assessment.name])


@our_check("B3")
def success_stands(evidence: Evidence, limit: float) -> CheckResult:
    """The success that a library reports may belong to another tensor than the one it returns.

    In this process, which is not the attack's: the model is asked about every stored example, and its verdict (broken
    inside the budget, or not) is compared with the stored one. Flags above the threshold, a share of the samples. Where an
    attack averaged over the draws of a random model (`eot`), its verdicts may differ as often as the model's own answers do.
    """
    bad, ids, n_samples, wrong_in_all = list[str](), list[str](), 0, 0
    for assessment in map(evidence.pictured, evidence.of("attacks", "queries")):
        inputs, targets = assessment.tensor("perturbed_inputs"), assessment.tensor("targets")
        reached = _reached(assessment, evidence.classifier.predict(inputs, targets))
        considered = assessment.tried & assessment.right
        differ = (reached != assessment.succeeded) & considered
        n, wrong = int(considered.sum()), int(differ.sum())
        n_samples, wrong_in_all = n_samples + n, wrong_in_all + wrong
        if wrong > limit * max(1, n) and not _is_noise(evidence, assessment, differ, considered):
            bad.append(assessment.name)
            ids += assessment.named(differ)
    share = wrong_in_all / n_samples if n_samples else 0.0
    reason = f"{len(ids)} verdicts are not reproduced in {', '.join(bad)}"
    return CheckResult(bool(bad), share, n_samples, ids, bad, reason)


def _reached(assessment: Assessment, predictions: Tensor) -> Tensor:
    """Return True where `predictions` (n,) of the stored examples make them adversarial examples inside the budget."""
    if assessment.semantics.objective is Objective.TARGETED:
        reached = predictions == assessment.tensor("target_classes")
    else:
        reached = predictions != assessment.tensor("targets")
    if assessment.region is not None:
        reached &= within(assessment.distance(assessment.region.norm), assessment.region.epsilon)
    return reached


def _is_noise(evidence: Evidence, assessment: Assessment, differ: Tensor, considered: Tensor) -> bool:
    """Return True where an attack averaged over a random model's draws, and these explain how many verdicts differ."""
    draws = [block.get(key) for block in (assessment.options, *assessment.calls) for key in ("eot", "eot_iter")]
    if not any(isinstance(count, int) and count > 1 for count in draws) or not is_random(evidence):
        return False
    inputs, targets, n = assessment.tensor("perturbed_inputs"), assessment.tensor("targets"), int(considered.sum())
    answers = [_reached(assessment, evidence.classifier.predict(inputs, targets)) for _ in range(2 * _PAIRS)]
    rates = [float((answers[i] != answers[i + 1])[considered].double().mean()) for i in range(0, 2 * _PAIRS, 2)]
    expected = min(1.0, sum(rates) / _PAIRS + 1 / n)
    return bool(binomtest(int(differ.sum()), n, expected, alternative="greater").pvalue > _LEVEL)


@our_check("B4")
def attack_did_something(evidence: Evidence, limit: float) -> CheckResult:
    """An attack that returns its input reports the clean accuracy as robustness.

    Flags an attack that left more than the threshold of its samples unbroken and unchanged: HARD where no other attack at the same
    budget changed them, or broke them before; else WARN, since that attack is weak and the worst case stands. Ensembles, AutoAttack's
    members and query attacks return the clean input where they failed; for them it is the samples about which the model was not
    asked once that count. An attack that finds its own distance and finds nothing is D10's business.
    """
    need_several_answers(evidence)
    idle: dict[str, tuple[Assessment, Tensor, float]] = {}
    active: dict[str, Tensor] = {}
    for assessment in evidence.attacks(lambda p: not p.minimum_norm):
        tried = assessment.tried & assessment.right
        if not tried.any():
            continue
        if assessment.shows_failures:
            unchanged = assessment.distance(Norm.L0) == 0
        elif assessment.has("queries"):
            unchanged = assessment.tensor("queries") < 2  # the clean input was asked about
        else:
            unchanged = assessment.tensor("forward_passes") < 1
        still = unchanged & ~assessment.succeeded & tried
        active[assessment.name] = evidence.everywhere(assessment, (tried & ~still) | assessment.succeeded)
        share = int(still.sum()) / int(tried.sum())
        idle[assessment.name] = (assessment, evidence.everywhere(assessment, still), share)
    if not idle:
        raise NotApplicable("no attack was tried on any sample")
    result = largest({name: share for name, (_, _, share) in idle.items()}, limit, "unchanged inputs from")
    uncovered = 0.0  # largest share of an attack's samples that it left unchanged, and that no other attack changed
    for name in result.assessments:
        assessment, still, _ = idle[name]
        for other, (attack, _, _) in idle.items():
            if other != name and attack.region == assessment.region:
                still = still & ~active[other]
        uncovered = max(uncovered, int(still.sum()) / int((assessment.tried & assessment.right).sum()))
    return replace(result, severity=None if uncovered > limit else Severity.WARN)


@our_check("B5")
def misclassified_apart(evidence: Evidence, limit: float) -> CheckResult:
    """Counting samples that were wrong to begin with as successes flatters the attack, and hides a bad model.

    The attack success rate of the metadata against the one recomputed from the verdicts of samples that were right.
    """
    apart = {}
    for assessment in evidence.attacks():
        stated = numbers(assessment.artifacts.metrics).get("attack_success_rate")
        if stated is not None:
            succeeded = assessment.succeeded[assessment.tried & assessment.right].double()
            apart[assessment.name] = abs(stated - (float(succeeded.mean()) if len(succeeded) else 0.0))
    if not apart:
        raise NotApplicable("no attack states a success rate")
    return largest(apart, limit, "other rate in")


@our_check("B6", "predictions change at epsilon 0 in {names}", none="no sweep has epsilon 0", value=total)
def epsilon_zero_control(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A sweep's first row is the control of the experiment: nothing was perturbed, so nothing may change."""
    for assessment in evidence.of("sweeps"):
        if float(assessment.tensor("epsilons")[0]) == 0:
            changed = assessment.tensor("sweep_predictions")[0] != assessment.tensor("clean_predictions")
            yield CheckResult(bool(changed.any()), int(changed.sum()), assessments=[assessment.name])


@our_check("B7")
def errors_not_robust(evidence: Evidence, limit: float) -> CheckResult:
    """A sample on which the tool failed is neither robust nor broken.

    WARN where any verdict is an error, HARD above the threshold; the reason says how far the rate would move.
    """
    shares = {
        p.name: float((p.tensor("verdicts") == Verdict.ERROR).double().mean())
        for p in evidence.assessments
        if len(p.indices)
    }
    bad = {name: share for name, share in shares.items() if share > 0}
    worst = max(shares.values(), default=0.0)
    reason = "; ".join(f"{name}: its rates could be {share:.1%} higher or lower" for name, share in bad.items())
    severity = Severity.HARD if worst > limit else Severity.WARN
    return CheckResult(bool(bad), worst, n=len(shares), assessments=list(bad), reason=reason, severity=severity)


@our_check("B8")
def robust_at_most_clean(evidence: Evidence, limit: float) -> CheckResult:
    """A sample that is wrong without perturbation cannot be robustly right."""
    gaps = {
        p.name: stated[key] - float(p.right.double().mean())
        for p in evidence.assessments
        for key in ("adversarial_accuracy", "certified_accuracy")
        if key in (stated := numbers(p.artifacts.metrics))
    }
    if not gaps:
        raise NotApplicable("no assessment states an adversarial or certified accuracy")
    return largest(gaps, limit, "above clean accuracy:")


@our_check("B9")
def worst_case_per_sample(evidence: Evidence, limit: float) -> CheckResult:
    """The smallest average over attacks overstates robustness: other attacks break other samples.

    The samples that any attack broke at its own budget, collected here from the verdicts, must all be broken in the
    summary's worst case at that budget.
    """
    all_artifacts = [p.artifacts for p in evidence.assessments]
    lost = torch.zeros(len(evidence.ids), dtype=torch.bool)
    for region in evidence.regions:
        mine = [p for p in evidence.attacks() if p.region == region]
        broken = evidence.union(mine, lambda p: p.succeeded & p.right)
        lost |= broken & ~region_evidence(region, evidence.clean, all_artifacts).broken
    if not evidence.regions:
        raise NotApplicable("no attack at any budget")
    reason, n = "broken samples missing from the worst case", len(evidence.regions)
    return CheckResult(bool(lost.any()), int(lost.sum()), n, evidence.named(lost), reason=reason)


@our_check("B10")
def survives_rounding(evidence: Evidence, limit: float) -> CheckResult:
    """An example that is undone by saving the image as a file is no threat to a system that reads files.

    Flags an attack whose success rate falls by more than the threshold after rounding to 1/255. Not applicable where
    the clean images have no 8 bits themselves, so that rounding alone would move them. Attacks that find their own distance
    stop where the class turns, so that any change undoes them and a little more budget makes up for it: they are not asked.
    """
    if not evidence.eight_bit:
        raise NotApplicable("the clean inputs are no 8-bit images")
    drops, n_samples = {}, 0
    attacks = evidence.attacks(
        lambda p: not p.minimum_norm and Norm.L0 is not (p.region.norm if p.region else None),
        "attack under Linf, L2 or L1 that uses its budget",
    )
    for assessment in map(evidence.pictured, attacks):
        wins = assessment.succeeded & assessment.tried & assessment.right
        if not wins.any():
            continue
        targets, images = assessment.tensor("targets")[wins], assessment.tensor("perturbed_inputs")
        rounded = scratch.samples_at(images, wins.nonzero().flatten()).mul_(GREY_LEVELS).round_().div_(GREY_LEVELS)
        still = evidence.classifier.predict(rounded, targets) != targets
        drops[assessment.name] = float((~still).sum()) / int((assessment.tried & assessment.right).sum())
        n_samples += len(still)
    if not drops:
        return CheckResult(flagged=False, value=0.0, n=0, note="no success to round")
    return largest(drops, limit, "rounding undoes", n=n_samples)
