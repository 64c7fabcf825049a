"""One entry of `verification` as its stage runs it, with the examples of attacks where it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.falsification.examples import read_examples

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.params.verification import VerificationEntry
    from windtunnel.records.artifacts import AssessmentResult


def run(task: Task[VerificationEntry]) -> AssessmentResult:
    """Run one verification."""
    results = read_examples(task.where, task.entry.examples_from, task.layout.robustness)
    return assess(task.name, task.entry, task.budget, task.subject, results)
