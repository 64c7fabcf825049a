"""A drawing as a list of marks, laid out once: the HTML shows it as SVG, the PDF as vectors.

Coordinates are in points, y downwards. A colour is a role of PALETTE (which has a light and a dark form) or #rrggbb.
`tip` is the text shown when a reader hovers over a mark or focuses it with the keyboard.
"""

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY = "#CC79A7", "#56B4E9"

CLEAN, ATTACKED, CERTIFIED, CORRUPTED = BLUE, VERMILION, GREEN, ORANGE
BLUES = ("#f2f6fb", "#dbe7f4", "#c0d6ec", "#9cc2e2", "#72a9d4", "#4a8ec4", "#2a72b0", "#145596", "#0a3a72")

# role: (on white paper, on a dark screen)
PALETTE: dict[str, tuple[str, str]] = {
    "ink": ("#1c2430", "#e6eaf0"),
    "soft": ("#5b6675", "#a3adba"),
    "line": ("#d9dee5", "#353d49"),
    "card": ("#f5f7fa", "#1d232c"),
    "paper": ("#ffffff", "#14181f"),
    "white": ("#ffffff", "#ffffff"),
    "accent": (BLUE, SKY),
    "clean": (BLUE, SKY),
    "certified": (CERTIFIED, "#1fae83"),
    "unknown": ("#7a818c", "#7a818c"),
    "survived": (SKY, SKY),
    "broken": (ATTACKED, "#e06a1b"),
    "wrong": ("#3b3b3b", "#565d68"),
    "corrupted": (CORRUPTED, CORRUPTED),
    "error": (PURPLE, PURPLE),
    "invalid": ("#c1121f", "#ff6b6b"),
    # Curves of one chart: what attacks left is warm, what was verified is cool; the first of each are the roles above.
    "attack-2": ("#a2790a", "#e0b13a"),
    "attack-3": ("#a6336f", "#e58cbd"),
    "attack-4": ("#6b3fa0", "#b79be0"),
    "attack-5": ("#8a4b1f", "#c99a6b"),
    "attack-6": ("#b01e2e", "#f08a92"),
    "certificate-2": (BLUE, SKY),
    "certificate-3": ("#2f6f7e", "#7cc4d4"),
    "certificate-4": ("#5a7a1e", "#a9c95f"),
}


def contrast(first: str, other: str) -> float:
    """Return the contrast of two colours #rrggbb, from 1 to 21; text wants 4.5 (WCAG 2.2, 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(first), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(colour: str) -> str:
    """White or black, whichever reads better on a colour #rrggbb."""
    return max("#ffffff", "#000000", key=lambda ink: contrast(ink, colour))


ATTACK_CURVES = ("broken", "attack-2", "attack-3", "attack-4", "attack-5", "attack-6")
CERTIFICATE_CURVES = ("certified", "certificate-2", "certificate-3", "certificate-4")
_GOLDEN = 0.618034  # turns of the hue from one colour to the next, which never repeat


def curve_colour(roles: Sequence[str], i: int) -> str:
    """Return the colour of curve `i` of a chart, of no other: a role, and beyond the roles one that is legible on white and on dark."""
    if i < len(roles):
        return roles[i]
    shades = (hls_to_rgb(i * _GOLDEN % 1, 0.9 - step / 100, 0.65) for step in range(80))
    colours = ("#" + "".join(f"{round(255 * part):02x}" for part in shade) for shade in shades)
    return next(colour for colour in colours if contrast(colour, PALETTE["paper"][0]) >= 4.5)


# The words on a filled mark: `on-broken` on `broken`.
PALETTE |= {
    f"on-{role}": (ink_on(PALETTE[role][0]), ink_on(PALETTE[role][1]))
    for role in ("clean", "certified", "survived", "unknown", "broken", "wrong", "error")
}
Anchor = Literal["start", "middle", "end"]
CHARACTER = 0.56  # mean width of a character over the size of the font


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon, see-through."""

    points: tuple[tuple[float, float], ...]
    colour: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A filled circle."""

    x: float
    y: float
    radius: float
    colour: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """Text on its baseline."""

    x: float
    y: float
    text: str
    colour: str = "ink"
    size: float = 10
    anchor: Anchor = "start"
    bold: bool = False


Mark: TypeAlias = Rect | Line | Area | Dot | Label


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawing; `alt` is its text alternative."""

    width: float
    height: float
    marks: tuple[Mark, ...]
    alt: str


def text_width(text: str, size: float = 10) -> float:
    """Roughly how wide a text is drawn, in points."""
    return CHARACTER * size * len(text)


def clipped(text: str, characters: int = 26) -> str:
    """Return a name of the user's, short enough for an axis."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def whisker(
    low: tuple[float, float], high: tuple[float, float], colour: str = "ink", cap: float = 3
) -> tuple[Line, ...]:
    """Return an interval between two points on one horizontal or vertical line, with caps."""
    dx, dy = (0.0, cap) if low[1] == high[1] else (cap, 0.0)
    ends = (Line(((x - dx, y - dy), (x + dx, y + dy)), colour, 1.1) for x, y in (low, high))
    return (Line((low, high), colour, 1.1), *ends)


def hatch(area: Rect, colour: str, step: float = 7) -> Iterator[Line]:
    """Diagonal lines inside a rectangle, so that it can be told apart without colour."""
    offset = step
    while offset < area.width + area.height:
        x0, x1 = max(0.0, offset - area.height), min(offset, area.width)
        ends = ((area.x + x0, area.y + offset - x0), (area.x + x1, area.y + offset - x1))
        yield Line(ends, colour, 0.9)
        offset += step


def part_of_bar(part: Rect, text: str, size: float) -> Iterator[Mark]:
    """Yield a part of a stacked bar, hatched where it is unknown, and its text of this size where it has room."""
    yield part
    if part.colour == "unknown":
        yield from hatch(part, "#a3a9b3")
    if part.width > 8 + text_width(text, size):
        middle = part.x + part.width / 2, part.y + part.height / 2 + 3.5
        yield Label(*middle, text, f"on-{part.colour}", size, "middle", bold=True)


def wrapped(text: str, width: float, size: float = 9) -> list[str]:
    """Return a text in lines of at most `width`, broken between words."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def legend(entries: list[tuple[str, str]], x: float, y: float, width: float) -> tuple[tuple[Mark, ...], float]:
    """Return (marks, height) of coloured squares with their words, wrapped to the width."""
    marks: list[Mark] = []
    x_left, top = x, y
    for colour, text in entries:
        parts = wrapped(text, width - 28)
        needed = 14 + max(text_width(part, 9) for part in parts) + 14
        if x_left > x and x_left + needed > x + width:
            x_left, top = x, top + 14
        marks.append(Rect(x_left, top, 9, 9, colour))
        marks += [Label(x_left + 13, top + 8 + 12 * i, part, "soft", 9) for i, part in enumerate(parts)]
        x_left += needed
        if len(parts) > 1:
            x_left, top = x, top + 14 + 12 * (len(parts) - 1)
    return tuple(marks), top - y + (14 if x_left > x else 0)


def ramp(cmap: str, steps: int = 11) -> tuple[str, ...]:
    """Colours #rrggbb at equal steps of one of matplotlib's colour maps. Raises ValueError, naming some, for an unknown one."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if cmap not in colormaps:
        raise ValueError(f"cmap: '{cmap}' is no colour map of matplotlib, such as cividis, viridis, RdBu_r")
    return tuple(to_hex(colormaps[cmap](i / (steps - 1))) for i in range(steps))


_CUT_FROM = 60.0  # points: a mark that is lower belongs to one row of a chart and is never cut


def split_scene(scene: Scene, height: float) -> list[Scene]:
    """Return the scene in parts of at most `height` points, from top to bottom, cut between its rows; itself where it is low enough.

    What stands below the plot (tick labels, the label of the axis) is repeated below each part, if it is no taller than a row.
    """
    if scene.height <= height:
        return [scene]
    grid = [line for line in scene.marks if isinstance(line, Line) and _is_vertical(line)]
    bottom = max((_extent(line)[1] for line in grid), default=scene.height)
    foot = scene.height - bottom
    if not 0 < foot <= min(_CUT_FROM, height / 2):
        bottom, foot = scene.height, 0.0
    below = [mark for mark in scene.marks if _extent(mark)[0] >= bottom]
    body = [mark for mark in scene.marks if _extent(mark)[0] < bottom]
    edges = _edges(body, bottom, height - foot)
    parts = []
    for top, end in zip(edges, edges[1:], strict=False):
        marks = [moved(part, 0, -top) for mark in body for part in _between(mark, top, end)]
        marks += [moved(mark, 0, end - top - bottom) for mark in below]
        parts.append(Scene(scene.width, end - top + foot, tuple(marks), scene.alt))
    return parts


def _edges(marks: Sequence[Mark], bottom: float, room: float) -> list[float]:
    """Return the start and end of each part: as far apart as fits, where no row is cut."""
    rows = sorted(extent for mark in marks if (extent := _extent(mark))[1] - extent[0] < _CUT_FROM)
    edges = [0.0]
    while edges[-1] + room < bottom:
        edge = edges[-1] + room
        while crossed := [low for low, high in rows if low < edge < high and low > edges[-1]]:
            edge = min(crossed)
        edges.append(edge)
    return [*edges, bottom]


def _extent(mark: Mark) -> tuple[float, float]:
    if isinstance(mark, Rect):
        return mark.y, mark.y + mark.height
    if isinstance(mark, Label):
        return mark.y - mark.size, mark.y + 0.3 * mark.size
    if isinstance(mark, Dot):
        return mark.y - mark.radius, mark.y + mark.radius
    heights = [y for _, y in mark.points]
    return min(heights), max(heights)


def _is_vertical(line: Line) -> bool:
    low, high = _extent(line)
    return len({x for x, _ in line.points}) == 1 and high - low >= _CUT_FROM


def _between(mark: Mark, top: float, end: float) -> Iterator[Mark]:
    """Yield what a mark has between two heights: a row stands as a whole where it begins, the rest is cut."""
    low, high = _extent(mark)
    if high - low < _CUT_FROM or isinstance(mark, Label | Dot):
        if top <= low < end or low < 0 == top:
            yield mark
    elif isinstance(mark, Rect):
        if (first := max(low, top)) < (last := min(high, end)):
            yield replace(mark, y=first, height=last - first)
    elif isinstance(mark, Area):
        if low < end and high > top:
            yield replace(mark, points=tuple((x, min(max(y, top), end)) for x, y in mark.points))
    else:
        for start, stop in pairwise(mark.points):
            if points := _cut(start, stop, top, end):
                yield replace(mark, points=points)


def _cut(
    start: tuple[float, float], stop: tuple[float, float], top: float, end: float
) -> tuple[tuple[float, float], ...]:
    """Return the part of a straight line between two heights; empty where there is none."""
    (x0, y0), (x1, y1) = sorted((start, stop), key=lambda point: point[1])
    if y1 < top or y0 > end or (y0 == end and end != y1):
        return ()

    def at(y: float) -> tuple[float, float]:
        return (x0 + (x1 - x0) * (y - y0) / (y1 - y0) if y1 > y0 else x0, y)

    return (start, stop) if y0 == y1 else (at(max(y0, top)), at(min(y1, end)))


def moved(mark: Mark, dx: float, dy: float) -> Mark:
    """Return a mark that stands so many points further to the right and further down."""
    if isinstance(mark, Rect | Label | Dot):
        return replace(mark, x=dx + mark.x, y=dy + mark.y)
    return replace(mark, points=tuple((dx + x, dy + y) for x, y in mark.points))
