"""The report as PDF by reportlab: links, bookmarks, page numbers, embedded fonts, vectors; equal bytes for equal reports."""

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib
from reportlab.graphics import shapes
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4, LETTER
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    CondPageBreak,
    Flowable,
    Frame,
    Image,
    KeepTogether,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
    TableStyle,
)
from reportlab.platypus import Table as PdfTable
from reportlab.platypus.tableofcontents import TableOfContents

from windtunnel.assessments.figures.pictures import Picture, PictureGrid
from windtunnel.assessments.figures.plots import HALF
from windtunnel.assessments.figures.scene import PALETTE, Area, Dot, Label, Mark, Rect, Scene, clipped, split_scene
from windtunnel.core.markdown import with_code
from windtunnel.records.files import replacing
from windtunnel.reporting.report import model

MOST_SAMPLES = 1000  # rows of the appendix on paper; the HTML has every sample
PAPER = {"A4": A4, "Letter": LETTER}
WIDTH = A4[0] - 36 * mm
FONT, BOLD, MONO = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"
ALL = ((0, 0), (-1, -1))  # every cell of a table
SCALE = 0.88  # of a chart on paper
MOST_HEIGHT = LETTER[1] - 60 * mm  # of a chart, so that it fits on a page of either paper with its caption
_GUTTER = 12.0
_MOST_COLUMNS = 3  # of the list of samples
_EDGE = {"invalid": "invalid", "warning": "corrupted", "info": "accent", "none": "unknown"}
_NO_TAGS = (
    "This file is not a tagged PDF. Every figure has its caption as text; the HTML report holds an alternative text for each figure "
    "and every table, and can be read with a screen reader."
)


def colour(role: str) -> colors.Color:
    """Return a role of PALETTE on paper, or #rrggbb."""
    return colors.HexColor(PALETTE[role][0] if role in PALETTE else role)


def style(name: str, size: float, role: str = "ink", **more: object) -> ParagraphStyle:
    """Return a paragraph style in our font."""
    fonts = {"fontName": FONT, "bulletFontName": FONT, "fontSize": size, "leading": size * 1.4}
    return ParagraphStyle(name, **{**fonts, "textColor": colour(role), **more})


BODY = style("body", 9, spaceAfter=5)
CELL = style("cell", 7.4, leading=9.6, splitLongWords=1)
HEAD = style("head", 7.4, fontName=BOLD, leading=9.6)
CAPTION = style("caption", 7.8, "soft", spaceBefore=2, spaceAfter=9)
UNDER = style("under", 6.6, "soft", alignment=1, leading=8, spaceBefore=2)
_BOX = {"backColor": colour("card"), "spaceBefore": 5}
CODE = style("code", 8.5, fontName=MONO, borderPadding=4, spaceAfter=8, leftIndent=6, **_BOX)
_ABOVE = style("above", 7.8, "soft", spaceBefore=4, spaceAfter=3)
_TITLE = style("title", 20, fontName=BOLD, leading=24, spaceAfter=1)
_SUB = style("sub", 9.5, "soft", spaceAfter=5)
_CONTENTS = style("contents", 12, fontName=BOLD, spaceBefore=10, spaceAfter=4)
_H1 = style("h1", 14, fontName=BOLD, spaceBefore=14, spaceAfter=5, keepWithNext=1)
_H2 = style("h2", 10.5, fontName=BOLD, spaceBefore=9, spaceAfter=3, keepWithNext=1)
_HEAD = style("front", 10, fontName=BOLD, spaceBefore=5, spaceAfter=2, keepWithNext=1)
_STATEMENT = style("statement", 10, borderPadding=(6, 8, 6, 8), spaceAfter=9, leftIndent=4, rightIndent=4, **_BOX)
_FACT, _LINE = style("fact", 7.4, "soft", leading=10), style("line", 8.2, leading=11.2)
_LABEL, _MEANING = style("tile", 7.6, "soft", leading=10), style("meaning", 7, "soft", leading=9.4)
_VALUE = style("value", 17, fontName=BOLD, leading=21)
_SMALL, _SMALL_HEAD = style("small", 6.4, leading=7.9), style("smallhead", 6.4, fontName=BOLD, leading=7.9)
_BULLET = style("bullet", 8.2, leading=11.2, leftIndent=10, bulletIndent=1, spaceAfter=1.5)


def register_fonts() -> None:
    """Embed DejaVu, which matplotlib ships: it has ≤ and the letters of a user's class names that Helvetica lacks."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in (FONT, BOLD, MONO):
        if name not in pdfmetrics.getRegisteredFontNames():
            pdfmetrics.registerFont(TTFont(name, str(folder / f"{name}.ttf")))
    # Drawings start in this font: the default of the library is one that no PDF embeds.
    shapes.STATE_DEFAULTS["fontName"] = FONT
    pdfmetrics.registerFontFamily(FONT, normal=FONT, bold=BOLD, italic=FONT, boldItalic=BOLD)


def markup(text: str) -> str:
    """Return text as reportlab's markup: escaped, with what stands between backticks in the font of code."""
    parts = ((escape(part), is_code) for part, is_code in with_code(text))
    return "".join(f'<font name="{MONO}">{part}</font>' if is_code else part for part, is_code in parts)


def render_pdf(report: model.ReportContent, path: Path) -> None:
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
    def __init__(self, path: str, report: model.ReportContent, paper: tuple[float, float]) -> None:
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
        footer = textwrap.shorten(f"{self._report.title}: {self._report.front.subtitle}", 70, placeholder=" ...")
        canvas.drawString(x_left, 7.5 * mm, footer)
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


def _story(report: model.ReportContent) -> Iterator[Flowable]:
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


def _front(report: model.ReportContent) -> Iterator[Flowable]:
    """Page one: the answer."""
    front = report.front
    yield Paragraph(escape(report.title), _TITLE)
    facts = "".join(f"  ·  {escape(what)} {escape(value)}" for what, value in front.facts)
    yield Paragraph(f"{escape(front.subtitle)}<font size=7.4>{facts}</font>", _SUB)
    yield from map(_highlight, front.alarms)
    yield Paragraph(markup(front.statement), _STATEMENT)
    if front.tiles:
        yield _tiles(front.tiles)
        yield Spacer(1, 5)
    yield from (_highlight(line) for line in (front.gate, front.sanity) if line)
    if front.sandwich:
        yield from _chart(front.sandwich, 0.8)
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
    drawn.setStyle(cells(2, 2, 4, ("BOX", *ALL, 0.6, colour("soft")), ("INNERGRID", *ALL, 0.4, colour("line"))))
    return KeepTogether([Paragraph("Sign-off", _HEAD), drawn])


def _tiles(tiles: tuple[model.Tile, ...]) -> PdfTable:
    gap = 8.0
    width = (WIDTH - gap * (len(tiles) - 1)) / len(tiles)
    row: list[object] = []
    styles: list[tuple[object, ...]] = []
    for tile in tiles:
        texts = (
            (tile.label, _LABEL),
            (f"{tile.value} ", _VALUE),
            (f"{tile.interval} {tile.meaning}".strip(), _MEANING),
        )
        cell = (len(row), 0)
        row += [[Paragraph(escape(text), of) for text, of in texts], ""]
        styles += [("LINEABOVE", cell, cell, 3, colour(tile.role)), ("BACKGROUND", cell, cell, colour("card"))]
    drawn = PdfTable([row[:-1]], colWidths=[width, *(gap, width) * (len(tiles) - 1)])
    drawn.setStyle(cells(2, 3, 8, *styles))
    return drawn


def _section(section: model.Section, number: str, heading: object, full: bool) -> Iterator[Flowable]:
    # No heading at the foot of a page, away from what it announces.
    drawn = any(isinstance(block, model.Chart | model.Figure | PictureGrid) for block in section.blocks[:3])
    yield CondPageBreak(75 * mm if drawn else 45 * mm)
    yield Paragraph(f"{number}  {escape(section.title)}", heading)
    yield from _blocks(section.blocks)
    children = [child for child in section.children if full or not child.detail]
    for i, child in enumerate(children, 1):
        yield from _section(child, f"{number}.{i}", _H2, full)


def _blocks(blocks: Sequence[model.Block]) -> Iterator[Flowable]:
    """Yield the blocks in their order; narrow charts that follow each other stand side by side."""
    index = 0
    while index < len(blocks):
        narrow = list(_narrow(blocks[index : index + 2]))
        if narrow:
            yield from _beside(narrow)
        else:
            block, *after = blocks[index : index + 2]
            if not isinstance(block, PictureGrid) and any(isinstance(b, PictureGrid) for b in after):
                yield CondPageBreak(60 * mm)  # words stay with the pictures that they announce
            yield from block_parts(block)
        index += len(narrow) or 1


def _narrow(blocks: Sequence[model.Block]) -> Iterator[model.Chart]:
    """Yield the narrow charts that the blocks begin with."""
    for block in blocks:
        if not isinstance(block, model.Chart) or block.scene.width > HALF:
            return
        yield block


def _in_short(r: model.SampleRow) -> tuple[str, ...]:
    answer = r.target if r.target == r.clean else f"{r.target} → {r.clean}"
    by = "" if r.status == "misclassified" else r.decided_by
    distance = f"{float(r.distance):.2g}" if r.distance else ""
    return clipped(r.name, 30), clipped(answer, 30), r.status, clipped(by, 24), distance


def _samples(samples: model.SampleAppendix) -> Iterator[Flowable]:
    """Every sample in several columns; the order goes down each of them."""
    rows = [_in_short(row) for row in samples.rows[:MOST_SAMPLES]]
    if more := len(samples.rows) - len(rows):
        note = f"The first {len(rows)} samples; {more} more are in the HTML and in robustness_data.pt"
        yield Paragraph(note, BODY)
    header = ("sample", "label", "status", "by", "distance")
    widths = [
        max([stringWidth(text, FONT, 6.4) for text in column] + [stringWidth(head, BOLD, 6.4)]) + 6
        for head, column in zip(header, zip(*rows, strict=True), strict=True)
    ]
    across = max(1, min(_MOST_COLUMNS, int((WIDTH + 8) // (sum(widths) + 8))))
    spare = (WIDTH - across * sum(widths)) / across
    heads = [Paragraph(word, _SMALL_HEAD) for word in (*header, "") * across]
    per_page = 62 * across
    for start in range(0, len(rows), per_page):
        part = rows[start : start + per_page]
        height = -(-len(part) // across)
        part += [("",) * len(header)] * (across * height - len(part))
        content: list[list[object]] = [heads]
        for i in range(height):
            line = [text for row in part[i::height] for text in (*row, "")]
            content.append([Paragraph(escape(text), _SMALL) if text else "" for text in line])
        drawn = PdfTable(content, colWidths=[*widths, spare] * across, repeatRows=1)
        drawn.setStyle(cells(0.5, 1.1, 1.5, ("LINEBELOW", *ALL, 0.3, colour("line"))))
        yield drawn
        yield Spacer(1, 6)


def cells(top: float, bottom: float, sides: float, *more: tuple[object, ...]) -> TableStyle:
    """Return the style of a table's cells: paddings in points, our font (the library's default is not embedded), and more."""
    paddings = {"TOPPADDING": top, "BOTTOMPADDING": bottom, "LEFTPADDING": sides, "RIGHTPADDING": sides}
    cells = {"FONTNAME": FONT, "VALIGN": "TOP", **paddings}
    return TableStyle([*((name, *ALL, value) for name, value in cells.items()), *more])


def block_parts(block: model.Block) -> list[Flowable]:
    """Return the flowables of any block."""
    if isinstance(block, model.Text):
        return [Paragraph(escape(block.text), CODE) if block.code else Paragraph(markup(block.text), BODY)]
    if isinstance(block, model.Highlight):
        return [_highlight(block)]
    if isinstance(block, model.Table):
        return table_parts(block)
    if isinstance(block, model.Chart):
        return _chart(block)
    return _grid(block) if isinstance(block, PictureGrid) else _figure(block)


def _highlight(finding: model.Highlight) -> Flowable:
    """Return a sentence in a box with a coloured edge."""
    text = markup(finding.text)
    sentence = Paragraph(f"<b>{text}</b>" if finding.severity == "invalid" else text, BODY)
    box = PdfTable([[sentence]], colWidths=[WIDTH], spaceAfter=3, splitInRow=1)
    edge = ("LINEBEFORE", (0, 0), (0, -1), 3, colour(_EDGE[finding.severity]))
    box.setStyle(cells(2.5, 0, 8, edge, ("BACKGROUND", *ALL, colour("card"))))
    return box


def table_parts(table: model.Table) -> list[Flowable]:
    """Return a table that breaks across pages and repeats its header; nothing for an empty one."""
    if not table.rows:
        return []
    rows = [[Paragraph(escape(cell), HEAD) for cell in table.header]]
    rows += [[Paragraph(markup(cell), CELL) for cell in row] for row in table.rows]
    drawn = PdfTable(rows, colWidths=_column_widths(table), repeatRows=1, splitInRow=1)
    head_row = ("BACKGROUND", (0, 0), (-1, 0), colour("card"))
    drawn.setStyle(cells(2, 2.5, 4, ("LINEBELOW", *ALL, 0.4, colour("line")), head_row))
    # The caption stays with the head of its table: keepWithNext would move a long table to the next page.
    return [CondPageBreak(30 * mm), Paragraph(escape(table.caption), _ABOVE), drawn, Spacer(1, 8)]


def _column_widths(table: model.Table) -> list[float]:
    """Each column as wide as its longest word at least and its longest text at most; what is left goes to the last."""
    padding = 9.0

    def widest(i: int, parts: Callable[[str], list[str]]) -> float:
        head = max(stringWidth(part, BOLD, HEAD.fontSize) for part in parts(table.header[i]))
        return float(
            max([head, *(stringWidth(part, FONT, CELL.fontSize) for row in table.rows for part in parts(row[i]))])
        )

    columns = range(len(table.header))
    longest_words = [widest(i, lambda text: text.split(" ")) for i in columns]
    # Where the longest words leave no room, the longest of them are broken first.
    for longest in (150.0, 100.0, 70.0, 50.0, 35.0):
        needed = [min(longest, word) + padding for word in longest_words]
        if sum(needed) <= WIDTH:
            break
    desired = [
        max(need, min(400.0, widest(i, lambda text: [text])) + padding) for i, need in zip(columns, needed, strict=True)
    ]
    spare, beyond = WIDTH - sum(needed), sum(desired) - sum(needed)
    if spare <= 0:
        return [n * WIDTH / sum(needed) for n in needed]
    if beyond > spare:
        return [n + (w - n) * spare / beyond for n, w in zip(needed, desired, strict=True)]
    return [*desired[:-1], desired[-1] + spare - beyond]


def _chart(chart: model.Chart, scale: float = SCALE) -> list[Flowable]:
    """Return a chart in vectors with its caption; one that is taller than a page in parts, between its rows."""
    *before, last = [_drawing(part, scale * part.width) for part in split_scene(chart.scene, MOST_HEIGHT / scale)]
    return [*before, KeepTogether([last, Paragraph(escape(chart.caption), CAPTION)])]


def _beside(charts: Sequence[model.Chart]) -> list[Flowable]:
    """One or two narrow charts beside each other, each above its caption."""
    width = (WIDTH - _GUTTER) / 2
    if any(chart.scene.height * SCALE > MOST_HEIGHT for chart in charts):
        return [part for chart in charts for part in _chart(chart)]
    drawn = [
        [_drawing(c.scene, min(width, c.scene.width * SCALE)), Paragraph(escape(c.caption), CAPTION)] for c in charts
    ]
    table = PdfTable([[drawn[0], "", drawn[1] if len(drawn) > 1 else ""]], colWidths=[width, _GUTTER, width])
    table.setStyle(cells(0, 0, 0))
    return [KeepTogether([table])]


def _drawing(scene: Scene, width: float) -> shapes.Drawing:
    """Return a scene as reportlab vectors, scaled to a width in points."""
    scale = width / scene.width
    drawing = shapes.Drawing(width, scene.height * scale)
    drawing.scale(scale, scale)
    for mark in scene.marks:
        drawing.add(_shape(mark, scene.height))
    return drawing


def _shape(mark: Mark, height: float) -> shapes.Shape:
    """Return a mark with y upwards, on a page of this height."""
    paint = colour(mark.colour)
    if isinstance(mark, Rect):
        corner = (mark.x, height - mark.y - mark.height)
        return shapes.Rect(*corner, mark.width, mark.height, fillColor=paint, strokeColor=None)
    if isinstance(mark, Dot):
        return shapes.Circle(mark.x, height - mark.y, mark.radius, fillColor=paint, strokeColor=None)
    if isinstance(mark, Label):
        font = {"fontName": BOLD if mark.bold else FONT, "fontSize": mark.size, "textAnchor": mark.anchor}
        return shapes.String(mark.x, height - mark.y, mark.text, fillColor=paint, **font)
    points = [v for x, y in mark.points for v in (x, height - y)]
    if isinstance(mark, Area):
        return shapes.Polygon(points, fillColor=paint, fillOpacity=0.18, strokeColor=None, strokeWidth=0)
    dashes = [4, 3] if mark.dashed else None
    return shapes.PolyLine(points, strokeColor=paint, strokeWidth=mark.width, strokeDashArray=dashes)


def _figure(figure: model.Figure) -> list[Flowable]:
    width, height = ImageReader(str(figure.path)).getSize()
    scale = min(WIDTH / width, 75 * mm / height, 0.4)
    image = Image(str(figure.path), width * scale, height * scale, hAlign="LEFT")
    return [KeepTogether([image, Paragraph(escape(figure.caption), CAPTION)])]


def _grid(grid: PictureGrid) -> list[Flowable]:
    across = max(len(grid.header), *(len(pictures) for _, pictures in grid.rows), 1)
    label = 18 * mm if any(label for label, _ in grid.rows) else 4
    side = min(15 * mm if grid.small else 19 * mm, (WIDTH - label) / across - 4)
    content: list[list[object]] = []
    if grid.header:
        content.append(["", *(Paragraph(escape(name), UNDER) for name in grid.header)])
    for title, pictures in grid.rows:
        cells_ = [_picture(p, side) for p in pictures]
        content.append([Paragraph(escape(title), UNDER) if title else "", *cells_, *[""] * (across - len(cells_))])
    drawn = PdfTable(content, colWidths=[label, *[side + 4] * across], hAlign="LEFT")
    drawn.setStyle(cells(1, 1.5, 1.5))
    return [KeepTogether([drawn, Paragraph(escape(grid.caption), CAPTION)])]


def _picture(picture: Picture | None, side: float) -> object:
    if picture is None:
        return ""
    width, height = ImageReader(io.BytesIO(picture.png)).getSize()
    scale = side / max(width, height)
    image = Image(io.BytesIO(picture.png), width * scale, height * scale)
    text = picture.text.replace("\xa0", " ")  # a budget may wrap in a column as narrow as a picture
    return [image, Paragraph(escape(text), UNDER)] if text else image
