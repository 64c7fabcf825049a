"""The one way an assessment goes from params.yaml to artifacts on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.assessments.catalogue import visualisers_of
from windtunnel.core.errors import UserError, unknown_word, user_errors
from windtunnel.core.layout import CLEAN, DATA, MODEL, PLOTS, ROBUSTNESS
from windtunnel.core.plugins import family_of
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries, load_params

if TYPE_CHECKING:
    from windtunnel.assessments.figures.base import Visualiser
    from windtunnel.core.artifacts import Artifacts, AssessmentResult
    from windtunnel.core.subject import Subject
    from windtunnel.params.schema import Params


@dataclass(frozen=True, slots=True)
class Job:
    """One entry of params.yaml, ready to run: everything that can be refused was checked.

    subject: the model and the samples the entry asks for. visualisers: the figures it wants. directory: where its
    artifacts go. started: time.time() at its start.
    """

    family: str
    name: str
    entry: Entry
    params: Params
    subject: Subject
    visualisers: Sequence[Visualiser]
    directory: Path
    started: float

    @property
    def where(self) -> str:
        """The entry's key, for messages."""
        return f"{self.family}.{self.name}"


def run_assessment(family: str, name: str) -> Artifacts:
    """Run one entry of params.yaml, from its preflight to its figures and its series for `dvc plots`."""
    job, record = prepare(family, name), family_of(family)
    result = record.assess()(name=name, entry=job.entry, subject=job.subject, **record.context()(job))
    artifacts = keep(job, result)
    if record.series:
        record.series()(artifacts, PLOTS / record.stage / f"{name}.csv")
    return artifacts


def prepare(family: str, name: str) -> Job:
    """The entry and the samples it asks for. Raises UserError or IncompatibleError for what cannot run."""
    started, params = time.time(), load_params()
    entry, subject = entry_of(params, family, name), load_subject(params)
    visualisers = visualisers_of(family, name, entry)
    family_of(family).preflight()(f"{family}.{name}", entry, params.budget, subject.classifier, subject.dataset)
    seed = params.seed if entry.samples.seed is None else entry.samples.seed
    chosen = subject.choose(entry.samples.n, entry.samples.selection, seed)
    return Job(family, name, entry, params, chosen, visualisers, ROBUSTNESS / name, started)


def keep(job: Job, result: AssessmentResult) -> Artifacts:
    """Write the artifacts of a finished assessment and draw its figures."""
    from windtunnel.assessments.figures.base import draw_figures
    from windtunnel.core.artifacts import write_artifacts

    dataset, samples = job.subject.dataset, job.entry.samples
    selection = {"n": len(dataset), **samples.model_dump(exclude_none=True, exclude={"n"})}
    semantics = replace(result.semantics, sample_selection=selection, input_metadata=dataset.metadata)
    result = replace(result, family=job.family, semantics=semantics)
    artifacts = write_artifacts(result, job.directory, job.subject, started=job.started)
    draw_figures(artifacts, job.visualisers)
    return artifacts


def only_the_budget(job: Job) -> dict[str, object]:
    """The context of a family that builds on no other entry's result."""
    return {"budget": job.params.budget}


def load_subject(params: Params) -> Subject:
    """The model and the samples under assessment, with the clean logits that `clean` computed."""
    from windtunnel.assessments.clean.subject import load_subject as load

    return load(DATA, MODEL, CLEAN, params.device, params.seed)


def entry_of(params: Params, family: str, name: str) -> Entry:
    """The entry `name` of a family. Raises UserError, with the nearest name, where there is none."""
    known = {n: entry for f, n, entry in entries(params) if f == family}
    if name not in known:
        raise UserError(unknown_word(family, name, known, what="an entry of params.yaml"))
    return known[name]


def stage_main(family: str) -> Artifacts:
    """`python -m stages.<stage> NAME`: the body of a stage that runs one entry of a family."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m stages.<stage> NAME, the name of an entry of {family}")
    with user_errors():
        return run_assessment(family, sys.argv[1])
