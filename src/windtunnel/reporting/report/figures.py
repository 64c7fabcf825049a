"""What a visualiser shows, as blocks of the report: a chart in vectors or a grid of pictures, else its picture on disk.

Drawn while the tensors of the assessment are in memory; kept are blocks alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from windtunnel.core.artifacts import Artifacts
from windtunnel.reporting.report.charts.of_visualiser import CHARTS, Children
from windtunnel.reporting.report.grids import GRIDS
from windtunnel.reporting.report.guard import ODD_METADATA
from windtunnel.reporting.report.model import Block, Chart, Figure, Text
from windtunnel.reporting.report.words import rows_in


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure of an assessment. `ours`: in vectors, or in pictures of the report's own. `repeats`: shows clean images or maps."""

    visualiser: str
    blocks: tuple[Block, ...]
    ours: bool
    repeats: bool = False


def figures_of(artifacts: Artifacts, children: Children) -> tuple[Drawn, ...]:
    """The figures that metadata.json lists, in its order."""
    return tuple(_figures(artifacts, children))


def _figures(artifacts: Artifacts, children: Children) -> Iterator[Drawn]:
    pictures = picture_files(artifacts)
    for row in rows_in(artifacts.plain, "visualisers"):
        name, title = str(row.get("name")), str(row.get("title") or row.get("name"))
        path = pictures.get(str(row.get("file")))
        repeats = bool(row.get("embeds_clean_input") or row.get("embeds_perturbation_map"))
        if row.get("empty"):
            yield Drawn(name, (Text(f"{title}: {row['empty']}"),), ours=True)
            continue
        # A chart draws what the visualiser draws by default; with options the picture is what was asked for.
        blocks = () if row.get("options") and path else tuple(_own(artifacts, name, title, children))
        if blocks:
            yield Drawn(name, blocks, True, repeats)
        elif path:
            yield Drawn(name, (Figure(path, f"{artifacts.name}: {title}"),), False, repeats)


def _own(artifacts: Artifacts, visualiser: str, title: str, children: Children) -> list[Block]:
    try:
        scenes = [draw(artifacts, children) for draw in CHARTS.get(visualiser, ())]
        grid = GRIDS[visualiser](artifacts) if visualiser in GRIDS else None
    except ODD_METADATA:
        return []
    return [*(Chart(scene, f"{artifacts.name}: {title}") for scene in scenes if scene), *([grid] if grid else [])]


def picture_files(artifacts: Artifacts) -> Mapping[str, Path]:
    """The files of `visualisers` in metadata.json that are pictures in the assessment's own directory."""
    names = [str(row.get("file", "")) for row in rows_in(artifacts.plain, "visualisers")]
    paths = {name: artifacts.directory / name for name in names if Path(name).name == name}
    return {name: path for name, path in paths.items() if path.suffix == ".png" and _is_picture(path)}


def _is_picture(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.verify()
    except (OSError, SyntaxError, UnidentifiedImageError):  # Pillow raises SyntaxError for a broken PNG
        return False
    return True
