"""The findings of the sanity checks as an assessment directory like every other."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from windtunnel.assessments.clean.table import IDENTITY
from windtunnel.core.contracts import Json, PerturbationDistribution, Semantics, Verdict
from windtunnel.core.statistics import binomial_rate
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.run import run_checks
from windtunnel.evaluation.sanity.witness import stored_examples
from windtunnel.params.results import Sanity
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.findings import FindingRecord, counts, overall
from windtunnel.records.result import AssessmentResult, Tensors

NECESSARY = (
    "Passing these checks is necessary, not sufficient: they find evaluations that went wrong in known ways, and prove "
    "nothing about the others."
)


def assess(evidence: Evidence, settings: Sanity) -> AssessmentResult:
    """Run the checks of the profile.

    Extra key of robustness_data.pt: `flagged` bool (C, N), which samples each of the C checks of kwargs.checks named.
    """
    return result_of(evidence, settings, run_checks(evidence, settings))


def result_of(evidence: Evidence, settings: Sanity, findings: Sequence[FindingRecord]) -> AssessmentResult:
    """Return findings as an assessment result."""
    subject = evidence.subject
    row_of = {name: i for i, name in enumerate(subject.dataset.ids)}
    flagged = torch.zeros(len(findings), len(row_of), dtype=torch.bool)
    for row, finding in enumerate(findings):
        flagged[row, [row_of[name] for name in finding.samples if name in row_of]] = True
    right, wrong = subject.clean_correct, int(Verdict.MISCLASSIFIED_UNDER_PERTURBATION)
    verdicts = torch.where(right, int(Verdict.CORRECT_UNDER_PERTURBATION), wrong)
    data: Tensors = {**base_data(subject, verdicts), "flagged": flagged, **stored_examples(evidence)}
    status_counts = counts(findings)
    metrics: dict[str, Json] = {
        **binomial_rate(int(right.sum()), len(right)).metrics("clean_accuracy"),
        "status": overall(status_counts),
        **{f"checks_{key}": value for key, value in status_counts.items()},
    }
    checks = [finding.model_dump(mode="json") for finding in findings]
    return AssessmentResult(
        name="sanity",
        semantics=Semantics(SANITY, PerturbationDistribution("identity", 0)),
        data=data,
        metrics=metrics,
        kwargs={**base_kwargs(subject), "profile": settings.profile, "checks": checks, "meaning": NECESSARY},
    )


_SUMMARY = "checks that the numbers of the other assessments are valid"
SANITY = replace(IDENTITY, name="sanity", categories=frozenset({"sanity"}), requires=frozenset(), summary=_SUMMARY)
