from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.registry.family import Dependencies, Family, PlannedRun

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.contracts import Algorithm, AssessmentKind
    from windtunnel.records.artifacts import Artifacts
    from windtunnel.records.layout import Layout
    from windtunnel.records.result import AssessmentResult
    from windtunnel.registry.reported import Reported


class Corruptions(Family[CorruptionEntry]):
    """Common corruptions, drawn at random: the average case."""

    name = "corruptions"
    stage = "corrupt"
    order = 50
    entry_type = CorruptionEntry
    figures = "windtunnel.assessments.corruptions.figures"
    visualisers = (
        "CorruptionAccuracyVisualiser",
        "SeverityCurveVisualiser",
        "CorruptionHeatmapVisualiser",
        "CorruptionSheetVisualiser",
        "PredictionFlipsVisualiser",
        "MinimalSeverityVisualiser",
    )
    headline = ("corrupted_accuracy", "mean_corruption_error", "mce", "relative_mce")
    plot: Mapping[str, str] = {"x": "severity", "y": "accuracy", "title": "Severity curve: ${key}"}

    def algorithms(self) -> Sequence[Algorithm]:
        from windtunnel.assessments.corruptions.table import ALGORITHMS

        return ALGORITHMS

    def preflight(self, plan: PlannedRun[CorruptionEntry]) -> Iterable[str]:
        from windtunnel.assessments.corruptions.preflight import preflight

        preflight(*plan)
        return ()

    def run(self, task: Task[CorruptionEntry]) -> AssessmentResult:
        from windtunnel.assessments.corruptions.assess import run

        return run(task)

    def finish(self, artifacts: Artifacts, layout: Layout) -> None:
        from windtunnel.assessments.corruptions.assess import write_severity_series

        write_severity_series(artifacts, layout.plots / self.stage / f"{artifacts.name}.csv")

    def has_own_budget(self, entry: CorruptionEntry) -> bool:
        return True

    def dependencies(self, entry: CorruptionEntry, budget: Budget) -> Dependencies:
        from windtunnel.assessments.depends import module_of
        from windtunnel.params.corruptions import FUNCTION

        reference = entry.reference if entry.reference and Path(entry.reference).is_dir() else None
        files = {key: path for key, path in (("reference", reference), ("path", entry.path)) if path}
        functions = (entry.corruptions or (entry.algorithm,)) if entry.library == FUNCTION else ()
        code = tuple(module for function in functions for module in module_of(function))
        return Dependencies(frozenset({entry.library, "any corruption suite"}), files, code)

    def parts(self, entry: CorruptionEntry, where: str = "corruptions") -> Sequence[str]:
        """Return the names of the parts of a suite, `fog-3`: each corruption at each severity."""
        from windtunnel.assessments.corruptions.table import corruptions_of
        from windtunnel.records.metadata import part_name

        return [part_name(name, severity) for name in corruptions_of(entry, where) for severity in entry.severities]

    def stored_results(self, entry: CorruptionEntry) -> int:
        """Return how many results an entry leaves: its parts, and the suite."""
        return len(self.parts(entry)) + 1

    def most_rows(self, entry: CorruptionEntry, shape: tuple[int, ...], n_samples: int) -> int:
        """Return how many rows the model is sent: each result once, and the images that were resized there and back."""
        return (self.stored_results(entry) + 1) * n_samples

    def report_section(self, kind: AssessmentKind) -> Reported:
        from windtunnel.registry.reported import OF_KIND, Column, Reported

        of_kind = OF_KIND[kind]
        meanings = {
            "mce": "mean corruption error (mCE): errors relative to those of a reference model; 1 means as many",
            "relative_mce": "as mCE, of the errors beyond those without corruption",
        }
        mce = "mCE, mean corruption error: errors relative to those of a reference model; 100 % means as many errors as the reference"
        relative_mce = "relative mCE: the same of the errors beyond those without corruption"
        return Reported(
            of_kind.question,
            (
                *of_kind.columns,
                Column("mCE", "mce", "rate", mce),
                Column("relative mCE", "relative_mce", "rate", relative_mce),
                Column("worst corruption", "worst_corruption", "plain"),
                Column("its mean accuracy", "worst_corruption_accuracy", "rate"),
                Column("never broken", "never_broken", "share", "never broken: right under every corruption that ran"),
            ),
            meanings=meanings,
        )


FAMILY = Corruptions()
