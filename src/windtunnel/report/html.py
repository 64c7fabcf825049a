"""The report as one self-contained HTML file: works from file://, asks for nothing from the network."""

from __future__ import annotations

import base64
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from windtunnel.report.model import Report


def render_html(report: Report, path: Path) -> None:
    """Write `report` as HTML; every string is escaped, every picture is inside the file."""
    environment = Environment(
        loader=PackageLoader("windtunnel.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["data_uri"] = _data_uri
    environment.filters["slug"] = _slug
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(environment.get_template("report.html").render(report=report), encoding="utf-8")


def _data_uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())
