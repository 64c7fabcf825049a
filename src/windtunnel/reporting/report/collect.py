"""Read a reports directory. A missing, damaged or older file costs its part of the report, and a line.

One assessment's tensors are in memory at a time: pictures are taken of some samples, the 1-D tensors are kept.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from windtunnel.boundary.data.record import DATASET_JSON, DatasetRecord, read_record
from windtunnel.boundary.models.record import MODEL_JSON, ModelRecord, read_model
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.statistics import median
from windtunnel.evaluation.sanity.findings import with_caveats
from windtunnel.evaluation.summary.security import SecurityCurve, read_curves
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.findings import FindingRecord, read_sanity
from windtunnel.records.gate import GateResult, read_gate
from windtunnel.records.metadata import Metadata, read_metadata
from windtunnel.records.result import Tensors
from windtunnel.records.run_times import read_runtime
from windtunnel.records.sandwich import layers_of, options_of_summary
from windtunnel.records.sequential_gate import SequentialDecision
from windtunnel.reporting.report.pictures import Drawn, Pictures, figures_of, plan_pictures
from windtunnel.reporting.sequential_gate import SEQUENCE_FILE, read_sequence

T = TypeVar("T")

_DAMAGED = "is missing from this report: it is damaged or of another version"
# What the report reads of the summary beside the sandwich.
_OF_SUMMARY = ("n_samples", "clean_accuracy")
_SUMMARY_TENSORS = ("verdicts", "worst_by", "certified_verdicts", "certified_by", "perturbation_distance")


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """When the results were made, in UTC, from which commit, and by how many processes at most (`workers`).

    `commit` is empty where it was not kept.
    """

    date: str
    commit: str
    workers: int = 1


@dataclass(slots=True)
class ReportInputs:
    """Inputs of a report, and a line for each thing that could not be read.

    `children`: for a suite, the metadata of the single corruptions below its directory, by directory name. `figures`: what
    the visualisers of an assessment show. `confidence`: the median confidence in the wrong answer of what an attack broke.
    `run`: when the results were made, None where nothing on disk says so. `sequence`: the decision of the sequential gate.
    """

    clean: Artifacts | None
    summary: Artifacts | None
    problems: list[str]
    checks: tuple[FindingRecord, ...] | None = None
    gate: GateResult | None = None
    sequence: SequentialDecision | None = None
    assessments: list[Artifacts] = field(default_factory=list)
    data: DatasetRecord | None = None
    model: ModelRecord | None = None
    children: dict[str, dict[str, Metadata]] = field(default_factory=dict)
    pictures: Pictures | None = None
    curves: Sequence[SecurityCurve] = ()
    figures: dict[str, tuple[Drawn, ...]] = field(default_factory=dict)
    confidence: dict[str, float] = field(default_factory=dict)
    run: RunOrigin | None = None

    @property
    def base(self) -> Artifacts | None:
        """Whose samples the report is about: the summary's, else those of the clean evaluation or the first assessment."""
        return self.summary or self.clean or next(iter(self.assessments), None)


def collect(
    reports: Path, names: Iterable[str] | None = None, *, named: bool = True, measured: bool = False
) -> ReportInputs:
    """Read reports/. `names`: the assessments to show, in order; all there are where absent.

    `named`: samples by their names; else by numbers in the order of the summary, else of the clean evaluation.
    `measured`: with what runtime.json says, of when and how long; without, equal artifacts give equal reports.
    """
    problems: list[str] = []

    def read(directory: Path, what: str) -> Artifacts | None:
        try:
            artifacts = read_artifacts(directory, run_times=measured)
            _check_metadata(artifacts)
        except UserError as error:
            # The report goes to others: where it was built is none of their business.
            problems.append(f"{what} is missing from this report: {str(error).replace(f'{reports}/', '')}")
            return None
        return artifacts

    robustness = reports / "robustness"
    clean = read(robustness / "clean", "The clean evaluation")
    summary = read(reports / "summary", "The summary")
    if summary is not None and (lack := _lacking_in_summary(summary)):
        problems.append(f"The summary is missing from this report: its metadata lacks {lack}, as of another version")
        summary = None
    if not named:
        numbers = numbers_of(summary or clean)
        clean, summary = (numbered_samples(a, numbers) if a else None for a in (clean, summary))
    requested = list(names) if names is not None else _in_order(known_assessments(reports), summary)
    requested = [name for name in requested if name != "clean"]
    inputs = ReportInputs(clean and _slim(clean), summary and _slim(summary), problems)
    inputs.checks = findings_in(reports / "sanity", problems)
    inputs.pictures = plan_pictures(summary or clean, len(requested))
    inputs.run = _run(summary, robustness) if summary and measured else None
    if clean:
        inputs.figures[clean.name] = figures_of(clean)
    clean = summary = None  # their large tensors are not needed while the assessments are read
    for name in requested:
        assessment = read(robustness / name, f"Assessment {name}")
        if assessment and (failure := assessment.metadata.failure):
            problems.append(f"Assessment {name} has no result, it failed: {failure.reason}")
        elif assessment:
            assessment = assessment if named else numbered_samples(assessment, numbers)
            if inputs.pictures:
                inputs.pictures.take(assessment, len(inputs.assessments))
            if (median := _confidence_when_wrong(assessment)) is not None:
                inputs.confidence[name] = median
            inputs.children[name] = _children(robustness / name, name, problems)
            inputs.figures[name] = figures_of(assessment)
            metadata = with_caveats(assessment.metadata, inputs.checks or ())
            metadata = metadata.model_copy(update={"metrics": {**metadata.metrics, **assessment.run_time_metrics}})
            inputs.assessments.append(replace(_slim(assessment), metadata=metadata))
    data, model, gate = reports / "data" / DATASET_JSON, reports / "model" / MODEL_JSON, reports / "gate.json"
    inputs.data = _recorded(data, lambda path: read_record(path.parent), f"data/{DATASET_JSON} {_DAMAGED}", problems)
    inputs.model = _recorded(model, lambda path: read_model(path.parent), f"model/{MODEL_JSON} {_DAMAGED}", problems)
    line = "The gate's decision is missing from this report: gate.json is damaged"
    inputs.gate = _recorded(gate, read_gate, line, problems)
    if measured:
        inputs.sequence = _recorded(reports / SEQUENCE_FILE, read_sequence, f"{SEQUENCE_FILE} {_DAMAGED}", problems)
    if inputs.summary:
        line = "What is known against epsilon is missing from this report: the summary has no curves that fit"
        curves = _attempt(lambda: read_curves(reports / "summary"), line, problems)
        inputs.curves = [curve for curve in curves or () if curve.name in requested]
    return inputs


def _attempt(read: Callable[[], T], line: str, problems: list[str]) -> T | None:
    """Return what `read` returns; None, and the line among the problems, where it is damaged or of another version."""
    try:
        return read()
    except UserError:
        problems.append(line)
        return None


def _recorded(path: Path, read: Callable[[Path], T], line: str, problems: list[str]) -> T | None:
    """Read a record of a stage beside its tensors; None where it is missing, and where it is damaged, with a line for that."""
    return _attempt(lambda: read(path), line, problems) if path.is_file() else None


def known_assessments(reports: Path) -> list[str]:
    """Names of the assessments below a reports directory, sorted; without the clean evaluation."""
    names = sorted(path.parent.name for path in (reports / "robustness").glob(f"*/{METADATA_FILE}"))
    return [name for name in names if name != "clean"]


def _in_order(names: list[str], summary: Artifacts | None) -> list[str]:
    """Return the names in the order of the run, which the summary knows; others after them."""
    order = options_of_summary(summary.metadata).assessments if summary else ()
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _confidence_when_wrong(artifacts: Artifacts) -> float | None:
    logits, verdicts = artifacts.data.get("perturbed_logits"), artifacts.tensor("verdicts")
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        return None
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    broken = right & (verdicts == Verdict.ATTACK_SUCCEEDED)
    return median(logits[broken].softmax(1).amax(1).tolist())


def _run(summary: Artifacts, robustness: Path) -> RunOrigin | None:
    """Read runtime.json where it belongs to the present tensors: it is no DVC output, so it may be of others."""
    measured = read_runtime(summary.directory)
    if measured is None or measured.data_digest != summary.digest() or not measured.started:
        return None
    when = datetime.fromtimestamp(measured.started, UTC)
    of_entries = (read_runtime(robustness / name) for name in options_of_summary(summary.metadata).assessments)
    workers = max((entry.workers or 1 for entry in of_entries if entry), default=1)
    return RunOrigin(f"{when:%Y-%m-%d %H:%M} UTC", measured.commit, workers)


def _slim(artifacts: Artifacts) -> Artifacts:
    small: Tensors = {
        key: value for key, value in artifacts.data.items() if isinstance(value, Tensor) and value.ndim == 1
    }
    return replace(artifacts, data=small)


def _check_metadata(artifacts: Artifacts) -> None:
    if len(artifacts.sample_names) != len(artifacts.tensor("targets")):
        raise UserError(
            f"{artifacts.directory}: metadata.json names {len(artifacts.sample_names)} samples, "
            f"robustness_data.pt holds {len(artifacts.tensor('targets'))}"
        )


def _lacking_in_summary(summary: Artifacts) -> str:
    """Return what the report needs of the summary and does not find there, in words; empty for nothing."""
    missing = [key for key in _OF_SUMMARY if key not in summary.metrics]
    missing += [key for key in _SUMMARY_TENSORS if key not in summary.data]
    for what, read in (
        ("a layer of the sandwich", lambda: layers_of(summary.metrics)[0]),
        ("its hard failures or assessments", lambda: options_of_summary(summary.metadata)),
    ):
        try:
            read()
        except (UserError, IndexError):
            missing.append(what)
    return ", ".join(missing)


def _children(directory: Path, name: str, problems: list[str]) -> dict[str, Metadata]:
    """Return the metadata of the single corruptions of a suite."""
    children: dict[str, Metadata] = {}
    for child in sorted(path.parent for path in directory.glob(f"*/{METADATA_FILE}")):
        line = f"{name}/{child.name} is missing from this report: its metadata.json is damaged"
        if metadata := _attempt(partial(read_metadata, child), line, problems):
            children[child.name] = metadata
    return children


def findings_in(directory: Path, problems: list[str]) -> tuple[FindingRecord, ...] | None:
    """Return the outcome of every sanity check, None where none ran; why not is added to `problems`."""
    damaged = "The sanity checks are missing from this report: their metadata is damaged or of another version"
    n_problems = len(problems)
    recorded = _attempt(lambda: read_sanity(directory), damaged, problems)
    if recorded is None and len(problems) == n_problems:
        problems.append("No sanity checks ran: the evaluation itself is not checked.")
    return recorded.checks if recorded else None


def numbers_of(base: Artifacts | None) -> dict[str, str]:
    """`sample 1`, `sample 2` and so on for the samples of `base`, in its order; nothing without it."""
    return {name: f"sample {i + 1}" for i, name in enumerate(base.sample_names)} if base else {}


def numbered_samples(artifacts: Artifacts, numbered: Mapping[str, str]) -> Artifacts:
    """`artifacts` with every sample called by its number, in its options, its caveats and its hard failures."""
    metadata = artifacts.metadata
    caveats = []
    for caveat in metadata.caveats:
        names = tuple(numbered.get(sample, "") for sample in caveat.samples)
        caveats.append(caveat.model_copy(update={"text": _in_text(caveat.text, numbered), "samples": names}))
    names = tuple(numbered.get(name, "a sample of another run") for name in artifacts.sample_names)
    options: dict[str, object] = {"sample_names": names}
    if "hard_failures" in metadata.kwargs.extra:
        options["hard_failures"] = [_in_text(line, numbered) for line in options_of_summary(metadata).hard_failures]
    renamed = {"caveats": tuple(caveats), "kwargs": metadata.kwargs.model_copy(update=options)}
    return replace(artifacts, metadata=metadata.model_copy(update=renamed))


def _in_text(text: str, numbered: Mapping[str, str]) -> str:
    """Return a sentence whose `sample <name>` is numbered. Not every occurrence of a name: it may be a number itself."""
    return re.sub(r"\bsample ([^\s,;:]+)", lambda match: numbered.get(match[1], match[0]), text)
