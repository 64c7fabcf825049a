"""The model without any perturbation: accuracy, per class, confusion, calibration."""

from __future__ import annotations

from windtunnel.core.artifacts import Artifacts
from windtunnel.params.outcome import Report as Options
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.model import Section, Table
from windtunnel.reporting.report.sections.assessment import caveat_blocks, figure_blocks
from windtunnel.reporting.report.words import number, percent


def clean_section(clean: Artifacts, found: Found, options: Options) -> Section:
    """The section `Clean performance`."""
    metrics = clean.metrics
    rows = [("accuracy", percent(metrics, "clean_accuracy")), ("samples", str(len(clean.sample_names)))]
    for words, key, form in (
        ("negative log-likelihood", "nll", "{:.4f} nats"),
        ("expected calibration error", "ece", "{:.4f}"),
        ("mean confidence", "mean_confidence", "{:.1%}"),
    ):
        if key in metrics:
            rows.append((words, form.format(number(metrics, key))))
    table = Table("The model without any perturbation", ("measure", "value"), tuple(rows))
    return Section("Clean performance", (*caveat_blocks(clean), table, *figure_blocks(clean, found, options)))
