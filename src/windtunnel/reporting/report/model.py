"""The report as data: built once from the artifacts, rendered twice. A renderer computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from windtunnel.assessments.figures.pictures import PictureGrid
from windtunnel.assessments.figures.scene import Scene

Severity = Literal["invalid", "warning", "info", "none"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. `code`: a command to type."""

    text: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Highlight:
    """One sentence a reader must not miss."""

    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of plain text; numbers are already formatted. `folded`: on screen behind a click."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture on disk, with what it shows in words."""

    path: Path
    caption: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing in vectors, with what it shows in words. `narrow`: the same for the screen of a phone, where it is another."""

    scene: Scene
    caption: str
    narrow: Scene | None = None


Block: TypeAlias = Text | Highlight | Table | Figure | Chart | PictureGrid


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what stands below it in its order, and its subsections.

    `detail`: for who searches; folded on screen, and on paper only in the full layout.
    """

    title: str
    blocks: tuple[Block, ...] = ()
    children: tuple[Section, ...] = ()
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline number: what it is, its value, its interval, and what it means in a few words."""

    label: str
    value: str
    interval: str
    meaning: str
    role: str


class SampleResult(NamedTuple):
    """Result of one assessment for one sample, as text."""

    verdict: str
    prediction: str = ""
    distance: str = ""
    decided_by: str = ""


class SampleRow(NamedTuple):
    """One sample: its tightest status, who decided it, and every assessment's result (None: not among its samples)."""

    name: str
    target: str
    clean: str
    status: str
    decided_by: str
    distance: str
    results: tuple[SampleResult | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Sprite:
    """Thumbnails of some samples on one sheet: `slots[i]` is the row index of the sample on tile i, row by row.

    `source`: index of the assessment whose perturbed inputs they are, -1 for the clean ones.
    """

    source: int
    png: bytes
    tile: tuple[int, int]
    columns: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampleAppendix:
    """The per-sample appendix."""

    note: str
    rows: tuple[SampleRow, ...]
    assessments: tuple[tuple[str, str], ...]
    sprites: tuple[Sprite, ...] = ()


@dataclass(frozen=True, slots=True)
class Front:
    """Page one: the answer. `facts`: (what, value) of the run; `threat`: what the adversary may do, in words and as a picture."""

    subtitle: str
    statement: str
    facts: tuple[tuple[str, str], ...] = ()
    alarms: tuple[Highlight, ...] = ()
    gate: Highlight | None = None
    sanity: Highlight | None = None
    tiles: tuple[Tile, ...] = ()
    sandwich: Chart | None = None
    threat: tuple[Block, ...] = ()
    findings: tuple[Highlight, ...] = ()
    caveats: tuple[Highlight, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportContent:
    """Content of a report for the renderers. `full`: details belong on paper too; `paper`: A4 or Letter."""

    title: str
    front: Front
    sections: tuple[Section, ...]
    samples: SampleAppendix | None = None
    glossary: tuple[tuple[str, str], ...] = ()
    full: bool = False
    paper: str = "A4"


ODD_METADATA = (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError, AssertionError)


def guarded(title: str, build: Callable[[], Section]) -> Section:
    """Return the section, or one that says why it cannot be shown."""
    try:
        return build()
    except ODD_METADATA as error:
        return Section(
            title, (Highlight("warning", f"Cannot be shown: its metadata is of another version ({error!r})."),)
        )
