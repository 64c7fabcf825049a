"""Stage `clean`: the model without any perturbation."""

from __future__ import annotations

import time

import windtunnel.assessments.clean.figures  # noqa: F401  registers them
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.clean.series import write_clean_series
from windtunnel.assessments.clean.subject import fresh_subject
from windtunnel.assessments.clean.table import VISUALISERS
from windtunnel.assessments.figures.base import draw_figures, make_visualiser
from windtunnel.core.artifacts import write_artifacts
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.endings import user_errors
from windtunnel.core.layout import CLEAN, DATA, MODEL, PLOTS
from windtunnel.inputs.models.trust import trust_of
from windtunnel.params.load import load_params


def main() -> None:
    """Write reports/robustness/clean and the series of its plots."""
    started, params = time.time(), load_params()
    subject = fresh_subject(DATA, MODEL, params.device, params.seed, trust_of(params.model))
    artifacts = write_artifacts(assess_clean(params.clean, subject), CLEAN, subject, started=started)
    draw_figures(
        artifacts,
        [make_visualiser(name, AssessmentKind.STATISTICAL_SAMPLING, "clean", "clean") for name in VISUALISERS],
    )
    write_clean_series(artifacts, subject.dataset.class_names, PLOTS / "clean")


if __name__ == "__main__":
    with user_errors():
        main()
