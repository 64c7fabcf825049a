"""Stage `clean`: the model without any perturbation."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.clean.series import write_clean_series
from windtunnel.assessments.clean.subject import fresh_subject
from windtunnel.assessments.run import draw_resolved, model_in
from windtunnel.core.artifacts import write_artifacts
from windtunnel.core.digests import write_digests
from windtunnel.core.layout import CLEAN, DATA, MODEL, PLOTS
from windtunnel.inputs.models.trust import trust_of
from windtunnel.params.outcome import Clean
from windtunnel.params.resolved import read_resolved


def main() -> None:
    """Write reports/robustness/clean and the series of its plots."""
    started, resolved = time.time(), read_resolved("clean")
    work = resolved.work
    subject = replace(
        fresh_subject(DATA, MODEL, work.device, resolved.seed, trust_of(model_in(resolved))), resolved=resolved.digest
    )
    result = assess_clean(Clean.model_validate(work.entry["clean"]), subject)
    draw = partial(draw_resolved, resolved.drawing.figures)
    artifacts = write_artifacts(result, CLEAN, subject, started=started, draw=draw)
    write_digests(CLEAN)
    write_clean_series(artifacts, subject.dataset.class_names, PLOTS / "clean")
