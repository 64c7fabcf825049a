"""Convert the output of a visualiser to blocks of the report: its charts in vectors and its pictures, described by the visualiser itself.

Drawn while the tensors of the assessment are in memory; kept are blocks alone. A visualiser that is not installed here, or that cannot
read what is on disk, is shown as the PNG that it left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.assessments.figures.base import VISUALISERS, drawn
from windtunnel.assessments.figures.registry import register_figures
from windtunnel.assessments.figures.scene import Scene
from windtunnel.boundary.pictures import is_picture
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import FigureRecord
from windtunnel.reporting.report.model import ODD_METADATA, Block, Chart, Figure, Text


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure of an assessment. `repeats`: shows clean images or maps of the change, which the report may show elsewhere.

    essential: whether the section on its family shows it.
    """

    visualiser: str
    blocks: tuple[Block, ...]
    repeats: bool = False
    essential: bool = False


def figures_of(artifacts: Artifacts) -> tuple[Drawn, ...]:
    """Return the figures that metadata.json lists, in its order."""
    register_figures()
    return tuple(_figures(artifacts))


def _figures(artifacts: Artifacts) -> Iterator[Drawn]:
    pictures = picture_files(artifacts)
    for row in artifacts.metadata.visualisers:
        name, title = row.name, row.title or row.name
        path = pictures.get(row.file)
        repeats = row.embeds_clean_input or row.embeds_perturbation_map
        essential = name in VISUALISERS and VISUALISERS[name].essential
        if row.empty:
            yield Drawn(name, (Text(f"{title}: {row.empty}"),), essential=essential)
        elif blocks := _described(artifacts, row, title):
            yield Drawn(name, blocks, repeats, essential)
        elif path:
            yield Drawn(name, (Figure(path, f"{artifacts.name}: {title}"),), repeats, essential)


def _described(artifacts: Artifacts, row: FigureRecord, title: str) -> tuple[Block, ...]:
    """Yield the blocks that the visualiser of a row of metadata.json draws with its options; nothing where it is unknown or cannot."""
    visualiser = VISUALISERS.get(row.name)
    if visualiser is None:
        return ()
    try:
        drawings, empty = drawn(visualiser(**row.options), artifacts)
    except ODD_METADATA:
        return ()
    if empty:
        return (Text(f"{title}: {empty}"),)
    caption = f"{artifacts.name}: {title}"
    return tuple(Chart(drawing, caption) if isinstance(drawing, Scene) else drawing for drawing in drawings)


def picture_files(artifacts: Artifacts) -> Mapping[str, Path]:
    """Return the files of `visualisers` in metadata.json that are pictures in the assessment's own directory."""
    names = [row.file for row in artifacts.metadata.visualisers]
    paths = {name: artifacts.directory / name for name in names if Path(name).name == name}
    return {name: path for name, path in paths.items() if path.suffix == ".png" and is_picture(path)}
