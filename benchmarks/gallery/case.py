"""One case of the gallery: how it is made, run as the stages run it, and evaluated."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence, collect
from windtunnel.evaluation.sanity.run import run_checks
from windtunnel.evaluation.validate import validate
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, read_artifacts, write_artifacts
from windtunnel.records.findings import FindingRecord
from windtunnel.records.result import AssessmentResult

EPSILON = 0.1
STEP = EPSILON / 8
# The only attacks of a naive evaluation.
NAIVE: Mapping[str, object] = {
    "fgsm": {"library": "torchattacks", "algorithm": "FGSM"},
    "pgd": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": STEP}},
}
# Flagged in every small run with these attacks, and so no sign of a lie: few samples, and no black-box attack.
EVERYWHERE = frozenset({"F2", "D11", "C20"})


@dataclass(frozen=True)
class Case:
    """One case.

    subject: the model and the samples. train: the training split, where the evaluation knows it. run: blocks of params.yaml beside
    or in place of the naive ones. around: a context in which the assessments run, for a tool that lies. spoil: what a broken tool
    leaves behind, done to the evidence. meant_for: the profile of the checks that must catch it. stand_in: the network without
    what hides its gradients, for `true_robust_accuracy`.
    """

    name: str
    subject: Subject
    train: Dataset | None = None
    run: Mapping[str, object] = field(default_factory=dict)
    around: Callable[[], object] | None = None
    spoil: Callable[[Evidence], Evidence] = lambda evidence: evidence
    meant_for: str = "standard"
    stand_in: nn.Module | None = None


@dataclass(frozen=True, slots=True)
class Caught:
    """What the checks of one profile said of a case, and in which time (the run's own, the checks')."""

    case: str
    profile: str
    hard: tuple[str, ...]
    warn: tuple[str, ...]
    robust: float | None  # None: no entry has a result
    run_seconds: float
    check_seconds: float

    @property
    def caught(self) -> bool:
        """Whether any check flagged that does not flag everywhere."""
        return bool(set(self.hard + self.warn) - EVERYWHERE)


def subject_with(module: nn.Module, data: Dataset) -> Subject:
    """A module with every capability as the model under assessment."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    capabilities = frozenset(Capability)
    shape = tuple(data.inputs.shape[1:])
    classifier = Classifier(module, data.num_classes, shape, capabilities, module_digest(module), type(module).__name__)
    return subject_of(classifier, data)


def params_of(run: Mapping[str, object], epsilon: float = EPSILON) -> Params:
    """params.yaml of a naive evaluation, with these blocks in place of its own."""
    base = {
        "data": {"source": "digits"},
        "model": {"source": "train"},
        "budget": {"norm": "Linf", "epsilon": epsilon},
        "attacks": dict(NAIVE),
    }
    return validate({**base, **run})


def run_entry(family: str, name: str, entry: Entry, params: Params, subject: Subject, directory: Path) -> None:
    """Run one entry on `subject` and write its artifacts to `directory`/`name`; what it builds on is beside it."""
    chosen = subject.choose(entry.samples.n, entry.samples.selection, 0)
    module = import_module(f"windtunnel.assessments.{family}.assess")

    def write(result: AssessmentResult, folder: Path) -> None:
        write_artifacts(result, folder, chosen, started=time.time())

    if family == "corruptions":
        result = module.assess_suite(name, entry, chosen, lambda r: write(r, directory / name / r.name))
    elif family == "attacks" and entry.on:
        prior = {other: read_artifacts(directory / other) for other in entry.on.survivors_of}
        result = module.assess(name, entry, params.budget, chosen, prior)
    else:
        result = module.assess(name, entry, params.budget, chosen)
    write(result, directory / name)


def run_in(directory: Path, subject: Subject, params: Params, train: Dataset | None = None) -> Evidence:
    """Run every entry of `params` on `subject`, write the artifacts as the stages do, and collect them."""
    clean = write_artifacts(assess_clean(params.clean, subject), directory / "clean", subject, started=time.time())
    for family, name, entry in entries(params):
        try:
            run_entry(family, name, entry, params, subject, directory)
        except IncompatibleError:
            continue  # refused, in a line that says why: a verifier that does not know the model's layers
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            continue  # the stage fails and leaves nothing: the checks look at what is there
    return collect(params, subject, clean, directory, train)


def evidence_of(case: Case, folder: Path) -> Evidence:
    """The case, assessed."""
    params = params_of(case.run)
    if case.around is None:
        return case.spoil(run_in(folder, case.subject, params, case.train))
    with case.around():  # type: ignore[attr-defined]
        return case.spoil(run_in(folder, case.subject, params, case.train))


def evaluate(case: Case, profiles: tuple[str, ...] = ("standard",)) -> list[Caught]:
    """What the checks say of a case, profile by profile."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        evidence = evidence_of(case, Path(folder))
        run_seconds = time.perf_counter() - started
        return [outcome_of(case.name, evidence, profile, run_seconds) for profile in profiles]


def outcome_of(name: str, evidence: Evidence, profile: str, run_seconds: float) -> Caught:
    """What the checks of `profile` say of one run."""
    settings = evidence.params.sanity.model_copy(update={"profile": profile})
    asked = replace(evidence, params=evidence.params.model_copy(update={"sanity": settings}), notes={})
    torch.manual_seed(0)
    started = time.perf_counter()
    findings = run_checks(asked, settings)
    seconds = time.perf_counter() - started
    attacks = [p for p in evidence.assessments if p.family == "attacks"]
    right = evidence.subject.clean_correct
    certificates = [p for p in evidence.assessments if p.family == "verification"]
    robust = None
    if attacks:
        robust = (right & ~evidence.union(attacks, lambda p: p.succeeded))[evidence.present(attacks)]
    elif certificates:
        robust = right & evidence.union(certificates, lambda p: p.tensor("verdicts") == Verdict.VERIFIED)
    return Caught(
        name,
        profile,
        _ids(findings, Severity.HARD),
        _ids(findings, Severity.WARN),
        None if robust is None else float(robust.double().mean()),
        run_seconds,
        seconds,
    )


def _ids(findings: list[FindingRecord], severity: Severity) -> tuple[str, ...]:
    flagged = (Status.FAIL, Status.WARN)
    return tuple(f.id for f in findings if f.status in flagged and f.severity is severity)


def changed(name: str, change: Callable[[dict[str, Tensor]], None]) -> Callable[[Evidence], Evidence]:
    """Evidence in which one assessment's tensors are what a broken tool would have written."""

    def spoil(evidence: Evidence) -> Evidence:
        assessments = []
        for assessment in evidence.assessments:
            if assessment.name == name:
                data = {k: v.clone() if isinstance(v, Tensor) else v for k, v in assessment.artifacts.data.items()}
                change(data)  # type: ignore[arg-type]
                assessment = replace(
                    assessment,
                    artifacts=Artifacts(name, assessment.artifacts.directory, data, assessment.artifacts.metadata),
                )
            assessments.append(assessment)
        return replace(evidence, assessments=tuple(assessments), notes={})

    return spoil
