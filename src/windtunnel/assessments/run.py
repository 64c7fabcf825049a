"""The one way an assessment goes from params.yaml to artifacts on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.assessments.catalogue import visualisers_of
from windtunnel.core.endings import user_errors
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.layout import CLEAN, DATA, MODEL, ROBUSTNESS
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries, load_params

if TYPE_CHECKING:
    from windtunnel.core.artifacts import Artifacts, AssessmentResult
    from windtunnel.core.subject import Subject
    from windtunnel.params.schema import Params


def load_subject(params: Params) -> Subject:
    """The model and the samples under assessment, with the clean logits that `clean` computed."""
    from windtunnel.assessments.clean.subject import load_subject as load
    from windtunnel.inputs.models.trust import trust_of

    return load(DATA, MODEL, CLEAN, params.device, params.seed, trust_of(params.model))


def entry_of(params: Params, family: str, name: str) -> Entry:
    """The entry `name` of a family. Raises UserError, with the nearest name, where there is none."""
    known = {n: entry for f, n, entry in entries(params) if f == family}
    if name not in known:
        raise UserError(unknown_word(family, name, known, what="an entry of params.yaml"))
    return known[name]


def prepare_entry(params: Params, family: str, name: str) -> tuple[Entry, Subject]:
    """The entry and the samples it asks for, after everything that can be refused was checked."""
    entry, subject = entry_of(params, family, name), load_subject(params)
    where = f"{family}.{name}"
    visualisers_of(family, name, entry)  # a slip is refused before hours are spent
    preflight = import_module(f"windtunnel.assessments.{family}.preflight").preflight
    preflight(where, entry, params.budget, subject.classifier, subject.dataset)
    seed = params.seed if entry.samples.seed is None else entry.samples.seed
    return entry, subject.choose(entry.samples.n, entry.samples.selection, seed)


def finish(
    params: Params,
    family: str,
    result: AssessmentResult,
    subject: Subject,
    started: float,
    directory: Path | None = None,
) -> Artifacts:
    """Write an assessment's artifacts and draw its figures. `directory` where it is not reports/robustness/<name>."""
    from windtunnel.assessments.figures.base import draw_figures
    from windtunnel.core.artifacts import write_artifacts

    entry = entry_of(params, family, result.name)
    result = replace(result, kwargs={**result.kwargs, "show_sample_names": entry.show_sample_names})
    artifacts = write_artifacts(result, directory or ROBUSTNESS / result.name, subject, started=started)
    draw_figures(artifacts, visualisers_of(family, result.name, entry))
    return artifacts


def run_assessment(family: str, name: str) -> Artifacts:
    """Run one entry of params.yaml, from its preflight to its figures."""
    started = time.time()
    params = load_params()
    entry, subject = prepare_entry(params, family, name)
    assess: Callable[..., AssessmentResult] = import_module(f"windtunnel.assessments.{family}.assess").assess
    return finish(params, family, assess(name, entry, params.budget, subject), subject, started)


def stage_main(family: str) -> None:
    """`python -m stages.<stage> NAME`: the body of a stage that runs one entry of a family."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m stages.<stage> NAME, the name of an entry of {family}")
    with user_errors():
        run_assessment(family, sys.argv[1])
