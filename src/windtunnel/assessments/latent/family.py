from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from windtunnel.params.entry import Budget
from windtunnel.params.latent import LatentEntry
from windtunnel.registry.family import Dependencies, Family, PlannedRun

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.contracts import Algorithm, AssessmentKind
    from windtunnel.records.result import AssessmentResult
    from windtunnel.registry.reported import Reported


class Latent(Family[LatentEntry]):
    """The classifier along the data manifold of a generative model."""

    name = "latent"
    stage = "latent"
    order = 60
    entry_type = LatentEntry
    figures = "windtunnel.assessments.latent.figures"
    visualisers = (
        "LatentMetricsVisualiser",
        "LatentGridVisualiser",
        "LatentNoiseVisualiser",
        "LatentDistributionsVisualiser",
        "GeneratorSheetVisualiser",
    )
    headline = tuple(
        "adversarial_accuracy attack_success_rate lra lga llna_reconstruction llna_generation lars lags lara laga".split()
    )
    accuracy: Mapping[str, str] = {"lara": "robust in latent space"}
    generators = True

    def algorithms(self) -> Sequence[Algorithm]:
        from windtunnel.assessments.latent.table import ALGORITHMS

        return ALGORITHMS

    def preflight(self, plan: PlannedRun[LatentEntry]) -> Iterable[str]:
        from windtunnel.assessments.latent.preflight import preflight

        preflight(*plan)
        return ()

    def run(self, task: Task[LatentEntry]) -> AssessmentResult:
        from windtunnel.assessments.latent.assess import run

        return run(task)

    def has_own_budget(self, entry: LatentEntry) -> bool:
        return True

    def dependencies(self, entry: LatentEntry, budget: Budget) -> Dependencies:
        from windtunnel.assessments.depends import code_of_others, other_models, remote

        files = other_models({f"models[{i}]": model for i, model in enumerate(entry.models)})
        return Dependencies(remote(entry.models), files, tuple(code_of_others(entry.models)))

    def stored_results(self, entry: LatentEntry) -> int:
        """Return how often an entry keeps clean and perturbed images: of reconstructions and of as many generated ones."""
        return 2 * (1 + len(entry.decay_epsilon))

    def report_section(self, kind: AssessmentKind) -> Reported:
        from windtunnel.assessments.latent.reported import REPORTED

        return REPORTED


FAMILY = Latent()
