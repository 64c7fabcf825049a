from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.registry.family import Dependencies, Family, PlannedRun

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.contracts import Algorithm
    from windtunnel.records.result import AssessmentResult


class Attacks(Family[AttackEntry]):
    """Empirical attacks under a perturbation budget."""

    name = "attacks"
    stage = "attack"
    order = 10
    entry_type = AttackEntry
    figures = "windtunnel.assessments.attacks.figures"
    visualisers = ("ImagePairVisualiser", "PerturbationHeatmapVisualiser")
    headline = ("adversarial_accuracy", "attack_success_rate", "two_phase_accuracy")
    built_on = True

    def algorithms(self) -> Sequence[Algorithm]:
        from windtunnel.assessments.attacks.table import ALGORITHMS

        return ALGORITHMS

    def preflight(self, plan: PlannedRun[AttackEntry]) -> Iterable[str]:
        from windtunnel.assessments.attacks.preflight import preflight

        return preflight(*plan)

    def run(self, task: Task[AttackEntry]) -> AssessmentResult:
        from windtunnel.assessments.attacks.assess import run

        return run(task)

    def dependencies(self, entry: AttackEntry, budget: Budget) -> Dependencies:
        from windtunnel.assessments.attacks.profiles import PROFILES
        from windtunnel.assessments.depends import code_of_others, module_of, other_models, remote

        libraries = {entry.library}
        if entry.library == "windtunnel":
            libraries = {m.library for m in PROFILES[entry.algorithm].get(entry.budget.over(budget).norm, ())}
        functions = (entry.invoker, entry.adapt, entry.algorithm if entry.library == "function" else None)
        others = {f"transfer_to.{key}": model for key, model in entry.transfer_to.items()}
        return Dependencies(
            frozenset({"any attack", *libraries, *({entry.algorithm} & {"adaptive"})}) | remote(others.values()),
            other_models(others),
            (*(module for function in functions for module in module_of(function)), *code_of_others(others.values())),
        )


FAMILY = Attacks()
