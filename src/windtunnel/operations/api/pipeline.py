"""The pipeline from a model and samples that are in memory to a result, in a folder of its own: the stages' own functions."""

import tempfile
import time
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from windtunnel.assessments.run import compute, finish_entry, preflight, task_on
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject
from windtunnel.operations.api.result import Result
from windtunnel.operations.resolve import dependencies
from windtunnel.operations.stages.clean import write_clean
from windtunnel.operations.stages.generators import write_generators
from windtunnel.operations.stages.sanity import write_sanity
from windtunnel.operations.stages.summary import write_summary
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.resolved import Resolved, Work
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import write_artifacts
from windtunnel.records.layout import Layout
from windtunnel.registry.plugins import families
from windtunnel.runtime.progress import progress_bar

GIVEN = "given:directly"  # what params say of data or a model that nobody has to fetch


def assess_subject(
    params: Params, subject: Subject, train: Dataset | None, *, checked: bool = True, is_alone: bool = False
) -> Result:
    """Every entry of `params` on `subject`, those that others build on first; nothing is read or written elsewhere.

    train: the training split, for the generative models and the checks of leakage. checked: whether the sanity checks run.
    is_alone: a failed entry is not printed, since the caller raises it.

    Raises UserError for what an entry cannot run on, before anything is computed.
    """
    folder = tempfile.TemporaryDirectory(prefix="windtunnel-")
    layout = Layout(Path(folder.name))
    tasks = []
    for of, name, entry in in_order(params):
        resolved = resolved_directly(params, of, name, entry)
        resolved.write(layout.resolved)  # for the entries that build on it
        tasks.append((families()[of], task_on(families()[of], resolved, subject, layout)))
    for family, task in tasks:
        preflight(family, task)
    write_clean(params.clean, params.storage, subject, layout, time.time())
    if any(family.generators for family, _ in tasks):
        write_generators(params.generators, subject.dataset, train, params.seed, params.device, layout)
    with progress_bar() as progress:
        bar = progress.add_task("assess", total=len(tasks))
        for family, task in tasks:
            started = time.time()
            artifacts = write_artifacts(
                compute(family, task, is_alone=is_alone), layout.robustness / task.name, task.subject, started=started
            )
            finish_entry(family, artifacts, layout)
            progress.advance(bar)
    if checked:
        write_sanity(params, subject, layout, time.time(), train)
    write_summary(params, subject, layout, time.time())
    return Result(params, layout, folder)


def in_order(params: Params) -> Iterator[tuple[str, str, Entry]]:
    """Yield (family, name, entry) of every assessment, those that others build on before these."""
    by_name = {name: (of, name, entry) for of, name, entry in entries(params)}
    graph = {name: [reference.name for reference in entry.references()] for name, (_, _, entry) in by_name.items()}
    return (by_name[name] for name in TopologicalSorter(graph).static_order())


def resolved_directly(params: Params, family: str, name: str, entry: Entry) -> Resolved:
    """Return an entry as `resolve` writes it, with its defaults and its budget."""
    record = families()[family]
    block = dependencies.as_it_runs(family, entry, params).model_dump(mode="json", exclude={"visualisers"})
    inputs = {"model": params.model.model_dump(mode="json")}
    if record.generators:
        inputs["generators"] = params.generators.model_dump(mode="json")
    work = Work(entry=block, inputs=inputs, seed=params.seed, device=params.device)
    return Resolved(stage=record.stage, family=family, name=name, work=work)
