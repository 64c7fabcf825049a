"""Stage `sanity`: whether the numbers of the assessments should be believed."""

from __future__ import annotations

import time
from dataclasses import replace

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.core.artifacts import read_artifacts, write_artifacts
from windtunnel.core.layout import CLEAN, DATA, ROBUSTNESS, SANITY
from windtunnel.evaluation.sanity.assess import assess
from windtunnel.evaluation.sanity.evidence import collect
from windtunnel.inputs.data.load import read_train
from windtunnel.params.load import load_params
from windtunnel.params.resolved import read_resolved


def main() -> None:
    """Read every assessment that params.yaml names, and write reports/sanity."""
    started, params = time.time(), load_params()
    subject = replace(
        current_subject(params.device, params.seed, params.model), resolved=read_resolved("sanity").digest
    )
    evidence = collect(params, subject, read_artifacts(CLEAN), ROBUSTNESS, read_train(DATA))
    write_artifacts(assess(evidence, params.sanity), SANITY, evidence.subject, started=started)
