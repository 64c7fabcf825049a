"""The report as PDF by reportlab: links, bookmarks, page numbers, embedded fonts, vectors; equal bytes for equal reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    CondPageBreak,
    Flowable,
    Frame,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
)
from reportlab.platypus import Table as PdfTable
from reportlab.platypus.tableofcontents import TableOfContents

from windtunnel.core.files import replacing
from windtunnel.reporting.report.model import Chart, Figure, PictureGrid, Report, Samples, Section, Table, Tile
from windtunnel.reporting.report.pdf_parts import (
    BODY,
    BOLD,
    FONT,
    WIDTH,
    block_parts,
    cells,
    chart_parts,
    colour,
    finding_part,
    register_fonts,
    style,
    table_parts,
)

MOST_SAMPLES = 1000  # rows of the appendix on paper; the HTML has every sample
_MARGIN = 18 * mm
_TITLE = style("title", 23, fontName=BOLD, leading=28, spaceAfter=2)
_SUB = style("sub", 10.5, "soft", spaceAfter=12)
_CONTENTS = style("contents", 15, fontName=BOLD, spaceAfter=8)
_H1 = style("h1", 15, fontName=BOLD, spaceBefore=18, spaceAfter=6, keepWithNext=1)
_H2 = style("h2", 11, fontName=BOLD, spaceBefore=12, spaceAfter=4, keepWithNext=1)
_HEAD = style("front", 11, fontName=BOLD, spaceBefore=8, spaceAfter=4, keepWithNext=1)
_VERDICT = style(
    "verdict", 10.5, backColor=colour("card"), borderPadding=(8, 8, 8, 10), spaceBefore=8, spaceAfter=14, leftIndent=4
)
_LABEL, _MEANING = style("tile", 8, "soft"), style("meaning", 7.4, "soft", leading=10)
_VALUE = style("value", 20, fontName=BOLD, leading=25)


def render_pdf(report: Report, path: Path) -> None:
    """Write `report` as PDF."""
    register_fonts()
    with replacing(path) as temporary:
        _Document(str(temporary), report).multiBuild(list(_story(report)), canvasmaker=_canvas)


def _canvas(*args: object, **kwargs: object) -> Canvas:
    # invariant: no time and no random id in the file, so that equal reports are equal bytes.
    canvas = Canvas(*args, **{**kwargs, "invariant": 1, "pageCompression": 1, "initialFontName": FONT})
    canvas.showOutline()
    canvas.setViewerPreference("DisplayDocTitle", "true")
    return canvas


class _Document(BaseDocTemplate):  # type: ignore[misc]  # reportlab is untyped
    def __init__(self, path: str, report: Report) -> None:
        super().__init__(
            path, pagesize=A4, leftMargin=_MARGIN, rightMargin=_MARGIN, topMargin=_MARGIN, bottomMargin=_MARGIN, title=report.title,
            author="windtunnel", subject=report.subtitle, keywords="robustness, adversarial examples, verification", lang="en",
        )  # fmt: skip
        frame = Frame(
            self.leftMargin, self.bottomMargin, self.width, self.height, id="page", leftPadding=0, rightPadding=0
        )
        self.addPageTemplates(PageTemplate(id="page", frames=[frame], onPage=self._footer))
        self._report = report

    def _footer(self, canvas: Canvas, document: BaseDocTemplate) -> None:
        canvas.setStrokeColor(colour("line"))
        canvas.line(_MARGIN, 13 * mm, A4[0] - _MARGIN, 13 * mm)
        canvas.setFont(FONT, 7.5)
        canvas.setFillColor(colour("soft"))
        canvas.drawString(_MARGIN, 9 * mm, f"{self._report.title}: {self._report.subtitle}"[:110])
        canvas.drawRightString(A4[0] - _MARGIN, 9 * mm, str(document.page))

    def afterFlowable(self, flowable: Flowable) -> None:
        """Enter headings into the table of contents and the bookmarks."""
        if isinstance(flowable, Paragraph) and flowable.style in (_H1, _H2):
            level, text = int(flowable.style is _H2), flowable.getPlainText()
            key = f"section-{self.seq.nextf('section')}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(text, key, level, closed=level == 0)
            self.notify("TOCEntry", (level, escape(text), self.page, key))


def _story(report: Report) -> Iterator[Flowable]:
    yield from _front(report)
    yield PageBreak()
    yield Paragraph("Contents", _CONTENTS)
    contents = TableOfContents(dotsMinLevel=1)
    contents.levelStyles = [style("toc1", 9.5, spaceBefore=5), style("toc2", 8.5, "soft", leftIndent=14)]
    contents.tableStyle = cells(0, 1, 0)
    yield contents
    yield PageBreak()
    for number, section in enumerate(report.sections, 1):
        yield from _section(section, f"{number}", _H1)
    last = len(report.sections) + 1
    if report.samples:
        yield Paragraph(f"{last}  Every sample", _H1)
        yield Paragraph(escape(report.samples.note), BODY)
        yield from table_parts(_samples(report.samples))
        last += 1
    yield Paragraph(f"{last}  Glossary", _H1)
    for word, meaning in report.glossary:
        yield Paragraph(f"<b>{escape(word)}</b>: {escape(meaning)}", BODY)


def _front(report: Report) -> Iterator[Flowable]:
    """Page one."""
    yield Paragraph(escape(report.title), _TITLE)
    yield Paragraph(escape(report.subtitle), _SUB)
    yield from map(finding_part, report.alarms)
    yield Paragraph(escape(report.verdict), _VERDICT)
    if report.tiles:
        yield _tiles(report.tiles)
        yield Spacer(1, 8)
    if report.sandwich:
        yield from chart_parts(report.sandwich)
    for title, found in (("What matters most", report.findings), ("What limits these numbers", report.caveats)):
        if found:
            yield Paragraph(title, _HEAD)
            yield from map(finding_part, found)


def _tiles(tiles: tuple[Tile, ...]) -> PdfTable:
    gap = 8.0
    width = (WIDTH - gap * (len(tiles) - 1)) / len(tiles)
    row: list[object] = []
    styles: list[tuple[object, ...]] = []
    for i, tile in enumerate(tiles):
        words = ((tile.label, _LABEL), (tile.value, _VALUE), (tile.interval, _MEANING), (tile.meaning, _MEANING))
        row += [*([""] if i else []), [Paragraph(escape(text), of) for text, of in words]]
        place = (2 * i, 0)
        styles += [("LINEABOVE", place, place, 3, colour(tile.role)), ("BACKGROUND", place, place, colour("card"))]
    drawn = PdfTable([row], colWidths=[width, *[w for _ in tiles[1:] for w in (gap, width)]])
    drawn.setStyle(cells(3, 4, 8, *styles))
    return drawn


def _section(section: Section, number: str, heading: object) -> Iterator[Flowable]:
    # No heading at the foot of a page, away from what it announces.
    drawn = any(isinstance(block, Chart | Figure | PictureGrid) for block in section.blocks[:3])
    yield CondPageBreak(95 * mm if drawn else 50 * mm)
    yield Paragraph(f"{number}  {escape(section.title)}", heading)
    for block in section.blocks:
        yield from block_parts(block)
    for i, child in enumerate(section.children, 1):
        yield from _section(child, f"{number}.{i}", _H2)


def _samples(samples: Samples) -> Table:
    rows = tuple((r.name, r.target, r.clean, r.status, r.decided_by, r.distance) for r in samples.rows[:MOST_SAMPLES])
    more = len(samples.rows) - len(rows)
    caption = (
        "Every sample"
        if not more
        else f"The first {len(rows)} samples; {more} more are in the HTML and in robustness_data.pt"
    )
    return Table(caption, ("sample", "target", "clean answer", "status", "decided by", "distance"), rows)
