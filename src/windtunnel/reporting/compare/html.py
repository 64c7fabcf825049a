"""A comparison as one self-contained HTML file, with the pictures of what flipped."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from windtunnel.core.files import replacing
from windtunnel.reporting.compare.comparison import Comparison
from windtunnel.reporting.compare.document import document, title
from windtunnel.reporting.compare.pictures import flipped


def render_html(comparison: Comparison, path: Path) -> None:
    """Write `comparison` as HTML; every string is escaped, every picture is inside the file."""
    environment = Environment(
        loader=PackageLoader("windtunnel.reporting.compare"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    first = comparison.runs[0].label
    pictures = [
        (against.run.label, [f for pair in against.pairs for f in flipped(pair, first, against.run.label)])
        for against in comparison.against
    ]
    page = environment.get_template("compare.html").render(
        title=title(comparison), parts=document(comparison), pictures=pictures
    )
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
