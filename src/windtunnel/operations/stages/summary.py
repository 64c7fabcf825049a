"""Stage `summary`: the sandwich, the worst case per sample, and the headline metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.assessments.figures.base import drawn
from windtunnel.assessments.queries.figures import SuccessCurvesVisualiser
from windtunnel.core.artifacts import Artifacts, read_artifacts, write_artifacts
from windtunnel.core.contracts import PerturbationBudget
from windtunnel.core.files import write_json
from windtunnel.core.layout import CLEAN, METRICS, PLOTS, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.core.metadata import FigureRecord
from windtunnel.core.outcomes import OUTCOMES_FILE, write_record
from windtunnel.evaluation.sanity.findings import read_sanity
from windtunnel.evaluation.summary.headline import headline_metrics, write_series
from windtunnel.evaluation.summary.outcomes import record_outcomes
from windtunnel.evaluation.summary.sandwich_figure import SandwichVisualiser
from windtunnel.evaluation.summary.security_figure import SecurityCurvesVisualiser
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.params.load import entries, load_params


def main() -> None:
    """Read every assessment that params.yaml names, and write reports/summary, metrics.json and the plots' series."""
    started, params = time.time(), load_params()
    subject, clean = current_subject(params.device, params.seed, params.model), read_artifacts(CLEAN)
    assessments = [read_artifacts(ROBUSTNESS / name, run_times=False) for _, name, _ in entries(params)]
    budget = PerturbationBudget(params.budget.norm, params.budget.epsilon)
    result = summarise(subject, budget, clean, assessments, read_sanity(SANITY))
    summary = write_artifacts(result, SUMMARY, subject, started=started, draw=partial(_draw, assessments))
    write_json(headline_metrics(summary, clean, assessments), METRICS)
    write_record(record_outcomes(params, summary, clean, assessments), SUMMARY / OUTCOMES_FILE)
    write_series(summary, assessments, PLOTS / "summary")


def _draw(assessments: Sequence[Artifacts], summary: Artifacts) -> Sequence[FigureRecord]:
    counted = tuple(a for a in assessments if "success_rate_curve" in a.metrics)
    figures = [SandwichVisualiser(), SecurityCurvesVisualiser(tuple(assessments))]
    return drawn(summary, [*figures, *([SuccessCurvesVisualiser(counted)] if counted else [])])
