"""Stage `report`: PDF, HTML and their content as data, from the artifacts of the assessments that params.yaml names."""

import time

from windtunnel.params.resolved import read_resolved
from windtunnel.params.results import ReportEntry
from windtunnel.records.layout import REPORT, REPORTS
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.pdf import render_pdf
from windtunnel.reporting.report.record import write_record


def main() -> None:
    """Write reports/report.pdf, reports/report.html and reports/report."""
    started, entry = time.time(), ReportEntry.model_validate(read_resolved("report").work.entry)
    names = [*entry.assessments]
    report = build_report(REPORTS, entry.report, names)
    files = REPORTS / "report.pdf", REPORTS / "report.html"
    for render, file in zip((render_pdf, render_html), files, strict=True):
        render(report, file)
    write_record(REPORTS, names, files, REPORT, started=started)
