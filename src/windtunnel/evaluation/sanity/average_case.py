"""Group E, corruptions and latent metrics: is the average case consistent?"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from torch import Tensor

from windtunnel.assessments.corruptions.reference import alexnet
from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, numbers
from windtunnel.evaluation.sanity.rates import discordant, significantly_more
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.metadata import corruption_pairs
from windtunnel.records.result import AssessmentResult, tensor_in
from windtunnel.records.tables import table

COMMON_SUITE = "common"  # the 15 corruptions of Hendrycks and Dietterich
REPEATED = 8  # samples of a suite that are corrupted again
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
    rising, rounded, single = [], list[str](), []
    for assessment, pairs in _suites(evidence):
        names = (assessment.name, assessment.metadata.algorithm)
        if len({severity for _, severity in pairs}) == 1 and COMMON_SUITE in names:
            single.append(assessment.name)
        steps = len(pairs) - len({corruption for corruption, _ in pairs})
        right = assessment.tensor("corruption_predictions") == assessment.tensor("targets")
        if assessment.has("quantised_predictions"):
            quantised_right = assessment.tensor("quantised_predictions") == assessment.tensor("targets")
            if _significantly_fewer(quantised_right, assessment.right):
                rounded.append(assessment.name)
        for name in dict.fromkeys(corruption for corruption, _ in pairs):
            places = sorted((severity, i) for i, (corruption, severity) in enumerate(pairs) if corruption == name)
            rises = (_significantly_fewer(right[a], right[b], steps) for (_, a), (_, b) in pairwise(places))
            rising += [f"{assessment.name} {name}" for rise in rises if rise]
    if rounded:
        sentence, value = "8-bit rounding alone changes accuracy in", len(rounded)
        return replace(listing(rounded, sentence, value=value, n=value, severity=Severity.HARD), n=None)
    names_at_fault = sorted({*(r.split()[0] for r in rising), *single})
    reasons = [f"accuracy rises with severity: {', '.join(rising)}"] if rising else []
    if single:
        reasons.append(f"the suite {COMMON_SUITE} at one severity instead of five: {', '.join(single)}")
    return CheckResult(bool(names_at_fault), len(rising), assessments=names_at_fault, reason="; ".join(reasons))


def _significantly_fewer(first: Tensor, other: Tensor, among: int = 1) -> bool:
    """Return True if significantly fewer samples are right in `first` than in `other`, both bool (n,)."""
    return significantly_more(*discordant(other, first), among)


@our_check("E11")
def corruptions_repeat(evidence: Evidence, limit: float) -> CheckResult:
    """Two models must see the same corrupted pixels.

    Every corruption of the suite at its lowest severity, twice on 8 samples under the run's seed, byte by byte, and
    against what the suite kept.
    """
    bad, names, tried = [], [], 0
    for assessment, pairs in _suites(evidence):
        wrong = _differing(evidence, assessment, pairs)
        tried += len({corruption for corruption, _ in pairs})
        bad += [assessment.name] if wrong else []
        names += wrong
    reason = f"other pixels on a second run: {', '.join(names)}"
    return CheckResult(bool(bad), len(names), tried, assessments=bad, reason=reason)


def _differing(evidence: Evidence, assessment: Assessment, pairs: Sequence[tuple[str, int]]) -> list[str]:
    """Return the corruptions of a suite that give other pixels when run twice, or than the suite kept.

    On its first samples; of those whose images are kept, where not all are.
    """
    from windtunnel.assessments.corruptions.assess import assess_suite

    lowest = min(severity for _, severity in pairs)
    entry = evidence.params.corruptions[assessment.name].model_copy(update={"severities": [lowest]})
    subject = evidence.subject.subset(evidence.pictured(assessment).indices[:REPEATED])

    def once() -> dict[str, str]:
        # Digests, not the images: the suite overwrites those by the next corruption.
        digests: dict[str, str] = {}

        def keep(result: AssessmentResult) -> None:
            digests[result.name] = _digest(tensor_in(result.data, "perturbed_inputs"))

        assess_suite(f"{assessment.name}.again", entry, subject, keep)
        return digests

    first, second = once(), once()
    return [name for name, pixels in first.items() if {second[name], _stored(assessment, name) or pixels} != {pixels}]


def _digest(images: Tensor) -> str:
    return hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()


def _stored(assessment: Assessment, name: str) -> str | None:
    try:
        return _digest(read_artifacts(assessment.artifacts.directory / name).tensor("perturbed_inputs")[:REPEATED])
    except UserError:
        return None


@our_check("E12")
def reference_fits(evidence: Evidence, limit: float) -> CheckResult:
    """MCE divides by a reference model's errors; those of another data set or resolution make a number without meaning.

    AlexNet's published errors are only for ImageNet: 1,000 classes, at least 224 pixels. They are known by themselves, whatever
    the reference calls itself: the suite's own errors over each corruption error are what it was divided by.
    """
    suites = [
        (assessment, pairs)
        for assessment, pairs in _suites(evidence)
        if {"mce", "relative_mce"} & assessment.artifacts.metrics.keys()
    ]
    if not suites:
        raise NotApplicable("no mCE against a reference")
    shape, k = evidence.data.inputs.shape, evidence.data.num_classes
    imagenet = k == 1000 and min(shape[2:]) >= 224
    bad = [assessment.name for assessment, pairs in suites if not imagenet and _divided_by_alexnet(assessment, pairs)]
    sentence = f"ImageNet's AlexNet for {k} classes of {shape[2]}x{shape[3]} in"
    return listing(bad, sentence, value=len(bad), n=len(suites))


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


@our_check("E13", "decoded images are classified worse by {value:.1%}")
def latent_meaningful(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """Latent metrics are about decoded images; they speak of the data only if the classifier recognises those.

    Clean accuracy less the accuracy on reconstructions (lra), or on generated images (lga) where there is no other.
    """
    metrics_of = [(p, numbers(p.artifacts.metrics)) for p in evidence.of("latent")]
    stated = [(p, metrics) for p, metrics in metrics_of if metrics.keys() & {"lra", "lga"}]
    if not stated:
        raise NotRun("no latent assessment states lra or lga")
    for assessment, metrics in stated:
        clean = metrics.get("clean_accuracy", float(assessment.right.double().mean()))
        gap = clean - (metrics["lra"] if "lra" in metrics else metrics["lga"])
        yield CheckResult(gap > limit, gap, assessments=[assessment.name])
