"""The report as one self-contained HTML file: works from file://, asks for nothing from the network.

Every string is escaped; the samples travel as JSON and become text nodes; a content security policy lets no script run
but ours, and nothing be fetched.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from windtunnel.assessments.figures.pictures import data_uri
from windtunnel.assessments.figures.plots import HALF
from windtunnel.assessments.figures.scene import PALETTE
from windtunnel.core.markdown import with_code
from windtunnel.records.files import replacing
from windtunnel.reporting.report.model import ReportContent, SampleAppendix


def render_html(report: ReportContent, path: Path) -> None:
    """Write `report` as HTML."""
    environment = Environment(
        loader=PackageLoader("windtunnel.reporting.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "code": _code,
        "data_uri": data_uri,
        "kind": lambda value: type(value).__name__,
        "paint": lambda colour: f"var(--{colour})" if colour in PALETTE else colour,
        "points": lambda points: " ".join(f"{_round(x)},{_round(y)}" for x, y in points),
        "r": _round,
    }
    script, css = (_template(environment, f"report.{kind}") for kind in ("js", "css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("report.html").render(
        report=report,
        palette=PALETTE,
        half=HALF,
        css=Markup(css),  # our own files: nothing of a run is in them
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        samples=_samples(report.samples) if report.samples else None,
    )
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _code(text: str) -> Markup:
    """Return text with what stands between backticks as <code>; all of it is escaped."""
    tagged = (Markup("<code>{}</code>").format(part) if is_code else escape(part) for part, is_code in with_code(text))
    return Markup("").join(tagged)


def _template(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _round(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _samples(samples: SampleAppendix) -> dict[str, object]:
    """Return the data for report.js: each text once in `words`, the cells as numbers of words."""
    word_index: dict[str, int] = {}

    def coded(texts: Sequence[str]) -> list[int]:
        return [word_index.setdefault(text, len(word_index)) for text in texts]

    return {
        "rows": [coded(row[:-1]) for row in samples.rows],
        "results": [[coded(result) if result else 0 for result in row.results] for row in samples.rows],
        "words": list(word_index),
        "assessments": samples.assessments,
        "sprites": [
            {"source": s.source, "tile": s.tile, "columns": s.columns, "slots": s.slots} for s in samples.sprites
        ],
    }
