"""Stage `query@<name>`: one entry of `queries`."""

from __future__ import annotations

from windtunnel.assessments.queries.assess import assess
from windtunnel.assessments.queries.preflight import preflight
from windtunnel.assessments.run import Task, run_entry, stage_main
from windtunnel.core.artifacts import AssessmentResult
from windtunnel.params.queries import QueryEntry


def query(task: Task[QueryEntry]) -> AssessmentResult:
    """Run one query-counted attack."""
    return assess(task.name, task.entry, task.budget, task.subject)


def main(name: str) -> None:
    """Write reports/robustness/<name>."""
    run_entry("queries", "query", name, QueryEntry, preflight, query)


if __name__ == "__main__":
    stage_main(main)
