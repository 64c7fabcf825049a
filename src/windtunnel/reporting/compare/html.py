"""A comparison as one self-contained HTML file, in the style of the report."""

from __future__ import annotations

from pathlib import Path

from windtunnel.assessments.figures.pictures import pictures_as
from windtunnel.reporting.compare.comparison import Comparison
from windtunnel.reporting.compare.page import page
from windtunnel.reporting.report.html import render_html as render


def render_html(comparison: Comparison, path: Path) -> None:
    """Write `comparison` as HTML; every string is escaped, every picture is inside the file."""
    with pictures_as(run.pictures for run in comparison.runs):
        render(page(comparison), path)
