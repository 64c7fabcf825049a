"""Stage `clean`: the model without any perturbation."""

import time
from dataclasses import replace
from functools import partial

from windtunnel.assessments.clean.assess import assess_clean, write_clean_series
from windtunnel.assessments.clean.subject import fresh_subject
from windtunnel.assessments.run import draw_resolved, model_in
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Storage
from windtunnel.params.resolved import read_resolved
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import Artifacts, Draw, no_figures, write_artifacts
from windtunnel.records.digests import write_digests
from windtunnel.records.layout import CLEAN, DATA, HERE, MODEL, Layout
from windtunnel.records.storage import keep_images


def main() -> None:
    """Write reports/robustness/clean and the series of its plots."""
    started, resolved = time.time(), read_resolved("clean")
    work = resolved.work
    subject = replace(
        fresh_subject(DATA, MODEL, work.device, resolved.seed, trust_of(model_in(resolved))), resolved=resolved.digest
    )
    draw = partial(draw_resolved, resolved.drawing.figures)
    storage = Storage.model_validate(work.entry["storage"])
    write_clean(Clean.model_validate(work.entry["clean"]), storage, subject, HERE, started, draw)
    write_digests(CLEAN)


def write_clean(
    settings: Clean, storage: Storage, subject: Subject, layout: Layout, started: float, draw: Draw = no_figures
) -> Artifacts:
    """Assess the model without perturbation, and write the files for the report and `dvc plots`."""
    result = keep_images(assess_clean(settings, subject), storage.inputs)
    artifacts = write_artifacts(result, layout.clean, subject, started=started, draw=draw)
    write_clean_series(artifacts, subject.dataset.class_names, layout.plots / "clean")
    return artifacts
