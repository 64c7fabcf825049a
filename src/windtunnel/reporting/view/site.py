"""The files of the sample browser, each made when it is asked for: served one by one, or written all at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from windtunnel.assessments.figures.pictures import allowed, pictures_as, pixels_of, sheet_png, shrunk, tile_of
from windtunnel.boundary.writing import writing
from windtunnel.records.files import read_own
from windtunnel.reporting.compare.runs import Run
from windtunnel.reporting.view.columns import (
    NEAREST,
    PageAssessment,
    PageSamples,
    changed_images,
    collect,
    column,
    core,
    rows_at,
)


class Sheet(NamedTuple):
    """Many pictures in one file: `samples` of them, `across` in a row, of `side` pixels at most, below `folder`."""

    folder: str
    samples: int
    across: int
    side: int


SMALL, LARGE = Sheet("sheets", 256, 16, 64), Sheet("large", 4, 2, 256)
_STATIC = ("view.css", "view.js")


def site(runs: list[Run], *, served: bool = False) -> Mapping[str, Callable[[], bytes]]:
    """Return the path of each file below the page's folder, with the function that makes it.

    `served`: data are JSON, which no page of another origin can read; a page on disk (`file:`) can load scripts alone.
    """
    modes = [run.pictures for run in runs]
    with pictures_as(modes):
        return {name: partial(_made, modes, make) for name, make in _files(runs, served=served).items()}


def _made(modes: Sequence[str], make: Callable[[], bytes]) -> bytes:
    with pictures_as(modes):  # of the thread that serves
        return make()


def _files(runs: list[Run], *, served: bool) -> dict[str, Callable[[], bytes]]:
    samples, data, kind = collect(runs), *((_json, "json") if served else (_script, "js"))
    files: dict[str, Callable[[], bytes]] = {"index.html": _served_page if served else partial(_template, "view.html")}
    files |= {name: partial(_template, name) for name in _STATIC}
    images = samples.base.images("clean_inputs")
    has_large = images is not None and tile_of(images, LARGE.side) != tile_of(images, SMALL.side)
    # A bundle with large pictures of every assessment would be gigabytes: it has those of the nearest examples.
    with_large = [s for s, source in enumerate(samples.sources) if has_large and (served or source.name == NEAREST)]
    large = {"tile": tile_of(images, LARGE.side), "sources": with_large} if images is not None and has_large else None
    files[f"core.{kind}"] = lambda: data("core", core(samples, large))
    for sheet in (SMALL, LARGE) if has_large else (SMALL,):
        for b in range(math.ceil(len(samples.names) / sheet.samples) if images is not None else 0):
            files[f"{sheet.folder}/clean-{b}.png"] = partial(_clean_sheet, samples, sheet, b)
            for s, source in enumerate(samples.sources):
                if changed_images(source) is not None and (sheet is SMALL or s in with_large):
                    files[f"{sheet.folder}/{s}-{b}.png"] = partial(_sheet, samples, source, sheet, b)
                    files[f"{sheet.folder}/{s}-{b}-change.png"] = partial(_change_sheet, samples, source, sheet, b)
    for s, source in enumerate(samples.sources):
        files[f"column-{s}.{kind}"] = partial(lambda s, source: data("column", s, column(source)), s, source)
    return files


def write_site(runs: list[Run], folder: Path) -> Iterator[Path]:
    """Write every file of the page below `folder`; the page then opens from disk and asks nobody for anything."""
    for name, make in site(runs).items():
        path = folder / name
        with writing(path, where="--bundle", suffixes=(path.suffix,), inside=folder) as temporary:
            temporary.write_bytes(make())
        yield path


def _template(name: str) -> bytes:
    return read_own(Path(__file__).parent / "templates" / name)


def _served_page() -> bytes:
    """Return the page of the server, which fetches its data: `connect-src` allows it, and says so to view.js."""
    page = _template("view.html").replace(b"script-src 'self'", b"script-src 'self'; connect-src 'self'")
    return page.replace(b'<script src="core.js"></script>\n', b"").replace(b"<html ", b'<html data-served="" ')


def _json(name: str, *values: object) -> bytes:
    return json.dumps([name, *values], separators=(",", ":")).encode()


def _script(name: str, *values: object) -> bytes:
    # JSON is JavaScript but for two line separators; what is inside is text, and becomes text nodes.
    text = ",".join(json.dumps(value, separators=(",", ":")) for value in values)
    return f"windtunnel.{name}({text});".replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode()


def _span(samples: PageSamples, sheet: Sheet, block: int) -> tuple[int, int]:
    return block * sheet.samples, min(len(samples.names), (block + 1) * sheet.samples)


def _clean_sheet(samples: PageSamples, sheet: Sheet, block: int) -> bytes:
    return _of_images(rows_at(samples.base, "clean_inputs", *_span(samples, sheet, block)), sheet)


def _sheet(samples: PageSamples, source: PageAssessment, sheet: Sheet, block: int) -> bytes:
    return _of_images(rows_at(source, "perturbed_inputs", *_span(samples, sheet, block)), sheet)


def _of_images(images: Tensor | None, sheet: Sheet) -> bytes:
    assert images is not None  # only what has images has a sheet
    return sheet_png(pixels_of(shrunk(images.nan_to_num(1.0), sheet.side)), sheet.across)


def _change_sheet(samples: PageSamples, source: PageAssessment, sheet: Sheet, block: int) -> bytes:
    """Return the change of each sample on its own scale: red brighter, blue darker, white none."""
    from matplotlib import colormaps

    span = _span(samples, sheet, block)
    images, clean = rows_at(source, "perturbed_inputs", *span), rows_at(samples.base, "clean_inputs", *span)
    assert images is not None
    assert clean is not None
    change = shrunk(allowed((images - clean).nan_to_num(0.0), 0.0), sheet.side)
    signed = change.gather(1, change.abs().argmax(1, keepdim=True))[:, 0]
    scale = signed.abs().flatten(1).amax(1).clamp(min=1e-8)[:, None, None]
    colours = colormaps["RdBu_r"](((signed / scale + 1) / 2).numpy())[..., :3]
    return sheet_png((colours * 255).round().astype(np.uint8), sheet.across)
