from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry
from windtunnel.registry.family import Dependencies, Family, PlannedRun

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.contracts import Algorithm
    from windtunnel.records.artifacts import Artifacts
    from windtunnel.records.layout import Layout
    from windtunnel.records.result import AssessmentResult


class Sweeps(Family[SweepEntry]):
    """Accuracy against epsilon."""

    name = "sweeps"
    stage = "sweep"
    order = 30
    entry_type = SweepEntry
    figures = "windtunnel.assessments.sweeps.figures"
    visualisers = (
        "DegradationCurveVisualiser",
        "CriticalEpsilonVisualiser",
        "ConfidenceVisualiser",
        "ClassAccuracyVisualiser",
    )
    headline = ("adversarial_accuracy", "attack_success_rate", "area_under_curve", "median_critical_epsilon")
    plot: Mapping[str, str] = {"x": "epsilon", "y": "accuracy", "title": "Degradation curve: ${key}"}

    def algorithms(self) -> Sequence[Algorithm]:
        from windtunnel.assessments.sweeps.table import ALGORITHMS

        return ALGORITHMS

    def preflight(self, plan: PlannedRun[SweepEntry]) -> Iterable[str]:
        from windtunnel.assessments.sweeps.preflight import preflight

        preflight(*plan)
        return ()

    def run(self, task: Task[SweepEntry]) -> AssessmentResult:
        from windtunnel.assessments.sweeps.assess import assess

        return assess(task.name, task.entry, task.budget, task.subject)

    def finish(self, artifacts: Artifacts, layout: Layout) -> None:
        from windtunnel.assessments.sweeps.assess import finish

        finish(artifacts, layout)

    def has_own_budget(self, entry: SweepEntry) -> bool:
        return True

    def dependencies(self, entry: SweepEntry, budget: Budget) -> Dependencies:
        return Dependencies(frozenset() if entry.library == "windtunnel" else frozenset({entry.library, "any attack"}))


FAMILY = Sweeps()
