"""Stage `summary`: the sandwich, the worst case per sample, and the headline metrics."""

import time
from collections.abc import Sequence
from functools import partial

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.assessments.figures.base import save_figures
from windtunnel.assessments.queries.figures import SuccessCurvesVisualiser
from windtunnel.boundary.data.slices import read_slices
from windtunnel.boundary.params import load_params
from windtunnel.core.contracts import PerturbationBudget
from windtunnel.core.subject import Subject
from windtunnel.evaluation.summary.headline import headline_metrics, write_series
from windtunnel.evaluation.summary.outcomes import record_outcomes
from windtunnel.evaluation.summary.reproducibility import decisions_of_seed
from windtunnel.evaluation.summary.sandwich_figure import SandwichVisualiser
from windtunnel.evaluation.summary.security import security_curves, write_curves
from windtunnel.evaluation.summary.security_figure import SecurityCurvesVisualiser
from windtunnel.evaluation.summary.summarise import summarise, with_failed_entries
from windtunnel.params.load import budget_names, entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, read_artifacts, write_artifacts
from windtunnel.records.files import write_json
from windtunnel.records.findings import read_findings
from windtunnel.records.gate import OUTCOMES_FILE, write_record
from windtunnel.records.layout import HERE, Layout
from windtunnel.records.metadata import FigureRecord
from windtunnel.records.storage import keep_images


def main() -> None:
    """Read every assessment that params.yaml names, and write reports/summary, metrics.json and the plots' series."""
    started, params = time.time(), load_params()
    write_summary(params, current_subject(params.device, params.seed, params.model), HERE, started)


def write_summary(params: Params, subject: Subject, layout: Layout, started: float) -> Artifacts:
    """Sum up what lies in `layout`: the sandwich, the headline metrics, the outcomes per sample and the plots' series."""
    clean = read_artifacts(layout.clean)
    entries_read = [
        (family, read_artifacts(layout.robustness / n, run_times=False)) for family, n, _ in entries(params)
    ]
    assessments = [artifacts for _, artifacts in entries_read if artifacts.metadata.failure is None]
    budget = PerturbationBudget(params.budget.norm, params.budget.epsilon)
    slices = read_slices(params.data.slices, subject.dataset) if params.data.slices else None
    findings, decided = read_findings(layout.sanity), decisions_of_seed(params)
    result = summarise(subject, budget, clean, assessments, findings, decided, slices, budget_names(params))
    result = with_failed_entries(result, entries_read)
    result = keep_images(result, params.storage.inputs)
    write_curves(security_curves(assessments), layout.summary)
    summary = write_artifacts(result, layout.summary, subject, started=started, draw=partial(_draw, assessments))
    write_json(headline_metrics(summary, clean, assessments), layout.metrics)
    write_record(record_outcomes(params, summary, clean, assessments), layout.summary / OUTCOMES_FILE)
    write_series(summary, assessments, layout.plots / "summary")
    return summary


def _draw(assessments: Sequence[Artifacts], summary: Artifacts) -> Sequence[FigureRecord]:
    counted = tuple(a for a in assessments if "success_rate_curve" in a.metrics)
    figures = [SandwichVisualiser(), SecurityCurvesVisualiser()]
    return save_figures(summary, [*figures, *([SuccessCurvesVisualiser(counted)] if counted else [])])
