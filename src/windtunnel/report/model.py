"""The report as data: built once from the artifacts, rendered twice. A renderer computes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Table:
    """A table of plain text; the first column is left-aligned, numbers are already formatted."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture on disk, with what it shows in words."""

    path: Path
    caption: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence a reader must not miss. severity: `invalid`, `warning` or `info`."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it, in this order: findings, paragraphs, tables, figures."""

    title: str
    findings: tuple[Finding, ...] = ()
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """One bar of the sandwich: shares in [0, 1] that add up to 1."""

    budget: str
    certified: float
    unknown: float
    broken: float
    misclassified: float


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One sample of the appendix."""

    name: str
    target: str
    clean: str
    status: str
    decided_by: str
    distance: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a renderer needs."""

    title: str
    subtitle: str
    verdict: str
    findings: tuple[Finding, ...]
    layers: tuple[Layer, ...]
    sections: tuple[Section, ...]
    samples: tuple[SampleRow, ...] = ()
    samples_note: str = ""
    glossary: tuple[tuple[str, str], ...] = field(default_factory=tuple)
