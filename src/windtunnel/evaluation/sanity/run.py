"""Run the registered checks on the evidence, one after another; none of them can stop the others."""

import math
from collections.abc import Iterable
from pathlib import Path

from windtunnel.assessments.clean.table import IDENTITY
from windtunnel.core.contracts import PerturbationDistribution, Semantics
from windtunnel.core.dataset import Dataset, select
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.check import CHECKS, Check, CheckResult, NotApplicable, NotRun, Severity, Status, Tier
from windtunnel.evaluation.sanity.evidence import Evidence
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
NOTHING = CheckResult(flagged=False)  # of a check that did not run
MAX_SAMPLES = 50  # ids kept per finding; n says how many there are


def registry() -> dict[str, Check]:
    """Every check by id, in the order of the groups. Importing a module registers its checks."""
    from windtunnel.evaluation.sanity import (  # noqa: F401
        agreement,
        attack,
        average_case,
        comparisons,
        gradients,
        model,
        provenance,
        samples,
        statistics,
        strength,
        witness,
    )

    load_modules("windtunnel.checks")
    return dict(sorted(CHECKS.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


def run_checks(evidence: Evidence, settings: Sanity, only: Iterable[str] | None = None) -> list[FindingRecord]:
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
    """Return as many samples as `before_any_assessment` can evaluate within `queries`, of as many classes; all if None."""
    n = len(dataset)
    while n and queries is not None and queries_before_any_assessment(n) > queries:
        n -= 1
    return dataset.subset(select(len(dataset), n, "stratified", 0, dataset.targets))


def before_any_assessment(params: Params, subject: Subject, *, is_part: bool = False) -> list[FindingRecord]:
    """Return the checks of group A that need no assessment, for `windtunnel check`; an untrained model is included.

    A part of the samples (`is_part`) does not tell which classes are assessed, so A25 is left out.
    """
    if (bad := subject.clean_logits.isnan().any(1)).any():  # what a predict function, too, was asked
        first = subject.dataset.ids[int(bad.nonzero()[0])]
        raise IncompatibleError(
            f"model: {subject.classifier.source} gives NaN for sample {first}; a model without finite outputs "
            f"cannot be assessed"
        )
    is_trained, is_expected = params.model.source != "train", params.sanity.expected_clean_accuracy is not None
    check_ids = {*BEFORE_ANY_ASSESSMENT, *(["A8"] if is_trained and is_expected else [])} - (
        {"A25"} if is_part else set()
    )
    no_result = AssessmentResult("clean", Semantics(IDENTITY, PerturbationDistribution("identity", 0)), {}, {})
    empty = Artifacts("clean", Path(), {}, metadata_of(no_result, subject))
    return run_checks(Evidence(subject, empty, params, ()), params.sanity, check_ids)


def run_check(row: Check, evidence: Evidence, settings: Sanity) -> FindingRecord:
    """One check. A check that itself breaks is a warning with the error, never a pass: a model that raises must not switch it off."""
    threshold = settings.thresholds.get(row.id, row.threshold)

    def finding(status: Status, reason: str, result: CheckResult = NOTHING) -> FindingRecord:
        value = result.value
        return FindingRecord(
            id=row.id,
            title=row.title,
            tier=row.tier,
            severity=(result.severity if result.flagged else None) or row.severity,
            status=status,
            value=value if value is None or math.isfinite(value) else str(value),
            threshold=threshold,
            n=result.n,
            samples=tuple(result.samples)[:MAX_SAMPLES] if result.flagged else (),
            assessments=tuple(dict.fromkeys(result.assessments)) if result.flagged else (),
            reason=reason,
            each=dict(result.each) if result.flagged else {},
            remedy=row.remedy,
            source=row.source,
        )

    if row.tier not in PROFILES[settings.profile]:
        profile = "full" if row.tier is Tier.ATTACKS else "standard"
        return finding(Status.NOT_RUN, f"a {row.tier} check; sanity.profile: {profile} runs it")
    evidence.partial.clear()
    try:
        outcome = row.look(evidence, 0.0 if threshold is None else threshold)
    except NotApplicable as why:
        return finding(Status.NOT_APPLICABLE, str(why))
    except (NotRun, UserError) as why:  # the latter of a model that may not be asked more
        return finding(Status.NOT_RUN, str(why))
    except Exception as error:  # whatever a user's model or a damaged tensor raises
        text = " ".join(str(error).split())[:200]
        severity = Severity.INFO if row.severity is Severity.INFO else Severity.WARN
        broken = CheckResult(flagged=True, severity=severity)
        return finding(Status.WARN, f"the check failed to run ({type(error).__name__}: {text})", broken)
    partial_note = "; ".join(f"{name}: {note}, and looked at" for name, note in evidence.partial.items())
    reason = "; ".join(filter(None, (outcome.reason if outcome.flagged else "", outcome.note, partial_note)))
    if not outcome.flagged:
        return finding(Status.PASS, reason, outcome)
    is_hard = (outcome.severity or row.severity) is Severity.HARD
    return finding(Status.FAIL if is_hard else Status.WARN, reason, outcome)
