"""Stage `sanity`: whether the numbers of the assessments should be believed."""

from __future__ import annotations

import time
from dataclasses import replace

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.boundary.data.load import read_train
from windtunnel.boundary.params import load_params
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.assess import assess
from windtunnel.evaluation.sanity.evidence import collect
from windtunnel.params.resolved import read_resolved
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, read_artifacts, write_artifacts
from windtunnel.records.layout import DATA, HERE, Layout
from windtunnel.records.storage import keep_images


def main() -> None:
    """Read every assessment that params.yaml names, and write reports/sanity."""
    started, params = time.time(), load_params()
    subject = replace(
        current_subject(params.device, params.seed, params.model), resolved=read_resolved("sanity").digest
    )
    write_sanity(params, subject, HERE, started, read_train(DATA))


def write_sanity(params: Params, subject: Subject, place: Layout, started: float, train: Dataset | None) -> Artifacts:
    """Check what lies in `place`. `train`: the training split, where it is known."""
    evidence = collect(params, subject, read_artifacts(place.clean), place.robustness, train)
    result = keep_images(assess(evidence, params.sanity), params.storage.inputs)
    return write_artifacts(result, place.sanity, evidence.subject, started=started)
