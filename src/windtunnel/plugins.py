"""Names for plug-ins: records to register, and the types of the arguments of their functions (docs/architecture.md has examples)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.assessments.attacks.adapters import Request
    from windtunnel.assessments.attacks.rows import AttackRow, Targeting, algorithm
    from windtunnel.assessments.corruptions.rows import CorruptionRequest, CorruptionRow, corruption_algorithm
    from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
    from windtunnel.assessments.figures.pictures import Picture, PictureGrid, picture
    from windtunnel.assessments.figures.plots import Bar, Series, bars, lines
    from windtunnel.assessments.figures.scene import Scene
    from windtunnel.assessments.reported import Column, Question, Reported
    from windtunnel.assessments.verification.cascade.step import Step
    from windtunnel.assessments.verification.rows import VerifierRow
    from windtunnel.boundary.models.loaders import Loaded
    from windtunnel.core.contracts import (
        Algorithm,
        AssessmentKind,
        Capability,
        Norm,
        PerturbationBudget,
        PerturbationDistribution,
        Randomness,
        Semantics,
        ThreatModel,
        Verdict,
    )
    from windtunnel.core.dataset import Dataset
    from windtunnel.core.errors import UserError
    from windtunnel.core.statistics import binomial_rate
    from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, Severity, Tier, check
    from windtunnel.evaluation.sanity.evidence import Evidence
    from windtunnel.params.entry import Entry
    from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs
    from windtunnel.records.result import AssessmentResult
    from windtunnel.registry.plugins import Family, Lazy, Library, ModelSource, View

# module: names that it has
_HOME = {
    name: module
    for line in """
    assessments.attacks.adapters: Request
    assessments.attacks.rows: AttackRow Targeting algorithm
    assessments.corruptions.rows: CorruptionRequest CorruptionRow corruption_algorithm
    assessments.figures.base: Drawing NothingToDraw Visualiser register
    assessments.figures.pictures: Picture PictureGrid picture
    assessments.figures.plots: Bar Series bars lines
    assessments.figures.scene: Scene
    assessments.reported: Column Question Reported
    assessments.verification.rows: VerifierRow
    assessments.verification.cascade.step: Step
    records.artifacts: Artifacts base_data base_kwargs
    records.result: AssessmentResult
    core.statistics: binomial_rate
    core.contracts: Algorithm AssessmentKind Capability Norm PerturbationBudget PerturbationDistribution
    core.contracts: Randomness Semantics ThreatModel Verdict
    core.dataset: Dataset
    core.errors: UserError
    registry.plugins: Family Lazy Library ModelSource View
    evaluation.sanity.check: CheckResult NotApplicable NotRun Severity Tier check
    evaluation.sanity.evidence: Evidence
    boundary.models.loaders: Loaded
    params.entry: Entry
    """.strip().splitlines()
    for module, _, names in [line.strip().partition(": ")]
    for name in names.split()
}

__all__ = [
    "Algorithm", "Artifacts", "AssessmentKind", "AssessmentResult", "AttackRow", "Bar", "Capability", "CheckResult", "Column",
    "CorruptionRequest", "CorruptionRow", "Dataset",
    "Drawing", "Entry", "Evidence", "Family", "Lazy", "Library", "Loaded", "ModelSource", "Norm", "NotApplicable", "NotRun",
    "NothingToDraw", "PerturbationBudget", "PerturbationDistribution", "Picture", "PictureGrid", "Question",
    "Randomness", "Reported", "Request", "Scene", "Semantics", "Series", "Severity", "Step", "Targeting", "ThreatModel", "Tier",
    "UserError", "Verdict", "VerifierRow", "View", "Visualiser", "algorithm", "bars", "base_data", "base_kwargs", "binomial_rate", "check",
    "corruption_algorithm",
    "lines", "picture", "register",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for: a record is read by commands that should not wait for torch."""
    if name in _HOME:
        return getattr(import_module(f"windtunnel.{_HOME[name]}"), name)
    raise AttributeError(f"module 'windtunnel.plugins' has no attribute '{name}'")
