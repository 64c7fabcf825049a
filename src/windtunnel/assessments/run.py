"""Run a resolved assessment and write its artifacts: the one path of all families."""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.assessments.corrupted import on_corrupted_images
from windtunnel.assessments.failures import failed_result, failure_of, may_run_again
from windtunnel.assessments.task import Task
from windtunnel.boundary.params_file import configured_limits
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import too_many
from windtunnel.core.errors import InfrastructureError
from windtunnel.core.references import load_object
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget, Entry, EntryReference
from windtunnel.params.model import Model
from windtunnel.params.resolved import FigureSpec, Resolved, read_resolved
from windtunnel.records.artifacts import Artifacts, provenance, read_artifacts, write_artifacts, write_metadata
from windtunnel.records.digests import KEPT, write_digests
from windtunnel.records.files import METADATA_FILE, hide_from_dvc
from windtunnel.records.layout import HERE, ROBUSTNESS, Layout
from windtunnel.records.metadata import FigureRecord
from windtunnel.records.result import AssessmentResult
from windtunnel.records.run_times import read_runtime
from windtunnel.records.storage import keep_images, require_inside
from windtunnel.records.tables import write_csv
from windtunnel.registry.family import Family, PlannedRun
from windtunnel.registry.plugins import family_of
from windtunnel.runtime.console import warn
from windtunnel.runtime.executors import workers_used


def run_entry(family: Family[Any], resolved: Resolved, ended_by: str = "") -> Artifacts:
    """Run one entry of a family, from its preflight to its figures.

    Where nothing but its figures changed, the result that `resolve` kept is drawn, and nothing is computed. ended_by: why the process
    of this entry ended too early; then its failure is recorded. What may run again is kept from DVC's cache.
    """
    started = time.time()
    task = task_of(family, resolved)
    directory = ROBUSTNESS / task.name
    draw = partial(draw_resolved, resolved.drawing.figures)
    cached = None if ended_by else take_back(resolved.digest, directory, task.subject)
    if cached is None:
        if ended_by:
            result = _failed(family, task, InfrastructureError(ended_by))
        else:
            preflight(family, task)
            result = compute(family, task)
        workers = workers_used()
        artifacts = write_artifacts(result, directory, task.subject, started=started, draw=draw, workers=workers)
        runs_again = may_run_again(result)
        if runs_again:
            # DVC takes the digest of this dependency after the stage: the next `resolve` writes another, so the entry runs.
            resolved.model_copy(update={"has_failed": True}).write()
        hide_from_dvc(directory, is_hidden=runs_again)
    else:
        artifacts = write_metadata(cached, draw(cached))
    write_digests(directory)
    finish_entry(family, artifacts, HERE)
    return artifacts


def finish_entry(family: Family[Any], artifacts: Artifacts, layout: Layout) -> None:
    """Write the family's extra files; an empty series for a failed entry, since DVC expects its file."""
    if artifacts.metadata.failure is None:
        family.finish(artifacts, layout)
    elif family.plot:
        columns = (family.plot["x"], family.plot["y"])
        write_csv(layout.plots / family.stage / f"{artifacts.name}.csv", columns, ())


def task_of(family: Family[Any], resolved: Resolved) -> Task[Entry]:
    """Build the task of a resolved entry, with its model and samples."""
    subject = current_subject(resolved.work.device, resolved.seed, model_in(resolved))
    return task_on(family, resolved, replace(subject, resolved=resolved.digest))


def task_on(family: Family[Any], resolved: Resolved, subject: Subject, layout: Layout = HERE) -> Task[Entry]:
    """Return an entry's task on its selection of the samples of `subject`."""
    entry: Entry = family.entry_type.model_validate(resolved.work.entry)
    where = f"{family.name}.{resolved.name}"
    warn(too_many(where, entry.samples.n, len(subject.dataset)))
    task = Task(where, resolved.name, entry, budget_of(entry), subject, subject, resolved, layout)
    return replace(task, subject=task.chosen_of(subject))


def preflight(family: Family[Any], task: Task[Entry]) -> None:
    """Raise UserError for an entry that cannot run on its model and samples."""
    subject = task.subject
    family.preflight(PlannedRun(task.where, task.entry, task.budget, subject.classifier, subject.dataset))


def compute(family: Family[Any], task: Task[Entry], *, is_alone: bool = False) -> AssessmentResult:
    """Return the result of an entry, or the record of its failure. Its preflight is not called.

    is_alone: the caller raises the failure, so that it is not printed.
    """
    try:
        return result_of(family, task)
    except (Exception, SystemExit) as error:
        return _failed(family, task, error, is_quiet=is_alone)


def _failed(
    family: Family[Any], task: Task[Entry], error: Exception | SystemExit, *, is_quiet: bool = False
) -> AssessmentResult:
    failed = failed_result(task, family.name, failure_of(error, task.where, is_quiet=is_quiet))
    # The single corruptions of a suite, as far as it came.
    shutil.rmtree(task.directory, ignore_errors=True)
    return _as_written(failed, family, task)


def result_of(family: Family[Any], task: Task[Entry]) -> AssessmentResult:
    """Return the result of an entry. Raises whatever the entry raises."""
    earlier = {reference.name: earlier_result(task, reference) for reference in task.entry.references()}
    task, images = on_corrupted_images(replace(task, earlier=earlier))
    result = family.run(task)
    return _as_written(images.record(result) if images else result, family, task)


def earlier_result(task: Task[Entry], reference: EntryReference) -> Artifacts:
    """Return the result of an entry that `task` builds on; it is computed first where there is none of its present params.

    DVC's foreach cannot make one entry depend on another's output, and runs the families in a fixed order. What is computed
    here is kept under its cache key, where its own stage takes it back.
    Raises InfrastructureError where it fails for a reason that may pass.
    """
    family = family_of(reference.family)
    resolved = read_resolved(family.stage, reference.name, task.layout.resolved)
    earlier = task_on(family, resolved, replace(task.all_samples, resolved=resolved.digest), task.layout)
    own_directory = task.layout.root / KEPT / resolved.digest
    for directory in (own_directory, earlier.directory):
        if (directory / METADATA_FILE).is_file() and _is_of(artifacts := read_artifacts(directory), earlier, family):
            return artifacts
    started, where = time.time(), f"{task.where}.{reference.key}"
    print(f"{where}: computes {earlier.where} first", flush=True)
    preflight(family, earlier)
    result = compute(family, replace(earlier, kept_in=own_directory))
    if may_run_again(result):
        raise InfrastructureError(f"{where}: {earlier.where} failed, and runs again")
    return write_artifacts(result, own_directory, earlier.subject, started=started)


def _is_of(artifacts: Artifacts, task: Task[Entry], family: Family[Any]) -> bool:
    """Return True if a result is of the params, samples and model of `task`, and no failure that may pass."""
    failure, stored = artifacts.metadata.failure, artifacts.metadata.provenance
    if family.built_on and not task.entry.corrupted_by:  # whose digest does not cover what a suite of corruptions is
        is_same = stored.extra.get("entry") == entry_digest(task.entry, task.budget)
    else:  # only the file beside the result says what it was made from; outside the pipeline nothing was resolved
        measured = read_runtime(artifacts.directory)
        may_be = measured is not None and measured.resolved in ("", task.resolved.digest)
        is_same = may_be and measured is not None and measured.data_digest == artifacts.digest()
    is_lasting = not (failure and failure.is_temporary)
    return is_lasting and is_same and stored.seed == task.subject.seed and _is_on(artifacts, task.subject)


def entry_digest(entry: Entry, budget: Budget) -> str:
    """Return the sha256 of all params that decide an entry, in the provenance of results that others may build on."""
    params = entry.model_dump(mode="json", exclude={"visualisers", "show_sample_names", "storage"})
    text = json.dumps([params, str(entry.budget.over(budget))], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _as_written(result: AssessmentResult, family: Family[Any], task: Task[Entry]) -> AssessmentResult:
    require_inside(result.data, result.semantics)
    shown = {**result.kwargs, "show_sample_names": task.entry.show_sample_names}
    identity = {"entry": entry_digest(task.entry, task.budget)} if family.built_on else {}
    result = replace(result, family=family.name, kwargs=shown, provenance={**result.provenance, **identity})
    return keep_images(result, task.entry.kept_inputs)


def draw_resolved(figures: Sequence[FigureSpec], artifacts: Artifacts) -> Sequence[FigureRecord]:
    """Draw the resolved figures. Only their modules are imported: others may change without a redraw."""
    if artifacts.metadata.failure:
        return ()
    from windtunnel.assessments.figures.base import save_figures

    return save_figures(artifacts, [load_object(f"{f.module}:{f.name}")(**f.options) for f in figures])


def model_in(resolved: Resolved) -> Model:
    """Return the model's section of params.yaml: which code of the user's may be called for it, and its limits."""
    inputs = resolved.work.inputs["model"]
    return Model.model_validate({**inputs, **configured_limits("model")})


def budget_of(entry: Entry) -> Budget:
    """Return the budget in a resolved entry; a placeholder with NaN epsilon if the entry needs none."""
    norm, epsilon = entry.budget.norm, entry.budget.epsilon
    if norm is None or epsilon is None:
        return Budget.model_construct(norm=norm or Norm.LINF, epsilon=math.nan)
    return Budget(norm=norm, epsilon=epsilon)


# What must be as it was beside what was resolved.
_SAME = ("dataset_digest", "model_digest", "device")


def take_back(digest: str, directory: Path, subject: Subject) -> Artifacts | None:
    """Put the result kept under `digest` into `directory`; None where there is none of this model on these samples."""
    source = KEPT / digest
    if not (source / METADATA_FILE).is_file():
        return None
    if not _is_on(read_artifacts(source), subject):
        return None
    shutil.copytree(source, directory, dirs_exist_ok=True)
    shutil.rmtree(source)
    return read_artifacts(directory)


def _is_on(artifacts: Artifacts, subject: Subject) -> bool:
    """Return True if a result is of these samples and this model, on the same device."""
    stored, now = artifacts.metadata.provenance, provenance(subject)
    return all(getattr(stored, key) == now[key] for key in _SAME)
