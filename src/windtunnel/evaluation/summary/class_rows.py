"""Classes of a summary, the weakest first, and the gap in words. Quick to import."""

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.records.metadata import Rate, Value, limits, number
from windtunnel.records.tables import ClassShare, SliceRow, table

MOST_CLASSES = 20  # in a table; metadata.json has all of them
ENDS = {"worst_case": "worst case", "certified": "certified"}  # the prefix of the metrics: in words


@dataclass(frozen=True, slots=True)
class OneClass:
    """A class with samples: its name, how many, and its rate at each of the ends."""

    name: str
    n: int
    rates: tuple[Rate, ...]


def weakest_first(metrics: Mapping[str, Value]) -> tuple[list[str], list[OneClass]]:
    """Return the ends that a summary states per class, and the classes with samples; lowest at the first end first."""
    ends = [end for end in ENDS if f"{end}_class_gap" in metrics]
    lines = [table(tuple[ClassShare, ...], metrics, f"{end}_per_class") for end in ends]
    classes = [
        OneClass(at_ends[0].label, at_ends[0].n, rates)
        for at_ends in zip(*lines, strict=True)
        if len(rates := tuple(line.rate for line in at_ends if line.rate)) == len(ends)
    ]
    return ends, sorted(classes, key=lambda row: row.rates[0].value)


def weakest_slices(metrics: Mapping[str, Value]) -> list[SliceRow]:
    """Return the slices of a summary; lowest worst case first, then lowest clean accuracy."""

    def rank(row: SliceRow) -> tuple[float, float]:
        return 1.0 if row.worst_case_accuracy is None else row.worst_case_accuracy, row.clean_accuracy

    return sorted(table(tuple[SliceRow, ...], metrics, "slices"), key=rank)


def gap_words(metrics: Mapping[str, Value], end: str) -> str:
    """`30.0 points [0.0, 61.2]; the gap may be chance`."""
    gap, ends = number(metrics, f"{end}_class_gap"), limits(metrics, f"{end}_class_gap")
    if ends is None:  # a summary of an older version
        return f"{100 * gap:.1f} points"
    low, high = ends
    chance = "; the gap may be chance" if gap and not low else ""
    return f"{100 * gap:.1f} points [{100 * low:.1f}, {100 * high:.1f}]{chance}"
