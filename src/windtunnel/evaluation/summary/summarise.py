"""The summary: the robustness sandwich at each budget, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from windtunnel.core.artifacts import Artifacts, AssessmentResult, Tensors, base_data, base_kwargs
from windtunnel.core.binomial import binomial_rate
from windtunnel.core.contracts import AssessmentKind, Caveat, Json, PerturbationBudget, Semantics, Verdict
from windtunnel.core.findings import FindingRecord, Severity, Status
from windtunnel.core.storage import DISTANCES
from windtunnel.core.subject import Subject
from windtunnel.evaluation.summary.classes import class_metrics
from windtunnel.evaluation.summary.evidence import (
    NOBODY,
    Region,
    RegionEvidence,
    nearest_distances,
    nearest_examples,
    of_a_smoothed_model,
    region_evidence,
    region_of,
)
from windtunnel.evaluation.summary.reproducibility import reproducibility, reproducibility_caveat
from windtunnel.evaluation.summary.table import SUMMARY


def summarise(
    subject: Subject,
    budget: PerturbationBudget,
    clean: Artifacts,
    assessments: Sequence[Artifacts],
    findings: Sequence[FindingRecord] = (),
) -> AssessmentResult:
    """The worst empirical verdict and the certified verdict of each sample, at `budget` and at every other one used.

    `findings`: of the stage `sanity`. The extra keys of robustness_data.pt: `certified_verdicts`,
    `worst_by`, `certified_by` (indices into kwargs.assessments, -1 for none) at the global budget, and
    `sandwich_broken`, `sandwich_certified` (B, N) for the B regions of metrics.sandwich.
    """
    assert budget.epsilon is not None  # the global budget always has one
    headline = Region(budget.norm, budget.epsilon)
    regions = [headline, *sorted(_regions(assessments) - {headline}, key=lambda r: (r.norm, r.epsilon))]
    by_region = [region_evidence(region, clean, assessments) for region in regions]
    first = by_region[0]
    names = [a.name for a in assessments]
    facts = reproducibility(assessments, subject.seed, str(subject.classifier.device), findings)
    failures = [*_contradictions(by_region, clean, names), *_sanity_failures(findings)]
    inputs, predictions, pictured = nearest_examples(first, subject, assessments)
    data: Tensors = {
        **base_data(subject, torch.where(first.broken, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))),
        "perturbed_inputs": inputs,
        "perturbed_predictions": predictions,
        "perturbation_distance": torch.where(first.broken, first.distances, 0.0).float(),
        "worst_by": first.broken_by,
        "certified_verdicts": torch.where(first.certified, int(Verdict.VERIFIED), int(Verdict.UNKNOWN)),
        "certified_by": first.certified_by,
        "sandwich_broken": torch.stack([o.broken for o in by_region]),
        "sandwich_certified": torch.stack([o.certified for o in by_region]),
    }
    if not pictured.all():
        data[DISTANCES] = nearest_distances(first, subject, assessments)
    correct, n = int(subject.clean_correct.sum()), len(subject.dataset)
    sandwich: list[Json] = [_layer(o, names) for o in by_region]
    metrics: dict[str, Json] = {
        **binomial_rate(correct, n).metrics("clean_accuracy"),
        **_layer_rates(first),
        **_class_rates(first, subject),
        "n_samples": n,
        "hard_failures": len(failures),
        "sandwich": sandwich,
    }
    return AssessmentResult(
        name="summary",
        semantics=Semantics(SUMMARY, budget),
        data=data,
        metrics=metrics,
        caveats=(*_caveats(first, failures, assessments), reproducibility_caveat(facts)),
        kwargs={**base_kwargs(subject), "assessments": names, "hard_failures": failures, "reproducibility": facts},
        pictured=None if pictured.all() else pictured,
    )


def _regions(assessments: Sequence[Artifacts]) -> set[Region]:
    return {
        region
        for a in assessments
        if a.kind != AssessmentKind.STATISTICAL_SAMPLING and not of_a_smoothed_model(a) and (region := region_of(a))
    }


def _layer_rates(result: RegionEvidence) -> dict[str, Json]:
    n = len(result.broken)
    # Clopper-Pearson for certificates: a claim of safety wants an interval that is never too narrow.
    certified = binomial_rate(int(result.certified.sum()), n, method="clopper_pearson")
    worst = binomial_rate(int((~result.broken).sum()), n)
    rates: dict[str, Json] = {}
    if result.attacked.any() or result.broken.any():
        rates.update(worst.metrics("worst_case_accuracy"))
    if result.examined.any():
        rates.update(certified.metrics("certified_accuracy"))
    return rates


def _class_rates(result: RegionEvidence, subject: Subject) -> dict[str, Json]:
    """What `_layer_rates` says of all samples, class by class and by the same interval."""
    targets, names = subject.dataset.targets, subject.dataset.class_names
    rates: dict[str, Json] = {}
    if result.attacked.any() or result.broken.any():
        rates |= class_metrics("worst_case", ~result.broken, targets, names)
    if result.examined.any():
        rates |= class_metrics("certified", result.certified, targets, names, "clopper_pearson")
    return rates


def _layer(result: RegionEvidence, names: Sequence[str]) -> dict[str, Json]:
    """One row of `sandwich`: the two ends at one budget and who set them."""

    def who(indices: torch.Tensor) -> list[Json]:
        return [names[i] for i in indices.unique().tolist() if i != NOBODY]

    return {
        "norm": result.region.norm.value,
        "epsilon": result.region.epsilon,
        "n": len(result.broken),
        "n_attacked": int(result.attacked.sum()),
        "n_examined": int(result.examined.sum()),
        **_layer_rates(result),
        "attacked_by": who(result.broken_by),
        "certified_by": who(result.certified_by),
    }


def _contradictions(by_region: Sequence[RegionEvidence], clean: Artifacts, names: Sequence[str]) -> list[str]:
    """A line for each sample that is certified and broken in one region: an unsound verifier or another property."""
    lines = []
    for result in by_region:
        for i in (result.certified & result.broken).nonzero().flatten().tolist():
            breaker = int(result.broken_by[i])
            by = names[breaker] if breaker != NOBODY else "its clean prediction"
            lines.append(
                f"sample {clean.sample_names[i]} is verified by {names[int(result.certified_by[i])]} and broken by {by} "
                f"at {result.region.norm.value} {result.region.epsilon:.6g}"
            )
    return lines


def _sanity_failures(findings: Sequence[FindingRecord]) -> list[str]:
    return [
        f"sanity check {row.id} failed: {row.title} ({row.reason or row.value})"
        for row in findings
        if row.status is Status.FAIL and row.severity is Severity.HARD
    ]


def _caveats(first: RegionEvidence, failures: Sequence[str], assessments: Sequence[Artifacts]) -> list[Caveat]:
    n, found = len(first.broken), []
    if failures:
        found.append(Caveat("hard_failure", "These numbers must not be believed: " + "; ".join(failures[:3])))
    if not first.attacked.all():
        found.append(
            Caveat(
                "partly_attacked",
                f"{int((~first.attacked).sum())} of {n} samples were not attacked at the global budget and count as not "
                f"broken there unless an example of another budget fits.",
            )
        )
    if first.examined.any() and not first.examined.all():
        found.append(
            Caveat(
                "partly_verified",
                f"{int((~first.examined).sum())} of {n} samples were not sent to a verifier and count as not certified.",
            )
        )
    if not any(a.kind == AssessmentKind.FORMAL_VERIFICATION and not of_a_smoothed_model(a) for a in assessments):
        found.append(Caveat("nothing_verified", "No formal verification ran: nothing here is verified."))
    return found
