"""Stage `report`: PDF and HTML from the artifacts of the assessments that params.yaml names."""

from __future__ import annotations

from windtunnel.core.errors import user_errors
from windtunnel.core.layout import REPORTS
from windtunnel.params.load import entries, load_params
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.pdf import render_pdf


def main() -> None:
    """Write reports/report.pdf and reports/report.html."""
    params = load_params()
    # The gate comes after the report; `windtunnel report` shows its verdict too.
    report = build_report(REPORTS, params.report, [name for _, name, _ in entries(params)], gate=False)
    render_pdf(report, REPORTS / "report.pdf")
    render_html(report, REPORTS / "report.html")


if __name__ == "__main__":
    with user_errors():
        main()
