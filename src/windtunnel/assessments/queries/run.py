"""One entry of `queries` as its stage runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.assessments.queries.assess import assess

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.params.queries import QueryEntry
    from windtunnel.records.artifacts import AssessmentResult


def run(task: Task[QueryEntry]) -> AssessmentResult:
    """Run one query-counted attack."""
    return assess(task.name, task.entry, task.budget, task.subject)
