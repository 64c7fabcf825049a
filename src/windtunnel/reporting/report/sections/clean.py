"""Describe the model on clean inputs: accuracy, calibration, confusion."""

from __future__ import annotations

from functools import partial

from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Section, Table, Text, guarded
from windtunnel.reporting.report.phrases import number, percent
from windtunnel.reporting.report.sections.assessment import assessment_section, caveat_blocks, essential_blocks

CLEAN = "How accurate is it on clean inputs?"


def clean_section(clean: Artifacts, inputs: ReportInputs, options: Options) -> Section:
    """The section of the clean evaluation."""
    metrics = clean.metrics
    cells = [("accuracy", percent(metrics, "clean_accuracy")), ("samples", str(len(clean.sample_names)))]
    for title, key, form in (
        ("negative log-likelihood", "nll", "{:.4f} nats"),
        ("expected calibration error", "ece", "{:.4f}"),
        ("adaptive ECE", "adaptive_ece", "{:.4f}"),
        ("Brier score", "brier", "{:.4f}"),
        ("mean confidence", "mean_confidence", "{:.1%}"),
        ("macro F1", "f1_macro", "{:.4f}"),
        ("AUROC", "auroc", "{:.4f}"),
    ):
        if key in metrics:
            cells.append((title, form.format(number(metrics, key))))
    header, row = zip(*cells, strict=True)
    table = Table("The model on its clean samples", header, (row,))
    explained = Text("Expected calibration error: the mean gap between confidence and accuracy; 0 is perfect.")
    blocks = (*caveat_blocks(clean), table, explained, *essential_blocks(clean, inputs))
    return Section(CLEAN, blocks, (guarded("clean", partial(assessment_section, clean, inputs, options)),))
