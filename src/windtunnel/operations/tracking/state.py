"""Collect the pipeline state to track, read from the artifacts on disk and from nowhere else."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from windtunnel.assessments.latent.tables import ClassifierMetrics, Correlation
from windtunnel.boundary.data.record import DatasetRecord, read_record
from windtunnel.boundary.models.record import ModelRecord, read_model
from windtunnel.boundary.params import load_params
from windtunnel.boundary.params_file import flat_params, flat_texts
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.decide import flatten
from windtunnel.evaluation.sanity.findings import with_caveats
from windtunnel.operations.dvc_files import LockedStage, git_output, read_lock
from windtunnel.operations.tracking.describe import describe
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.basis import leading_metric
from windtunnel.records.files import (
    DATA_FILE,
    METADATA_FILE,
    file_digest,
    is_tensor_summary,
    is_whole,
    read_block,
    read_own,
)
from windtunnel.records.findings import FindingRecord, counts, overall, read_findings
from windtunnel.records.gate import OUTCOMES_FILE, read_gate
from windtunnel.records.layout import HERE, Layout
from windtunnel.records.metadata import Metadata, Metrics, corruption_pairs, numbers, read_metadata
from windtunnel.records.run_times import measured_run_times, run_time_metrics
from windtunnel.records.sandwich import layers_in, options_of_summary
from windtunnel.records.tables import table
from windtunnel.runtime.credentials import without_credentials

# Short enough for every store; MLflow cuts or refuses longer ones.
MAX_TAG = 4500
# Former name -> name today of each metric that was renamed since the last release: MLflow has both until the next release.
RENAMED_METRICS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ChildState:
    """One assessment as a nested run: its digest decides whether it was logged before.

    dvc_tags: its stage in dvc.lock, where it has one. run_times: what the seconds come to that its samples took on the machine
    that computed it, where that is known. entry: its keys in params.yaml, dotted and as written.
    """

    name: str
    directory: Path
    metadata: Metadata
    digest: str
    dvc_tags: Mapping[str, str] = field(default_factory=dict)
    run_times: Mapping[str, float] = field(default_factory=dict)
    entry: Mapping[str, str] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, str]:
        """Every parameter that decided its result, as text.

        Keys of the entry are as in params.yaml, options of ours have their names in metadata.json, and `call.` stands before
        what the library was called with. Samples, seed, device, data set and model follow.
        """
        metadata, origin = self.metadata, self.metadata.provenance
        call = {key: value for key, value in metadata.call_kwargs.items() if not is_tensor_summary(value)}
        origin_facts = origin.model_dump(mode="json", exclude={"python", "packages", "threads_deterministic"})
        facts = {
            **{"family": metadata.family, "library": metadata.library, "algorithm": metadata.algorithm},
            **metadata.semantics.perturbation.model_dump(mode="json"),
            "samples": metadata.semantics.sample_selection,
            **{key: value for key, value in origin_facts.items() if isinstance(value, str | int)},
        }
        options = {**metadata.kwargs.extra, **({"call": call} if call else {})}
        present = {key: value for key, value in facts.items() if value not in (None, {})}
        return {**dict(flat_texts(options)), **self.entry, **dict(flat_texts(present))}

    @property
    def metrics(self) -> dict[str, float]:
        """Every plain number of the assessment's metrics: the headline first, on which MLflow's comparison opens."""
        metrics, headline = self.metadata.metrics, leading_metric(self.metadata)
        plain = _with_former_names(flatten({**metrics, **self.run_times, **_by_name(metrics)}))
        return dict(sorted(plain.items(), key=lambda item: item[0] != headline))

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Series as stepped metrics: accuracy and critical epsilons by epsilon (step: epsilon x 1e6), accuracy by severity,
        success by queries, and of each part of a suite `<corruption>/corrupted_accuracy` by severity, with its interval.
        """
        metrics = self.metadata.metrics
        curve_points: dict[str, list[tuple[int, float]]] = {}
        axes = [("accuracy_curve", "epsilons", 1e6), ("accuracy_by_severity", "severities", 1)]
        axes += [("critical_epsilon_histogram", "critical_epsilon_bins", 1e6)]
        axes += [(f"success_rate_curve{end}", "query_budgets", 1) for end in ("", "_ci_low", "_ci_high")]
        for key, axis, scale in axes:
            if key in metrics and axis in metrics:
                steps, values = (table(tuple[float | None, ...], metrics, name) for name in (axis, key))
                points = zip(steps, values, strict=True)
                curve_points[key] = [(round(x * scale), y) for x, y in points if x is not None and y is not None]
        pairs = corruption_pairs(self.metadata.kwargs)
        for end in ("", "_ci_low", "_ci_high"):
            accuracies = numbers(metrics, f"accuracy_by_pair{end}") if pairs else []
            for (corruption, severity), accuracy in zip(pairs, accuracies, strict=True):
                curve_points.setdefault(f"{corruption}/corrupted_accuracy{end}", []).append((severity, accuracy))
        return curve_points

    @property
    def files(self) -> list[Path]:
        """Return the files to upload: metadata and figures; the tensors stay in DVC."""
        return [self.directory / METADATA_FILE, *sorted(self.directory.glob("*.png"))]


@dataclass(frozen=True, slots=True)
class State:
    """One pipeline state as a parent run. `digest` is over params and all artifacts that two equal runs share.

    `{run}` in `description` stands for the id of the run that will have it. `layout`: where its files are.
    """

    layout: Layout
    digest: str
    experiment: str
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    description: str
    children: list[ChildState]
    files: list[Path]
    dataset: DatasetRecord
    model: ModelRecord
    model_digest: str
    log_tensors: bool = False
    problems: tuple[str, ...] = ()


def read_state(layout: Layout = HERE, *, tensors: bool = True) -> State:
    """Return the state of reports/; without `tensors`, what needs them (digests, run times) is left to the caller.

    Raises UserError where a part of it is missing or damaged.
    """
    params = load_params(layout.params)
    # Assessed without DVC there are none: the digests of the artifacts still identify the run.
    stages = {name: stage for name, stage in read_lock(layout.lock, exact=True).items() if name != "track"}
    names = ["clean", *(name for _, name, _ in entries(params))]
    checks = read_findings(layout.sanity)
    written = flat_params(layout.params)
    children, problems = [], []
    for name in names:
        try:
            child = _child(layout, name, stages, checks, tensors=tensors)
            block = ".".join(filter(None, (child.metadata.family, name))) + "."
            keys = {key.removeprefix(block): text for key, text in written.items() if key.startswith(block)}
            children.append(replace(child, entry=keys))
        except UserError as error:  # the others are worth logging; the run says that one is missing
            problems.append(f"{name} is not logged: {error}")
    summary = read_metadata(layout.summary)
    metrics = flatten(read_block(layout.metrics))
    gate = read_gate(layout.gate)
    figures = sorted(layout.summary.glob("*.png"))
    files = [layout.params, layout.metrics, layout.gate, layout.summary / METADATA_FILE, layout.summary / OUTCOMES_FILE]
    files += [layout.sanity / METADATA_FILE, layout.report / METADATA_FILE, layout.lock]
    files += [*(layout.reports / f"report.{e}" for e in ("pdf", "html")), *figures]
    digest = _digest(layout, [child.digest for child in children])
    failures = options_of_summary(summary).hard_failures
    caveats = [(m.name, c) for m in (summary, *(child.metadata for child in children)) for c in m.all_caveats]
    counted = counts(checks)
    dataset = read_record(layout.data)
    model_digest = summary.provenance.model_digest
    tags = {
        "windtunnel.state": digest,
        "windtunnel.decision": gate.decision.value,
        "sanity.hard_fails": str(len(failures)),
        "sanity.status": "fail" if failures else overall(counted) if checks else "not_run",
        "caveat_count": str(len(caveats)),
        **{f"windtunnel.deprecated.{old}": f"{old} is {new} today" for old, new in RENAMED_METRICS.items()},
        **{f"caveat.{caveat.code}": caveat.text for caveat in summary.all_caveats},
        **({"windtunnel.damaged": "; ".join(problems)} if problems else {}),
        "data.digest": dataset.digest,
        "model.digest": model_digest,
        **({"dvc.stage_hashes": " ".join(f"{name}={s.hash[:12]}" for name, s in stages.items())} if stages else {}),
        **{k: str(v) for k, v in params.tracking.tags.items()},
    }
    assessments = {child.name: child.metadata for child in children}
    if checks:
        metrics |= {f"sanity/checks_{status}": float(number) for status, number in counted.items()}
    return State(
        layout=layout,
        digest=digest,
        experiment=params.tracking.experiment,
        params=_with_budget(written, params),
        # A number to plot against: the parameter may be written as a fraction. The name sorts after `certified` and
        # `clean`, since MLflow's comparison page draws the alphabetically first metric.
        metrics=_with_former_names({**metrics, "epsilon": params.budget.epsilon}),
        tags={key: without_credentials(value)[:MAX_TAG] for key, value in tags.items()},
        description=describe(
            metrics, assessments, caveats, [*failures, *problems], figures, next(iter(layers_in(summary.metrics)), None)
        ),
        children=children,
        files=[path for path in files if path.is_file()],
        dataset=dataset,
        model=read_model(layout.model),
        model_digest=model_digest,
        log_tensors=params.tracking.log_tensors,
        problems=tuple(problems),
    )


def state_digest(layout: Layout) -> str:
    """Return the digest of the state in `layout`, of which params, metrics, the gate's decision, tensors and metadata are enough.

    Raises UserError where a part is missing.
    """
    names = ["clean", *(name for _, name, _ in entries(load_params(layout.params)))]
    folders = [layout.robustness / name for name in names]
    return _digest(layout, [assessment_digest(folder) for folder in folders if (folder / DATA_FILE).is_file()])


def _digest(layout: Layout, assessments: Sequence[str]) -> str:
    digest = hashlib.sha256()
    # The values, not the bytes: a comment, or the order in which `dvc exp run -S` writes them, makes no other state.
    values = json.dumps(flat_params(layout.params), sort_keys=True).encode()
    for part in (values, read_own(layout.metrics), read_own(layout.gate), *(text.encode() for text in assessments)):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def assessment_digest(directory: Path, data: str | None = None) -> str:
    """Return the digest of an assessment; `data`: sha256 of its robustness_data.pt where that is known already."""
    data = data or file_digest(directory / DATA_FILE)
    return hashlib.sha256((data + file_digest(directory / METADATA_FILE)).encode()).hexdigest()


def _with_former_names(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics, each renamed one under its former name too."""
    return {**metrics, **{old: metrics[new] for old, new in RENAMED_METRICS.items() if new in metrics}}


def _with_budget(flat: dict[str, str], params: Params) -> dict[str, str]:
    """With a budget that params.yaml only names (`budget: tight`) spelt out: the run list has a column for it."""
    if "budget" not in flat:
        return flat
    return {**flat, "budget.norm": params.budget.norm.value, "budget.epsilon": f"{params.budget.epsilon:.9g}"}


def volatile_tags() -> dict[str, str]:
    """Facts about where a state was logged from; no part of its digest."""
    commit = (git_output("rev-parse", "HEAD") or "").strip()
    # dvc.lock is written by the very run that is logged.
    dirty = bool(git_output("status", "--porcelain", "--", ".", ":!dvc.lock"))
    tags = {"git.commit": commit, "git.dirty": str(dirty), "mlflow.source.git.commit": commit}
    experiment = os.environ.get("DVC_EXP_NAME")
    if experiment:
        tags["dvc.exp.name"] = experiment
    return {key: value for key, value in tags.items() if value}


def _child(
    layout: Layout, name: str, stages: Mapping[str, LockedStage], checks: Sequence[FindingRecord], *, tensors: bool
) -> ChildState:
    directory = layout.robustness / name
    metadata = with_caveats(read_metadata(directory), checks)
    output = layout.name_in_dvc(directory)
    dvc_tags = {}
    for label, stage in stages.items():
        if md5 := stage.md5_of_outs.get(output):
            dvc_tags = {"dvc.stage": label, "dvc.stage_hash": stage.hash, "dvc.out_md5": md5}
    if not tensors:
        return ChildState(name, directory, metadata, "", dvc_tags)
    # Not the digest in runtime.json: that file is no DVC output, so after a checkout it may speak of other tensors.
    path = directory / DATA_FILE
    if not is_whole(path):
        raise UserError(f"{path}: is missing or cut; dvc checkout --force {directory} brings it back, or dvc repro")
    data = file_digest(path)
    digest = assessment_digest(directory, data)
    run_times = run_time_metrics(measured_run_times(directory, data) or ())
    return ChildState(name, directory, metadata, digest, dvc_tags, run_times)


def _by_name(metrics: Metrics) -> dict[str, Json]:
    """Return the tables of a latent assessment as groups: `models/<classifier>/<metric>`, `correlations/<metric>/<with>/<coefficient>`."""
    models = {row.model: row.numbers for row in table(tuple[ClassifierMetrics, ...], metrics, "models")}
    pairs: dict[str, dict[str, Json]] = {}
    for line in table(tuple[Correlation, ...], metrics, "correlations"):
        pairs.setdefault(line.x, {})[line.y] = line.model_dump(exclude={"x", "y"})
    return {key: group for key, group in (("models", models), ("correlations", pairs)) if group}
