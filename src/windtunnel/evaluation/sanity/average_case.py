"""Group E, corruptions and latent metrics: is the average case consistent?"""

import math

import numpy as np

from windtunnel.assessments.corruptions.reference import alexnet
from windtunnel.evaluation.sanity.check import CheckResult, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable, NotRun, numbers
from windtunnel.evaluation.sanity.rates import significantly_more
from windtunnel.records.metadata import corruption_pairs
from windtunnel.records.tables import table

COMMON_SUITE = "common"  # the 15 corruptions of Hendrycks and Dietterich
SAME = 1e-6  # relative: the published errors have five digits, and the corruption errors are kept to the last


def _suites(evidence: Evidence) -> list[tuple[Assessment, tuple[tuple[str, int], ...]]]:
    suites = []
    for assessment in evidence.of("corruptions"):
        pairs = corruption_pairs(assessment.metadata.kwargs)
        if pairs and assessment.has("corruption_predictions"):
            suites.append((assessment, pairs))
    if not suites:
        raise NotRun("no corruption suite kept its predictions")
    return suites


@our_check("E10")
def severity_ordered(evidence: Evidence, limit: float) -> CheckResult:
    """Severity 0 is 8-bit rounding alone; every step up makes the image worse.

    HARD where rounding alone changes accuracy significantly (exact McNemar, 5 %); WARN where the accuracy of a
    corruption rises significantly with severity (over all its steps of all corruptions), and where a suite called `common` has
    one severity: that suite is a mean over severities 1 to 5, and its mild end alone says little of its worst.
    """
    rising, rounded, single = [], [], []
    for assessment, pairs in _suites(evidence):
        if len({severity for _, severity in pairs}) == 1 and COMMON_SUITE in (
            assessment.name,
            assessment.metadata.algorithm,
        ):
            single.append(assessment.name)
        steps = len(pairs) - len({corruption for corruption, _ in pairs})
        right = assessment.tensor("corruption_predictions") == assessment.tensor("targets")
        if assessment.has("quantised_predictions"):
            is_correct = assessment.tensor("quantised_predictions") == assessment.tensor("targets")
            if significantly_more(
                int((assessment.right & ~is_correct).sum()), int((is_correct & ~assessment.right).sum())
            ):
                rounded.append(assessment.name)
        for name in dict.fromkeys(corruption for corruption, _ in pairs):
            places = sorted((severity, i) for i, (corruption, severity) in enumerate(pairs) if corruption == name)
            for (_, low), (_, high) in zip(places, places[1:], strict=False):
                better, worse = (int((right[a] & ~right[b]).sum()) for a, b in ((high, low), (low, high)))
                if significantly_more(better, worse, steps):
                    rising.append(f"{assessment.name} {name}")
    if rounded:
        reason = f"8-bit rounding alone changes accuracy in {', '.join(rounded)}"
        return CheckResult(flagged=True, value=len(rounded), assessments=rounded, reason=reason, severity=Severity.HARD)
    names = sorted({*(r.split()[0] for r in rising), *single})
    reasons = [f"accuracy rises with severity: {', '.join(rising)}"] if rising else []
    if single:
        reasons.append(f"the suite {COMMON_SUITE} at one severity instead of five: {', '.join(single)}")
    return CheckResult(bool(names), len(rising), assessments=names, reason="; ".join(reasons))


@our_check("E11")
def corruptions_repeat(evidence: Evidence, limit: float) -> CheckResult:
    """Two models must see the same corrupted pixels.

    Every corruption of the suite at its lowest severity, twice on 8 samples under the run's seed, byte by byte, and
    against what the suite kept.
    """
    from windtunnel.evaluation.sanity.corruptions_recomputed import differing

    bad, names, tried = [], [], 0
    for assessment, pairs in _suites(evidence):
        wrong = differing(evidence, assessment, pairs)
        tried += len({corruption for corruption, _ in pairs})
        if wrong:
            bad.append(assessment.name)
            names += wrong
    return CheckResult(
        bool(bad), len(names), n=tried, assessments=bad, reason=f"other pixels on a second run: {', '.join(names)}"
    )


@our_check("E12")
def reference_fits(evidence: Evidence, limit: float) -> CheckResult:
    """MCE divides by a reference model's errors; those of another data set or resolution make a number without meaning.

    AlexNet's published errors are only for ImageNet: 1,000 classes, at least 224 pixels. They are known by themselves, whatever
    the reference calls itself: the suite's own errors over each corruption error are what it was divided by.
    """
    suites = [
        (assessment, pairs)
        for assessment, pairs in _suites(evidence)
        if "mce" in assessment.artifacts.metrics or "relative_mce" in assessment.artifacts.metrics
    ]
    if not suites:
        raise NotApplicable("no mCE against a reference")
    shape, k = evidence.subject.dataset.inputs.shape, evidence.subject.dataset.num_classes
    imagenet = k == 1000 and min(shape[2:]) >= 224
    bad = [assessment.name for assessment, pairs in suites if not imagenet and _divided_by_alexnet(assessment, pairs)]
    return listing(
        bad, f"ImageNet's AlexNet for {k} classes of {shape[2]}x{shape[3]} in", value=len(bad), n=len(suites)
    )


def _divided_by_alexnet(assessment: Assessment, pairs: tuple[tuple[str, int], ...]) -> bool:
    """Return True if every corruption error of a suite, plain or relative, is its own errors over those of AlexNet.

    Where the model makes no error of its own any reference gives 0, so that nothing can be told.
    """
    published = alexnet(pairs).wrong[:, 0]
    wrong = assessment.tensor("corruption_predictions") != assessment.tensor("targets")
    ours = np.array([*wrong.double().mean(1).tolist(), 1 - float(assessment.right.double().mean())])
    names = []
    for key, less in (("corruption_errors", 0.0), ("relative_corruption_errors", 1.0)):
        for name, ratio in table(dict[str, float], assessment.artifacts.metrics, key).items():
            chosen = [i for i, (corruption, _) in enumerate(pairs) if corruption == name]
            divided, divisor = (float((rates[chosen] - less * rates[-1]).sum()) for rates in (ours, published))
            if abs(divided) > SAME and math.isfinite(divisor):
                names.append(math.isclose(ratio * divisor, divided, rel_tol=SAME))
    return bool(names) and all(names)


@our_check("E13")
def latent_meaningful(evidence: Evidence, limit: float) -> CheckResult:
    """Latent metrics are about decoded images; they speak of the data only if the classifier recognises those.

    Clean accuracy less the accuracy on reconstructions (lra), or on generated images (lga) where there is no other.
    """
    gaps = {}
    for assessment in evidence.of("latent"):
        stated = numbers(assessment.artifacts.metrics)
        decoded = stated.get("lra", stated.get("lga"))
        if decoded is not None:
            gaps[assessment.name] = stated.get("clean_accuracy", float(assessment.right.double().mean())) - decoded
    if not gaps:
        raise NotRun("no latent assessment states lra or lga")
    bad = [name for name, gap in gaps.items() if gap > limit]
    reason = f"decoded images are classified worse by {max(gaps.values()):.1%}"
    return CheckResult(bool(bad), max(gaps.values()), n=len(gaps), assessments=bad, reason=reason)
