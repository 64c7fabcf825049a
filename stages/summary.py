"""Stage `summary`: the sandwich, the worst case per sample, and the headline metrics."""

from __future__ import annotations

import time

from windtunnel.core.artifacts import read_artifacts, write_artifacts
from windtunnel.core.contracts import PerturbationBudget
from windtunnel.core.files import METADATA_FILE, read_json, write_json
from windtunnel.core.outcomes import OUTCOMES_FILE, write_record
from windtunnel.params.load import entries, load_params
from windtunnel.summary.headline import headline_metrics, write_series
from windtunnel.summary.outcomes import record_outcomes
from windtunnel.summary.summarise import summarise
from windtunnel.visualisers.base import draw_figures
from windtunnel.visualisers.sandwich import SandwichVisualiser
from windtunnel.workspace import CLEAN, METRICS, PLOTS, ROBUSTNESS, SANITY, SUMMARY, load_subject, user_errors


def main() -> None:
    """Read every assessment that params.yaml names, and write reports/summary, metrics.json and the plots' series."""
    started, params = time.time(), load_params()
    subject, clean = load_subject(params), read_artifacts(CLEAN)
    assessments = [read_artifacts(ROBUSTNESS / name) for _, name, _ in entries(params)]
    sanity = read_json(SANITY / METADATA_FILE) if (SANITY / METADATA_FILE).is_file() else None
    budget = PerturbationBudget(params.budget.norm, params.budget.epsilon)
    result = summarise(subject, budget, clean, assessments, sanity if isinstance(sanity, dict) else None)
    summary = write_artifacts(result, SUMMARY, subject, started=started)
    draw_figures(summary, [SandwichVisualiser()])
    write_json(headline_metrics(summary, clean, assessments), METRICS)
    write_record(record_outcomes(params, summary, clean, assessments), SUMMARY / OUTCOMES_FILE)
    write_series(summary, assessments, PLOTS / "summary")


if __name__ == "__main__":
    with user_errors():
        main()
