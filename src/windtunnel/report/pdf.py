"""The report as PDF by reportlab: vector sandwich, links, bookmarks, page numbers, embedded fonts, equal bytes for equal reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib
from reportlab.graphics.shapes import Drawing, Rect, String
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    Image,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
    TableStyle,
)
from reportlab.platypus import Table as PdfTable
from reportlab.platypus.tableofcontents import TableOfContents

from windtunnel.report.model import Figure, Finding, Layer, Report, Section, Table

_WIDTH = A4[0] - 40 * mm
_INK, _SOFT, _LINE, _CARD = (colors.HexColor(c) for c in ("#1c2430", "#5b6675", "#d9dee5", "#f2f5f8"))
_SHARES = (("certified", "#009e73", "proved"), ("unknown", "#8a8f98", "not known"), ("broken", "#d55e00", "broken by an attack"),
           ("misclassified", "#3b3b3b", "misclassified without any attack"))  # fmt: skip
_EDGE = {
    "invalid": colors.HexColor("#c1121f"),
    "warning": colors.HexColor("#e69f00"),
    "info": colors.HexColor("#0072b2"),
}
_FONT, _BOLD = "DejaVuSans", "DejaVuSans-Bold"


def render_pdf(report: Report, path: Path) -> None:
    """Write `report` as PDF."""
    _register_fonts()
    document = _Document(str(path), report)
    path.parent.mkdir(parents=True, exist_ok=True)
    document.multiBuild(_story(report), canvasmaker=_canvas)


def _canvas(*args: object, **kwargs: object) -> Canvas:
    # invariant: no time and no random id in the file, so that equal reports are equal bytes.
    return Canvas(*args, **{**kwargs, "invariant": 1})


def _register_fonts() -> None:
    # matplotlib ships DejaVu: it has ≤ and every letter of a user's class names that Helvetica lacks.
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in (_FONT, _BOLD):
        if name not in pdfmetrics.getRegisteredFontNames():
            pdfmetrics.registerFont(TTFont(name, str(folder / f"{name}.ttf")))
    pdfmetrics.registerFontFamily(_FONT, normal=_FONT, bold=_BOLD, italic=_FONT, boldItalic=_BOLD)


def _style(name: str, size: float, **more: object) -> ParagraphStyle:
    return ParagraphStyle(name, fontName=_FONT, fontSize=size, leading=size * 1.42, textColor=_INK, **more)


_TITLE = _style("title", 24, spaceAfter=4)
_SUB = ParagraphStyle("sub", parent=_style("s", 11), textColor=_SOFT, spaceAfter=12)
_H1 = _style("h1", 15, spaceBefore=16, spaceAfter=6, keepWithNext=1)
_BODY = _style("body", 9.5, spaceAfter=6)
_VERDICT = _style("verdict", 11.5, spaceAfter=10, backColor=_CARD, borderPadding=8, spaceBefore=6)
_CELL = _style("cell", 7.8, wordWrap="CJK")
_CAPTION = ParagraphStyle("caption", parent=_style("c", 8), textColor=_SOFT, spaceAfter=8)


class _Document(BaseDocTemplate):  # type: ignore[misc]  # reportlab is untyped
    def __init__(self, path: str, report: Report) -> None:
        super().__init__(
            path, pagesize=A4, leftMargin=20 * mm, rightMargin=20 * mm, topMargin=18 * mm, bottomMargin=18 * mm,
            title=report.title, author="windtunnel", subject=report.subtitle, lang="en",
        )  # fmt: skip
        frame = Frame(self.leftMargin, self.bottomMargin, self.width, self.height, id="page")
        self.addPageTemplates(PageTemplate(id="page", frames=[frame], onPage=self._footer))
        self._report = report

    def _footer(self, canvas: Canvas, document: BaseDocTemplate) -> None:
        canvas.setFont(_FONT, 8)
        canvas.setFillColor(_SOFT)
        canvas.drawString(20 * mm, 10 * mm, self._report.title[:80])
        canvas.drawRightString(A4[0] - 20 * mm, 10 * mm, f"page {document.page}")

    def afterFlowable(self, flowable: Flowable) -> None:
        """Enter headings into the table of contents and the bookmarks."""
        if isinstance(flowable, Paragraph) and flowable.style is _H1:
            text = flowable.getPlainText()
            key = f"section-{self.seq.nextf('section')}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(text, key, 0)
            self.notify("TOCEntry", (0, escape(text), self.page, key))


def _story(report: Report) -> list[Flowable]:
    invalid = [f for f in report.findings if f.severity == "invalid"]
    others = [f for f in report.findings if f.severity != "invalid"]
    contents = TableOfContents()
    contents.levelStyles = [_style("toc", 10, spaceAfter=3)]
    story: list[Flowable] = [Paragraph(escape(report.title), _TITLE), Paragraph(escape(report.subtitle), _SUB)]
    story += [_finding(f) for f in invalid]
    story.append(Paragraph(escape(report.verdict), _VERDICT))
    if report.layers:
        story += [_sandwich(report.layers), Spacer(1, 6)]
    story += [_finding(f) for f in others]
    story += [PageBreak(), Paragraph("Contents", _style("contents", 15, spaceAfter=6)), contents, PageBreak()]
    for section in report.sections:
        story += _section(section)
    if report.samples:
        rows = tuple((r.name, r.target, r.clean, r.status, r.decided_by, r.distance) for r in report.samples)
        header = ("sample", "target", "clean", "status at the budget", "decided by", "distance")
        story += [Paragraph("Every sample", _H1), *_table(Table(report.samples_note, header, rows))]
    story.append(Paragraph("Glossary", _H1))
    story += [Paragraph(f"<b>{escape(word)}</b>: {escape(meaning)}", _BODY) for word, meaning in report.glossary]
    return story


def _section(section: Section) -> list[Flowable]:
    story: list[Flowable] = [Paragraph(escape(section.title), _H1)]
    story += [_finding(f) for f in section.findings]
    story += [Paragraph(escape(text), _BODY) for text in section.paragraphs]
    for table in section.tables:
        story += _table(table)
    for figure in section.figures:
        story += _figure(figure)
    return story


def _finding(finding: Finding) -> Flowable:
    text = f"<b>{escape(finding.text)}</b>" if finding.severity == "invalid" else escape(finding.text)
    box = PdfTable([[Paragraph(text, _BODY)]], colWidths=[_WIDTH], spaceAfter=4)
    box.setStyle(
        TableStyle(
            [("LINEBEFORE", (0, 0), (0, -1), 3, _EDGE[finding.severity]), ("BACKGROUND", (0, 0), (-1, -1), _CARD)]
        )
    )
    return box


def _table(table: Table) -> list[Flowable]:
    if not table.rows:
        return []
    cells = [[Paragraph(f"<b>{escape(c)}</b>", _CELL) for c in table.header]]
    cells += [[Paragraph(escape(c), _CELL) for c in row] for row in table.rows]
    drawn = PdfTable(cells, colWidths=_column_widths(table), repeatRows=1)
    drawn.setStyle(TableStyle([
        ("LINEBELOW", (0, 0), (-1, -1), 0.4, _LINE), ("BACKGROUND", (0, 0), (-1, 0), _CARD), ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("TOPPADDING", (0, 0), (-1, -1), 2), ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
    ]))  # fmt: skip
    return [Spacer(1, 4), drawn, Paragraph(escape(table.caption), _CAPTION)]


def _column_widths(table: Table) -> list[float]:
    """Widths in proportion to the longest words of a column, none narrower than its share of a third."""
    longest = [min(42, max(len(row[i]) for row in (table.header, *table.rows))) + 3 for i in range(len(table.header))]
    floor = sum(longest) / (3 * len(longest))
    weights = [max(length, floor) for length in longest]
    return [_WIDTH * weight / sum(weights) for weight in weights]


def _figure(figure: Figure) -> list[Flowable]:
    width, height = ImageReader(str(figure.path)).getSize()
    scale = min(_WIDTH / width, 110 * mm / height, 0.5)
    return [Image(str(figure.path), width * scale, height * scale), Paragraph(escape(figure.caption), _CAPTION)]


def _sandwich(layers: Sequence[Layer]) -> Drawing:
    step, bar = 26, 17
    drawing = Drawing(_WIDTH, step * len(layers) + 30)
    left, width = 92.0, _WIDTH - 92
    for i, layer in enumerate(layers):
        y, x = step * (len(layers) - i), left
        drawing.add(String(0, y + 5, layer.budget, fontName=_FONT, fontSize=8.5, fillColor=_INK))
        for key, colour, _ in _SHARES:
            share: float = getattr(layer, key)
            drawing.add(
                Rect(
                    x,
                    y,
                    width * share,
                    bar,
                    fillColor=colors.HexColor(colour),
                    strokeColor=colors.white,
                    strokeWidth=0.5,
                )
            )
            if share > 0.06:
                drawing.add(
                    String(
                        x + width * share / 2,
                        y + 5,
                        f"{share:.0%}",
                        fontName=_BOLD,
                        fontSize=8,
                        fillColor=colors.white,
                        textAnchor="middle",
                    )
                )
            x += width * share
    x = 0.0
    for _, colour, label in _SHARES:
        drawing.add(Rect(x, 4, 8, 8, fillColor=colors.HexColor(colour), strokeColor=None))
        drawing.add(String(x + 11, 5, label, fontName=_FONT, fontSize=7.5, fillColor=_SOFT))
        x += 22 + 4.4 * len(label)
    return drawing
