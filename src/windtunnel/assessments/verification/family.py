from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry
from windtunnel.registry.family import Dependencies, Family, PlannedRun

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.contracts import Algorithm, AssessmentKind
    from windtunnel.records.result import AssessmentResult
    from windtunnel.registry.reported import Reported


class Verification(Family[VerificationEntry]):
    """Certificates for every input of a region."""

    name = "verification"
    stage = "verify"
    order = 40
    entry_type = VerificationEntry
    figures = "windtunnel.assessments.verification.figures"
    visualisers = ("VerdictSummaryVisualiser", "OutputBoundsPinnedVisualiser", "OutputBoundsMarginHeatmapVisualiser")
    headline = (
        "certified_accuracy",
        "two_phase_accuracy",
        "verified_rate",
        "falsified_rate",
        "unknown_rate",
        "error_rate",
        "average_certified_radius",
        "average_certified_radius_at_least",
    )
    built_on = True

    def algorithms(self) -> Sequence[Algorithm]:
        from windtunnel.assessments.verification.table import ALGORITHMS

        return ALGORITHMS

    def preflight(self, plan: PlannedRun[VerificationEntry]) -> Iterable[str]:
        from windtunnel.assessments.verification.preflight import preflight

        return preflight(*plan)

    def run(self, task: Task[VerificationEntry]) -> AssessmentResult:
        from windtunnel.assessments.verification.assess import run

        return run(task)

    def dependencies(self, entry: VerificationEntry, budget: Budget) -> Dependencies:
        from windtunnel.assessments.verification.cascade.step import library_of_step
        from windtunnel.assessments.verification.table import ROWS

        row = ROWS[entry.library, entry.algorithm]
        steps = {step: library_of_step(step) for step in row.steps_for(entry)}
        options = {name for library in steps.values() for name in (library.name, *library.uses)}
        code = (
            *(library.steps[step].module for step, library in steps.items()),
            *([row.assess.module] if row.assess else []),
        )
        return Dependencies(frozenset(options - {"windtunnel"}), code=code)

    def unknown_words(self, where: str, entry: VerificationEntry) -> Iterable[str]:
        from windtunnel.assessments.verification.cascade.step import unknown_steps

        return unknown_steps(where, entry)

    def report_section(self, kind: AssessmentKind) -> Reported:
        from windtunnel.registry.reported import OF_KIND, TWO_PHASE, Column, Reported

        of_kind = OF_KIND[kind]
        meanings = {
            "mean_runtime": "seconds per sample on the machine that computed this result; not among DVC's outputs",
            "average_certified_radius": "mean over the samples of the largest epsilon verified, 0 where misclassified",
            "average_certified_radius_at_least": "lower bound of the average certified radius, from a search that timed out",
        }
        return Reported(
            of_kind.question,
            (
                *of_kind.columns,
                Column("of all, in two phases", "two_phase_accuracy", "rate", TWO_PHASE),
                Column("abstained", "abstain_rate", "share"),
                Column("mean radius", "average_certified_radius", "plain"),
                Column("mean radius, at least", "average_certified_radius_at_least", "plain"),
                Column("out of time", "timeouts", "plain"),
                Column("seconds a sample", "mean_runtime", "plain"),
            ),
            meanings=meanings,
        )


FAMILY = Verification()
