"""Stage `verify@<name>`: one entry of `verification`, with the examples of attacks where it says so."""

from __future__ import annotations

from windtunnel.assessments.run import Task, run_entry, stage_main
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.examples import read_examples
from windtunnel.assessments.verification.preflight import preflight
from windtunnel.core.artifacts import AssessmentResult
from windtunnel.core.layout import ROBUSTNESS
from windtunnel.params.verification import VerificationEntry


def verify(task: Task[VerificationEntry]) -> AssessmentResult:
    """Run one verification."""
    results = read_examples(task.where, task.entry.examples_from, ROBUSTNESS)
    return assess(task.name, task.entry, task.budget, task.subject, results)


def main(name: str) -> None:
    """Write reports/robustness/<name>."""
    run_entry("verification", "verify", name, VerificationEntry, preflight, verify)


if __name__ == "__main__":
    stage_main(main)
