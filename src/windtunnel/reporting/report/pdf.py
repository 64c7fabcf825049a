"""The report as PDF by reportlab: links, bookmarks, page numbers, embedded fonts, vectors; equal bytes for equal reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from reportlab.lib.pagesizes import A4, LETTER
from reportlab.lib.units import mm
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    CondPageBreak,
    Flowable,
    Frame,
    KeepTogether,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
)
from reportlab.platypus import Table as PdfTable
from reportlab.platypus.tableofcontents import TableOfContents

from windtunnel.assessments.figures.pictures import PictureGrid
from windtunnel.assessments.figures.plots import HALF
from windtunnel.assessments.figures.scene import clipped
from windtunnel.records.files import replacing
from windtunnel.reporting.report.model import (
    Block,
    Chart,
    Figure,
    ReportContent,
    SampleAppendix,
    SampleRow,
    Section,
    Tile,
)
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
    markup,
    paired_charts,
    register_fonts,
    style,
)

MOST_SAMPLES = 1000  # rows of the appendix on paper; the HTML has every sample
PAPER = {"A4": A4, "Letter": LETTER}
_MOST_COLUMNS = 3  # of the list of samples
_TITLE = style("title", 20, fontName=BOLD, leading=24, spaceAfter=1)
_SUB = style("sub", 9.5, "soft", spaceAfter=5)
_CONTENTS = style("contents", 12, fontName=BOLD, spaceBefore=10, spaceAfter=4)
_H1 = style("h1", 14, fontName=BOLD, spaceBefore=14, spaceAfter=5, keepWithNext=1)
_H2 = style("h2", 10.5, fontName=BOLD, spaceBefore=9, spaceAfter=3, keepWithNext=1)
_HEAD = style("front", 10, fontName=BOLD, spaceBefore=5, spaceAfter=2, keepWithNext=1)
_STATEMENT = style(
    "statement",
    10,
    backColor=colour("card"),
    borderPadding=(6, 8, 6, 8),
    spaceBefore=5,
    spaceAfter=9,
    leftIndent=4,
    rightIndent=4,
)
_FACT, _LINE = style("fact", 7.4, "soft", leading=10), style("line", 8.2, leading=11.2)
_LABEL, _MEANING = style("tile", 7.6, "soft", leading=10), style("meaning", 7, "soft", leading=9.4)
_VALUE = style("value", 17, fontName=BOLD, leading=21)
_SMALL, _SMALL_HEAD = style("small", 6.4, leading=7.9), style("smallhead", 6.4, fontName=BOLD, leading=7.9)
_BULLET = style("bullet", 8.2, leading=11.2, leftIndent=10, bulletIndent=1, spaceAfter=1.5)
_NO_TAGS = (
    "This file is not a tagged PDF. Every figure has its caption as text; the HTML report holds an alternative text for each figure "
    "and every table, and can be read with a screen reader."
)


def render_pdf(report: ReportContent, path: Path) -> None:
    """Write `report` as PDF. Details are on paper in the full layout alone."""
    register_fonts()
    with replacing(path) as temporary:
        _Document(str(temporary), report, PAPER[report.paper]).multiBuild(list(_story(report)), canvasmaker=_canvas)


def _canvas(*args: object, **kwargs: object) -> Canvas:
    # invariant: no time and no random id in the file, so that equal reports are equal bytes.
    canvas = Canvas(*args, **{**kwargs, "invariant": 1, "pageCompression": 1, "initialFontName": FONT})
    canvas.showOutline()
    canvas.setViewerPreference("DisplayDocTitle", "true")
    return canvas


class _Document(BaseDocTemplate):  # type: ignore[misc]  # reportlab is untyped
    def __init__(self, path: str, report: ReportContent, paper: tuple[float, float]) -> None:
        # One text width on all paper: what is laid out is the same, only the margins differ.
        side, above = (paper[0] - WIDTH) / 2, 15 * mm
        margins = {"leftMargin": side, "rightMargin": side, "topMargin": above, "bottomMargin": 16 * mm}
        facts = {"title": report.title, "author": "windtunnel", "subject": report.front.subtitle, "lang": "en"}
        keywords = "robustness, adversarial examples, verification"
        super().__init__(path, pagesize=paper, keywords=keywords, **margins, **facts)
        padding = dict.fromkeys(("leftPadding", "rightPadding", "topPadding", "bottomPadding"), 0)
        frame = Frame(self.leftMargin, self.bottomMargin, self.width, self.height, id="page", **padding)
        self.addPageTemplates(PageTemplate(id="page", frames=[frame], onPageEnd=self._footer))
        self._report, self._section = report, ""

    def _footer(self, canvas: Canvas, document: BaseDocTemplate) -> None:
        x_left, right = self.leftMargin, self.pagesize[0] - self.rightMargin
        canvas.setStrokeColor(colour("line"))
        canvas.line(x_left, 11 * mm, right, 11 * mm)
        canvas.setFont(FONT, 7.2)
        canvas.setFillColor(colour("soft"))
        canvas.drawString(x_left, 7.5 * mm, f"{self._report.title}: {self._report.front.subtitle}"[:70])
        canvas.drawRightString(right, 7.5 * mm, f"{self._section}   {document.page}".strip())

    def afterFlowable(self, flowable: Flowable) -> None:
        """Enter headings into the table of contents and the bookmarks; the last one stands at the foot of the page."""
        if isinstance(flowable, Paragraph) and flowable.style in (_H1, _H2):
            level, text = int(flowable.style is _H2), flowable.getPlainText()
            key = f"section-{self.seq.nextf('section')}"
            self.canv.bookmarkPage(key)
            self.canv.addOutlineEntry(text, key, level, closed=level == 0)
            self.notify("TOCEntry", (level, escape(text), self.page, key))
            if level == 0:
                self._section = text

    def beforeDocument(self) -> None:
        """Every pass begins without a section."""
        self._section = ""


def _story(report: ReportContent) -> Iterator[Flowable]:
    yield from _front(report)
    contents = TableOfContents(dotsMinLevel=1)
    contents.levelStyles = [style("toc1", 8.6, spaceBefore=1), style("toc2", 7.6, "soft", leftIndent=14)]
    contents.tableStyle = cells(0, 0, 0)
    yield Paragraph("Contents", _CONTENTS)
    yield contents
    yield PageBreak()
    shown = [section for section in report.sections if report.full or not section.detail]
    for number, section in enumerate(shown, 1):
        yield from _section(section, f"{number}", _H1, report.full)
    last = len(shown) + 1
    if report.samples:
        yield Paragraph(f"{last}  Every sample", _H1)
        yield Paragraph(escape(report.samples.note), BODY)
        yield from _samples(report.samples)
        last += 1
    yield Paragraph(f"{last}  Glossary", _H1)
    for word, meaning in report.glossary:
        yield Paragraph(f"<b>{escape(word)}</b>: {markup(meaning)}", _LINE)
    yield Paragraph(_NO_TAGS, style("tags", 7.4, "soft", spaceBefore=6))


def _front(report: ReportContent) -> Iterator[Flowable]:
    """Page one: the answer."""
    front = report.front
    yield Paragraph(escape(report.title), _TITLE)
    facts = "".join(f"  ·  {escape(what)} {escape(value)}" for what, value in front.facts)
    yield Paragraph(f"{escape(front.subtitle)}<font size=7.4>{facts}</font>", _SUB)
    yield from map(finding_part, front.alarms)
    yield Paragraph(markup(front.statement), _STATEMENT)
    if front.tiles:
        yield _tiles(front.tiles)
        yield Spacer(1, 5)
    yield from (finding_part(line) for line in (front.gate, front.sanity) if line)
    if front.sandwich:
        yield from chart_parts(front.sandwich, 0.8)
    for block in front.threat:
        yield from block_parts(block)
    for title, findings in (("What did most damage", front.findings), ("What limits these numbers", front.caveats)):
        if findings:
            yield Paragraph(title, _HEAD)
            yield from (Paragraph(markup(finding.text), _BULLET, bulletText="•") for finding in findings)
    yield Spacer(1, 8)
    yield _sign_off()


def _sign_off() -> KeepTogether:
    """Empty lines for who answers for the assessment."""
    fields = [
        ("Assessed by", "Date", "Signature"),
        ("Reviewed by", "Date", "Signature"),
        ("Decision", "Valid until", "Conditions"),
    ]
    rows = [[Paragraph(word, _FACT) for word in row] for row in fields]
    drawn = PdfTable(rows, colWidths=[WIDTH * share for share in (0.36, 0.2, 0.44)], rowHeights=[9 * mm] * len(rows))
    drawn.setStyle(
        cells(
            2,
            2,
            4,
            ("BOX", (0, 0), (-1, -1), 0.6, colour("soft")),
            ("INNERGRID", (0, 0), (-1, -1), 0.4, colour("line")),
        )
    )
    return KeepTogether([Paragraph("Sign-off", _HEAD), drawn])


def _tiles(tiles: tuple[Tile, ...]) -> PdfTable:
    gap = 8.0
    width = (WIDTH - gap * (len(tiles) - 1)) / len(tiles)
    row: list[object] = []
    styles: list[tuple[object, ...]] = []
    for i, tile in enumerate(tiles):
        texts = (
            (tile.label, _LABEL),
            (f"{tile.value} ", _VALUE),
            (f"{tile.interval} {tile.meaning}".strip(), _MEANING),
        )
        row += [*([""] if i else []), [Paragraph(escape(text), of) for text, of in texts]]
        cell = (2 * i, 0)
        styles += [("LINEABOVE", cell, cell, 3, colour(tile.role)), ("BACKGROUND", cell, cell, colour("card"))]
    drawn = PdfTable([row], colWidths=[width, *[w for _ in tiles[1:] for w in (gap, width)]])
    drawn.setStyle(cells(2, 3, 8, *styles))
    return drawn


def _section(section: Section, number: str, heading: object, full: bool) -> Iterator[Flowable]:
    # No heading at the foot of a page, away from what it announces.
    drawn = any(isinstance(block, Chart | Figure | PictureGrid) for block in section.blocks[:3])
    yield CondPageBreak(75 * mm if drawn else 45 * mm)
    yield Paragraph(f"{number}  {escape(section.title)}", heading)
    yield from _blocks(section.blocks)
    children = [child for child in section.children if full or not child.detail]
    for i, child in enumerate(children, 1):
        yield from _section(child, f"{number}.{i}", _H2, full)


def _blocks(blocks: Sequence[Block]) -> Iterator[Flowable]:
    """Yield the blocks in their order; narrow charts that follow each other stand side by side."""
    waiting: list[Chart] = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if isinstance(block, Chart) and block.scene.width <= HALF:
            waiting.append(block)
            if len(waiting) < 2:
                continue
        elif waiting:
            yield from paired_charts(waiting)
            waiting = []
        if waiting:
            yield from paired_charts(waiting)
            waiting = []
        else:
            if isinstance(after, PictureGrid) and not isinstance(block, PictureGrid):
                yield CondPageBreak(60 * mm)  # words stay with the pictures that they announce
            yield from block_parts(block)
    if waiting:
        yield from paired_charts(waiting)


def _in_short(r: SampleRow) -> tuple[str, ...]:
    answer = r.target if r.target == r.clean else f"{r.target} → {r.clean}"
    by = "" if r.status == "misclassified" else r.decided_by
    return (
        clipped(r.name, 30),
        clipped(answer, 30),
        r.status,
        clipped(by, 24),
        f"{float(r.distance):.2g}" if r.distance else "",
    )


def _samples(samples: SampleAppendix) -> Iterator[Flowable]:
    """Every sample in several columns; the order goes down each of them."""
    rows = samples.rows[:MOST_SAMPLES]
    more = len(samples.rows) - len(rows)
    if more:
        note = f"The first {len(rows)} samples; {more} more are in the HTML and in robustness_data.pt"
        yield Paragraph(note, BODY)
    header = ("sample", "label", "status", "by", "distance")
    texts = [_in_short(row) for row in rows]
    widths = [
        max([stringWidth(t, FONT, 6.4) for t in column] + [stringWidth(head, BOLD, 6.4)]) + 6
        for head, column in zip(header, zip(*texts, strict=True), strict=True)
    ]
    across = max(1, min(_MOST_COLUMNS, int((WIDTH + 8) // (sum(widths) + 8))))
    spare = (WIDTH - across * sum(widths)) / across
    per_page = 62 * across
    for start in range(0, len(texts), per_page):
        part = texts[start : start + per_page]
        height = -(-len(part) // across)
        content: list[list[object]] = [[Paragraph(word, _SMALL_HEAD) for _ in range(across) for word in (*header, "")]]
        for i in range(height):
            line = [
                text
                for k in range(across)
                for text in (*(part[k * height + i] if k * height + i < len(part) else [""] * 5), "")
            ]
            content.append([Paragraph(escape(text), _SMALL) if text else "" for text in line])
        drawn = PdfTable(content, colWidths=[*widths, spare] * across, repeatRows=1)
        drawn.setStyle(cells(0.5, 1.1, 1.5, ("LINEBELOW", (0, 0), (-1, -1), 0.3, colour("line"))))
        yield drawn
        yield Spacer(1, 6)
