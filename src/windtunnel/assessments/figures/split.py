"""A drawing that is taller than a page, cut between its rows; each part keeps the axis below it."""

from collections.abc import Iterator
from dataclasses import replace

from windtunnel.assessments.figures.scene import Area, Dot, Label, Line, Mark, Rect, Scene

_ROW = 60.0  # what is lower than this many points belongs to one row and is never cut


def split_scene(scene: Scene, height: float) -> list[Scene]:
    """Return the scene in parts of at most `height` points, from top to bottom; the scene itself where it is low enough.

    What stands below the plot (tick labels, the label of the axis) is repeated below each part, if it is no taller than a row.
    """
    if scene.height <= height:
        return [scene]
    grid = [y for mark in scene.marks if isinstance(mark, Line) and _is_vertical(mark) for _, y in mark.points]
    bottom = max(grid, default=scene.height)
    foot = scene.height - bottom
    if not 0 < foot <= min(_ROW, height / 2):
        bottom, foot = scene.height, 0.0
    below = [mark for mark in scene.marks if _extent(mark)[0] >= bottom]
    body = [mark for mark in scene.marks if _extent(mark)[0] < bottom]
    edges = _edges(body, bottom, height - foot)
    parts = []
    for top, end in zip(edges, edges[1:], strict=False):
        marks = [_moved(part, -top) for mark in body for part in _between(mark, top, end)]
        marks += [_moved(mark, end - top - bottom) for mark in below]
        parts.append(Scene(scene.width, end - top + foot, tuple(marks), scene.alt))
    return parts


def _edges(marks: list[Mark], bottom: float, room: float) -> list[float]:
    """Return the start and end of each part: as far apart as fits, where no row is cut."""
    rows = sorted(extent for mark in marks if (extent := _extent(mark))[1] - extent[0] < _ROW)
    edges = [0.0]
    while edges[-1] + room < bottom:
        edge = edges[-1] + room
        while crossed := [low for low, high in rows if low < edge < high and low > edges[-1]]:
            edge = min(crossed)
        edges.append(edge)
    return [*edges, bottom]


def _between(mark: Mark, top: float, end: float) -> Iterator[Mark]:
    """Return the part of a mark between two heights: a row as a whole where it begins, the rest cut."""
    low, high = _extent(mark)
    if high - low < _ROW or isinstance(mark, Label | Dot):
        if top <= low < end or (low < 0 and top == 0):
            yield mark
    elif isinstance(mark, Rect):
        if (first := max(low, top)) < (last := min(high, end)):
            yield replace(mark, y=first, height=last - first)
    elif isinstance(mark, Area):
        if low < end and high > top:
            yield replace(mark, points=tuple((x, min(max(y, top), end)) for x, y in mark.points))
    else:
        for start, stop in zip(mark.points, mark.points[1:], strict=False):
            if part := _cut(start, stop, top, end):
                yield replace(mark, points=part)


def _cut(
    start: tuple[float, float], stop: tuple[float, float], top: float, end: float
) -> tuple[tuple[float, float], ...]:
    """Return the part of a straight line between two heights; empty where there is none."""
    (x0, y0), (x1, y1) = sorted((start, stop), key=lambda point: point[1])
    if y1 < top or y0 > end or (y0 == end and end != y1):
        return ()

    def at(y: float) -> tuple[float, float]:
        return (x0 + (x1 - x0) * (y - y0) / (y1 - y0) if y1 > y0 else x0, y)

    if y0 == y1:
        return ((x0, y0), (x1, y1))
    return (at(max(y0, top)), at(min(y1, end)))


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
    return (
        len(line.points) == 2 and line.points[0][0] == line.points[1][0] and _extent(line)[1] - _extent(line)[0] >= _ROW
    )


def _moved(mark: Mark, dy: float) -> Mark:
    if isinstance(mark, Rect | Label | Dot):
        return replace(mark, y=mark.y + dy)
    return replace(mark, points=tuple((x, y + dy) for x, y in mark.points))
