from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from windtunnel.params.attacks import QueryEntry
from windtunnel.params.entry import Budget
from windtunnel.registry.family import Dependencies, Family, PlannedRun

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.contracts import Algorithm
    from windtunnel.records.result import AssessmentResult


class Queries(Family[QueryEntry]):
    """Black-box attacks with every evaluation of the model counted."""

    name = "queries"
    stage = "query"
    order = 20
    entry_type = QueryEntry
    figures = "windtunnel.assessments.queries.figures"
    visualisers = ("SuccessAgainstQueriesVisualiser", "QueryHistogramsVisualiser", "QueryGalleryVisualiser")
    headline = ("adversarial_accuracy", "attack_success_rate", "queries_succ_mean")

    def algorithms(self) -> Sequence[Algorithm]:
        from windtunnel.assessments.queries.table import ALGORITHMS

        return ALGORITHMS

    def preflight(self, plan: PlannedRun[QueryEntry]) -> Iterable[str]:
        from windtunnel.assessments.queries.preflight import preflight

        preflight(*plan)
        return ()

    def run(self, task: Task[QueryEntry]) -> AssessmentResult:
        from windtunnel.assessments.queries.assess import assess

        return assess(task.name, task.entry, task.budget, task.subject)

    def has_own_budget(self, entry: QueryEntry) -> bool:
        return entry.library == "windtunnel"

    def dependencies(self, entry: QueryEntry, budget: Budget) -> Dependencies:
        return Dependencies(frozenset({entry.library} - {"windtunnel"}))

    def most_rows(self, entry: QueryEntry, shape: tuple[int, ...], n_samples: int) -> int | None:
        from windtunnel.assessments.queries.settings import library_row, search_of

        limits = [] if entry.max_queries is None else [entry.max_queries * n_samples]
        if entry.total_queries is not None:
            limits.append(entry.total_queries + n_samples)  # the checks of the clean images are not of the total
        if library_row(entry) is None:
            search = search_of("queries", entry, shape)
            limits.append((1 + search.steps * search.width) * n_samples)
        return min(limits, default=None)


FAMILY = Queries()
