"""The classes of a summary as they are read: weakest first, and the gap in words. Quick to import."""

from __future__ import annotations

from windtunnel.core.rows import Row, interval, rows_in

MOST_CLASSES = 20  # in a table; metadata.json has all of them
ENDS = {"worst_case": "worst case", "certified": "certified"}  # the prefix of the metrics: in words


def weakest_first(metrics: Row) -> tuple[list[str], list[tuple[Row, ...]]]:
    """The ends that a summary states per class, and of each class with samples its row of each; lowest at the first end first."""
    ends = [end for end in ENDS if f"{end}_class_gap" in metrics]
    rows = [[row for row in rows_in(metrics, f"{end}_per_class") if "accuracy" in row] for end in ends]
    return ends, sorted(zip(*rows, strict=True), key=lambda row: float(str(row[0]["accuracy"])))


def gap_words(metrics: Row, end: str) -> str:
    """`30.0 points [0.0, 61.2], which may be chance`."""
    gap, limits = float(str(metrics[f"{end}_class_gap"])), interval(metrics, f"{end}_class_gap")
    if limits is None:  # a summary of an older version
        return f"{100 * gap:.1f} points"
    low, high = limits
    chance = ", which may be chance" if gap and not low else ""
    return f"{100 * gap:.1f} points [{100 * low:.1f}, {100 * high:.1f}]{chance}"
