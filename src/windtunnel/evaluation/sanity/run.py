"""Run the registered checks on the evidence, one after another; none of them can stop the others."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from windtunnel.assessments.clean.table import IDENTITY
from windtunnel.core.contracts import PerturbationDistribution, Semantics
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.check import CHECKS, Check, CheckResult, Severity, Status, Tier
from windtunnel.evaluation.sanity.evidence import Evidence, NotApplicable, NotRun
from windtunnel.evaluation.sanity.model import BATCH, DRAWS
from windtunnel.params.results import Sanity
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, metadata_of
from windtunnel.records.findings import FindingRecord
from windtunnel.records.result import AssessmentResult
from windtunnel.registry.plugins import load_modules
from windtunnel.runtime.progress import progress_bar

PROFILES: dict[str, frozenset[Tier]] = {
    "stored": frozenset({Tier.STORED}),
    "standard": frozenset({Tier.STORED, Tier.PASSES}),
    "full": frozenset(Tier),
}
# Where the checks are: importing a module registers its checks.
MAX_SAMPLES = 50  # ids kept per finding; n says how many there are


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, stored in metadata.json under kwargs.checks."""

    check: Check
    status: Status
    severity: Severity
    value: float | None
    threshold: float | None
    n: int | None
    samples: tuple[str, ...]
    assessments: tuple[str, ...]
    reason: str
    each: Mapping[str, str] = field(default_factory=dict)

    @property
    def record(self) -> FindingRecord:
        """Return the record for metadata.json."""
        return FindingRecord(
            id=self.check.id,
            title=self.check.title,
            tier=self.check.tier,
            severity=self.severity,
            status=self.status,
            value=self.value if self.value is None or math.isfinite(self.value) else str(self.value),
            threshold=self.threshold,
            n=self.n,
            samples=self.samples,
            assessments=self.assessments,
            reason=self.reason,
            each=dict(self.each),
            remedy=self.check.remedy,
            source=self.check.source,
        )


def registry() -> dict[str, Check]:
    """Every check by id, in the order of the groups. Importing a module registers its checks."""
    from windtunnel.evaluation.sanity import (  # noqa: F401
        agreement,
        attack,
        average_case,
        certificates,
        comparisons,
        curves,
        gradients,
        local,
        masking,
        model,
        provenance,
        randomness,
        samples,
        statistics,
        strength,
        witness,
    )

    load_modules("windtunnel.checks")
    return dict(sorted(CHECKS.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


def run_checks(evidence: Evidence, settings: Sanity, only: Iterable[str] | None = None) -> list[Finding]:
    """Run the checks of the profile's tiers; checks of other tiers are `not_run`, with the way to run them."""
    chosen = [c for id_, c in registry().items() if only is None or id_ in set(only)]
    findings = []
    with progress_bar() as progress:
        task = progress.add_task("sanity", total=len(chosen))
        for row in chosen:
            progress.update(task, description=f"sanity {row.id}")
            findings.append(run_check(row, evidence, settings))
            progress.advance(task)
    return findings


# What can be asked before hours are spent: of the model and the samples alone.
BEFORE_ANY_ASSESSMENT = ("A1", "A2", "A3", "A4", "A5", "A10", "A12", "A13", "A14", "A25")


def queries_before_any_assessment(n: int) -> int:
    """Return the number of queries of `before_any_assessment` to a model without gradients for `n` samples; fewer to a random model."""
    batch = min(BATCH, n)
    clean, repeated, alone_and_together, traced, noisy = n, DRAWS * batch, 2 * batch, min(2, n), 2 * n
    return clean + repeated + alone_and_together + traced + noisy


def affordable(dataset: Dataset, queries: int | None) -> Dataset:
    """Return the first samples, as many as `before_any_assessment` can evaluate within `queries`; all if None."""
    n = len(dataset)
    while n and queries is not None and queries_before_any_assessment(n) > queries:
        n -= 1
    return dataset.subset(torch.arange(n))


def before_any_assessment(params: Params, subject: Subject) -> list[Finding]:
    """Return the checks of group A that need no assessment, for `windtunnel check`; an untrained model is included."""
    if (bad := subject.clean_logits.isnan().any(1)).any():  # what a predict function, too, was asked
        first = subject.dataset.ids[int(bad.nonzero()[0])]
        raise IncompatibleError(
            f"model: {subject.classifier.source} gives NaN for sample {first}; a model without finite outputs "
            f"cannot be assessed"
        )
    check_ids = [*BEFORE_ANY_ASSESSMENT, *(["A8"] if params.model.source != "train" else [])]
    no_result = AssessmentResult("clean", Semantics(IDENTITY, PerturbationDistribution("identity", 0)), {}, {})
    empty = Artifacts("clean", Path(), {}, metadata_of(no_result, subject))
    return run_checks(Evidence(subject, empty, params, ()), params.sanity, check_ids)


def run_check(row: Check, evidence: Evidence, settings: Sanity) -> Finding:
    """One check. A check that itself breaks is `not_run` with the error, and never a pass."""
    threshold = settings.thresholds.get(row.id, row.threshold)

    def outcome_of(status: Status, reason: str) -> Finding:
        return Finding(row, status, row.severity, None, threshold, None, (), (), reason)

    if row.tier not in PROFILES[settings.profile]:
        profile = "full" if row.tier is Tier.ATTACKS else "standard"
        return outcome_of(Status.NOT_RUN, f"a {row.tier} check; sanity.profile: {profile} runs it")
    evidence.partial.clear()
    try:
        outcome = row.look(evidence, 0.0 if threshold is None else threshold)
    except NotApplicable as why:
        return outcome_of(Status.NOT_APPLICABLE, str(why))
    except NotRun as why:
        return outcome_of(Status.NOT_RUN, str(why))
    except UserError as why:  # a model that may not be asked more
        return outcome_of(Status.NOT_RUN, str(why))
    except Exception as error:  # whatever a user's model or a damaged tensor raises: said, and never a pass
        return outcome_of(
            Status.NOT_RUN, f"the check failed to run ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        )
    severity = (outcome.severity if outcome.flagged else None) or row.severity
    partial_note = "; ".join(f"{name}: {note}, and looked at" for name, note in evidence.partial.items())
    note = "; ".join(filter(None, (outcome.reason if outcome.flagged else "", outcome.note, partial_note)))
    return Finding(
        check=row,
        status=_status(outcome, severity),
        severity=severity,
        value=outcome.value,
        threshold=threshold,
        n=outcome.n,
        samples=tuple(outcome.samples)[:MAX_SAMPLES] if outcome.flagged else (),
        assessments=tuple(dict.fromkeys(outcome.assessments)) if outcome.flagged else (),
        reason=note,
        each=outcome.each if outcome.flagged else {},
    )


def _status(outcome: CheckResult, severity: Severity) -> Status:
    if not outcome.flagged:
        return Status.PASS
    return Status.FAIL if severity is Severity.HARD else Status.WARN
