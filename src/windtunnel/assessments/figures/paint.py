"""A figure as a PNG: the charts and pictures that the report shows as vectors, in the same colours and words.

Matplotlib only fills shapes and sets text here: what stands where is decided once, by the chart.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.text import Text

from windtunnel.assessments.figures.pictures import Picture, PictureGrid
from windtunnel.assessments.figures.plots import HALF
from windtunnel.assessments.figures.scene import (
    PALETTE,
    Area,
    Dot,
    Label,
    Line,
    Mark,
    Rect,
    Scene,
    moved,
    text_width,
    wrapped,
)
from windtunnel.boundary.pictures import picture_pixels

_DPI = 150
_MARGIN, _GAP, _TITLE = 10.0, 14.0, 24.0
_CELL, _SMALL, _LEADING = 96.0, 8.0, 11.0
_LEAST = 340.0  # points: a title has room above a narrow chart


class Plot(Figure):
    """A matplotlib figure that a notebook shows also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def paint(title: str, drawings: Sequence[Scene | PictureGrid], path: Path, empty: str = "") -> None:
    """Write a PNG of the drawings below their title; of the words `empty` where there are none. Equal bytes for equal drawings."""
    # No software version in the file.
    plot(title, drawings, empty).savefig(path, format="png", metadata={"Software": None})


def plot(title: str, drawings: Sequence[Scene | PictureGrid], empty: str = "") -> Plot:
    """Return the drawings below their title as a figure; the words `empty` where there are none."""
    scenes = [_laid_out(d) if isinstance(d, PictureGrid) else (d, []) for d in drawings]
    if not scenes:
        lines = wrapped(empty, 460, 10)
        scenes = [(Scene(480, 24, (Label(0, 12, line, "soft"),), empty), []) for line in lines]
    places, width, height = _places([scene for scene, _ in scenes])
    width = max(_LEAST, width, text_width(title, 11)) + 2 * _MARGIN
    figure = Plot((width / 72, height / 72), dpi=_DPI, facecolor=PALETTE["paper"][0])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.add_artist(_artist(Label(_MARGIN, 17, title, "ink", 11, bold=True)))
    for (scene, pictures), corner in zip(scenes, places, strict=True):
        for order, mark in enumerate(scene.marks):
            shape = _artist(moved(mark, *corner))
            shape.set_zorder(order)  # as laid out: matplotlib would draw every line above every shape
            axes.add_artist(shape)
        for x, y, picture in pictures:
            axes.add_artist(_image(AxesImage(axes, interpolation="nearest"), corner[0] + x, corner[1] + y, picture))
    return figure


def _places(scenes: Sequence[Scene]) -> tuple[list[tuple[float, float]], float, float]:
    """Return (position of each drawing, total width and height): narrow charts in pairs, the others below."""
    places: list[tuple[float, float]] = []
    x, y, tallest, width = _MARGIN, _TITLE, 0.0, 0.0
    for scene in scenes:
        beside = bool(places) and x > _MARGIN and scene.width <= HALF and x + scene.width <= _MARGIN + 2 * HALF + _GAP
        if places and not beside:
            x, y, tallest = _MARGIN, y + tallest + _GAP, 0.0
        places.append((x, y))
        x = x + scene.width + _GAP if scene.width <= HALF else _MARGIN
        tallest, width = max(tallest, scene.height), max(width, places[-1][0] + scene.width - _MARGIN)
    return places, width, y + tallest + _MARGIN


def _laid_out(grid: PictureGrid) -> tuple[Scene, list[tuple[float, float, Picture]]]:
    """Return the words of a grid as a scene, and where its pictures stand in it (left, top, picture), each in a cell of 96 points."""
    across = max([len(grid.header), *(len(pictures) for _, pictures in grid.rows), 1])
    column = max([text_width(label, _SMALL) + 8 for label, _ in grid.rows if label], default=0.0)
    marks: list[Mark] = []
    placed: list[tuple[float, float, Picture]] = []

    def cell(x: float, y: float, text: str) -> float:
        """Words centred below y in the column at x; their height."""
        lines = wrapped(text, _CELL, _SMALL) if text else []
        marks.extend(
            Label(x + _CELL / 2, y + 9 + i * _LEADING, line, "soft", _SMALL, "middle") for i, line in enumerate(lines)
        )
        return len(lines) * _LEADING

    columns = [column + i * (_CELL + 6) for i in range(across)]
    y = max([cell(x, 0, name) for x, name in zip(columns, grid.header, strict=False)], default=0.0) + 4
    for label, pictures in grid.rows:
        marks.append(Label(column - 6, y + _CELL / 2, label, "soft", _SMALL, "end"))
        below = 0.0
        for x, picture in zip(columns, pictures, strict=False):
            if picture is not None:
                placed.append((x, y, picture))
                below = max(below, cell(x, y + _CELL, picture.text))
        y += _CELL + below + 6
    width = columns[-1] + _CELL
    for line in wrapped(grid.caption, max(width, _LEAST), 9):
        marks.append(Label(0, y + 9, line, "soft", 9))
        y += 12
    return Scene(width, y, tuple(marks), grid.caption), placed


def _artist(mark: Mark) -> Artist:
    """Return a mark as a shape of matplotlib."""
    colour = PALETTE[mark.colour][0] if mark.colour in PALETTE else mark.colour
    if isinstance(mark, Rect):
        return Rectangle((mark.x, mark.y), mark.width, mark.height, color=colour, linewidth=0)
    if isinstance(mark, Dot):
        return Circle((mark.x, mark.y), mark.radius, color=colour, linewidth=0)
    if isinstance(mark, Area):
        return Polygon(mark.points, color=colour, alpha=0.18, linewidth=0)
    if isinstance(mark, Line):
        line = Line2D(*zip(*mark.points, strict=True), color=colour, linewidth=mark.width)
        if mark.dashed:
            line.set_dashes((4 / mark.width, 3 / mark.width))  # in widths of the line
        return line
    return Text(
        mark.x,
        mark.y,
        mark.text,
        color=colour,
        fontsize=mark.size,
        ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
        va="baseline",
        fontfamily="DejaVu Sans",
        fontweight="bold" if mark.bold else "normal",
        parse_math=False,
    )


def _image(image: AxesImage, x: float, y: float, picture: Picture) -> AxesImage:
    """Return a picture in the cell at (x, y), centred, in its own proportions."""
    pixels = picture_pixels(picture.png)
    scale = _CELL / max(pixels.shape[:2])
    height, width = (size * scale for size in pixels.shape[:2])
    x_left, top = x + (_CELL - width) / 2, y + (_CELL - height) / 2
    image.set_data(pixels)
    image.set_extent((x_left, x_left + width, top + height, top))
    return image
