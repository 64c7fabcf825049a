"""The blocks of a report as reportlab flowables: vector charts, tables with repeated headers, pictures, findings."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib
from reportlab.graphics import shapes
from reportlab.graphics.shapes import Circle, Drawing, Polygon, PolyLine, String
from reportlab.graphics.shapes import Rect as PdfRect
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4, LETTER
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import CondPageBreak, Flowable, Image, KeepTogether, Paragraph, Spacer, TableStyle
from reportlab.platypus import Table as PdfTable

from windtunnel.assessments.figures.pictures import Picture, PictureGrid
from windtunnel.assessments.figures.scene import PALETTE, Area, Dot, Label, Line, Mark, Rect, Scene
from windtunnel.assessments.figures.split import split_scene
from windtunnel.core.markdown import with_code
from windtunnel.reporting.report.model import Block, Chart, Figure, Highlight, Table, Text

WIDTH = A4[0] - 36 * mm
FONT, BOLD, MONO = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"
ALL = ((0, 0), (-1, -1))  # every cell of a table
SCALE = 0.88  # of a chart on paper
_GUTTER = 12.0
MOST_HEIGHT = LETTER[1] - 60 * mm  # of a chart, so that it fits on a page of either paper with its caption


def colour(role: str) -> colors.Color:
    """Return a role of PALETTE on paper, or #rrggbb."""
    return colors.HexColor(PALETTE[role][0] if role in PALETTE else role)


EDGE = {
    "invalid": colour("invalid"),
    "warning": colour("corrupted"),
    "info": colour("accent"),
    "none": colour("unknown"),
}


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


def style(name: str, size: float, role: str = "ink", **more: object) -> ParagraphStyle:
    """Return a paragraph style in our font."""
    return ParagraphStyle(
        name,
        **{
            "fontName": FONT,
            "bulletFontName": FONT,
            "fontSize": size,
            "leading": size * 1.4,
            "textColor": colour(role),
            **more,
        },
    )


BODY = style("body", 9, spaceAfter=5)
CELL = style("cell", 7.4, leading=9.6, splitLongWords=1)
HEAD = style("head", 7.4, fontName=BOLD, leading=9.6)
CAPTION = style("caption", 7.8, "soft", spaceBefore=2, spaceAfter=9)
_ABOVE = style("above", 7.8, "soft", spaceBefore=4, spaceAfter=3)
UNDER = style("under", 6.6, "soft", alignment=1, leading=8, spaceBefore=2)
CODE = style(
    "code", 8.5, fontName=MONO, backColor=colour("card"), borderPadding=4, spaceBefore=5, spaceAfter=8, leftIndent=6
)


def cells(top: float, bottom: float, sides: float, *more: tuple[object, ...]) -> TableStyle:
    """Return the style of a table's cells: paddings in points, our font (the library's default is not embedded), and more."""
    paddings = {"TOPPADDING": top, "BOTTOMPADDING": bottom, "LEFTPADDING": sides, "RIGHTPADDING": sides}
    cells = {"FONTNAME": FONT, "VALIGN": "TOP", **paddings}
    return TableStyle([*((name, *ALL, value) for name, value in cells.items()), *more])


def block_parts(block: Block) -> list[Flowable]:
    """Return the flowables of any block."""
    return _PARTS[type(block)](block)


def finding_part(finding: Highlight) -> Flowable:
    """Return a sentence in a box with a coloured edge."""
    text = markup(finding.text)
    box = PdfTable(
        [[Paragraph(f"<b>{text}</b>" if finding.severity == "invalid" else text, BODY)]],
        colWidths=[WIDTH],
        spaceAfter=3,
        splitInRow=1,
    )
    box.setStyle(
        cells(
            2.5, 0, 8, ("LINEBEFORE", (0, 0), (0, -1), 3, EDGE[finding.severity]), ("BACKGROUND", *ALL, colour("card"))
        )
    )
    return box


def table_parts(table: Table) -> list[Flowable]:
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


def _column_widths(table: Table) -> list[float]:
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


def chart_parts(chart: Chart, scale: float = SCALE) -> list[Flowable]:
    """Return a chart in vectors with its caption; one that is taller than a page in parts, between its rows."""
    *before, last = [drawing(part, scale * part.width) for part in split_scene(chart.scene, MOST_HEIGHT / scale)]
    return [*before, KeepTogether([last, Paragraph(escape(chart.caption), CAPTION)])]


def paired_charts(charts: Sequence[Chart]) -> list[Flowable]:
    """One or two narrow charts beside each other, each above its caption."""
    width = (WIDTH - _GUTTER) / 2
    if any(chart.scene.height * SCALE > MOST_HEIGHT for chart in charts):
        return [part for chart in charts for part in chart_parts(chart)]
    drawn = [
        [drawing(c.scene, min(width, c.scene.width * SCALE)), Paragraph(escape(c.caption), CAPTION)] for c in charts
    ]
    row = [drawn[0], "", drawn[1] if len(drawn) > 1 else ""]
    table = PdfTable([row], colWidths=[width, _GUTTER, width])
    table.setStyle(cells(0, 0, 0))
    return [KeepTogether([table])]


def drawing(scene: Scene, width: float) -> Drawing:
    """Return a scene as reportlab vectors, scaled to a width in points."""
    scale = width / scene.width
    result = Drawing(width, scene.height * scale)
    result.scale(scale, scale)
    for mark in scene.marks:
        result.add(_MARKS[type(mark)](mark, scene.height))
    return result


def _rect(mark: Rect, height: float) -> PdfRect:
    return PdfRect(
        mark.x, height - mark.y - mark.height, mark.width, mark.height, fillColor=colour(mark.colour), strokeColor=None
    )


def _line(mark: Line, height: float) -> PolyLine:
    points = [v for x, y in mark.points for v in (x, height - y)]
    return PolyLine(
        points, strokeColor=colour(mark.colour), strokeWidth=mark.width, strokeDashArray=[4, 3] if mark.dashed else None
    )


def _area(mark: Area, height: float) -> Polygon:
    points = [v for x, y in mark.points for v in (x, height - y)]
    return Polygon(points, fillColor=colour(mark.colour), fillOpacity=0.18, strokeColor=None, strokeWidth=0)


def _dot(mark: Dot, height: float) -> Circle:
    return Circle(mark.x, height - mark.y, mark.radius, fillColor=colour(mark.colour), strokeColor=None)


def _label(mark: Label, height: float) -> String:
    style = {"fontName": BOLD if mark.bold else FONT, "fontSize": mark.size, "textAnchor": mark.anchor}
    return String(mark.x, height - mark.y, mark.text, fillColor=colour(mark.colour), **style)


_MARKS: dict[type[Mark], Callable[..., object]] = {Rect: _rect, Line: _line, Area: _area, Dot: _dot, Label: _label}


def _figure_parts(figure: Figure) -> list[Flowable]:
    width, height = ImageReader(str(figure.path)).getSize()
    scale = min(WIDTH / width, 75 * mm / height, 0.4)
    image = Image(str(figure.path), width * scale, height * scale, hAlign="LEFT")
    return [KeepTogether([image, Paragraph(escape(figure.caption), CAPTION)])]


def _grid_parts(grid: PictureGrid) -> list[Flowable]:
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
    return [image, Paragraph(escape(picture.text), UNDER)] if picture.text else image


def _text_parts(text: Text) -> list[Flowable]:
    return [Paragraph(escape(text.text), CODE) if text.code else Paragraph(markup(text.text), BODY)]


_PARTS: dict[type[Block], Callable[..., list[Flowable]]] = {
    Text: _text_parts,
    Highlight: lambda finding: [finding_part(finding)],
    Table: table_parts,
    Figure: _figure_parts,
    Chart: chart_parts,
    PictureGrid: _grid_parts,
}
