"""The sample browser: the samples of one run or several as columns, and the files of its page, each made when it is asked for.

Columns hold a value per sample, in the order of the first run's samples. Tensors stay on disk until a row of them is asked for, so
that a hundred thousand samples are no more than their columns. Files are served one by one, or written all at once.
"""

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windtunnel.assessments.figures.pictures import (
    allowed,
    picture_mode,
    pictures_as,
    pixels_of,
    sheet_png,
    shrunk,
    tile_of,
)
from windtunnel.boundary.data.record import origin_of
from windtunnel.boundary.writing import check_output
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.sample_states import SampleState, states_of
from windtunnel.core.transformations import budget_text
from windtunnel.records.artifacts import load_tensors, with_run_times
from windtunnel.records.files import DATA_FILE, read_own, replacing
from windtunnel.records.metadata import Metadata, Region, read_metadata
from windtunnel.records.result import Tensors, tensor_in
from windtunnel.records.sandwich import layers_in
from windtunnel.records.storage import KEPT
from windtunnel.reporting.compare.runs import Run

NONE = 65_535  # of an answer that is not there
SMALL_SIDE = 64  # pixels of a picture among others, at most
STATUSES = ("", *(state.words for state in SampleState))  # the first: no summary knows the sample
NEAREST = "nearest example"  # of all assessments: the summary, shown as one more assessment
CONFIDENCE = "confidence"  # in the answer under the perturbation, computed from the logits
# Numbers of a sample beside the verdict, in the words of the page: the name, and the unit after a comma.
NUMBERS = {
    "perturbation_distance": "distance",
    CONFIDENCE: "confidence, %",
    "lower_margins": "verified margin",
    "certified_radius": "verified up to epsilon",
    "broken_radius": "broken from epsilon",
    "queries": "queries",
    "critical_epsilon": "critical epsilon",
    "minimal_severity": "mildest severity that breaks",
    "runtime_per_sample": "run time, s",
    "forward_passes": "forward passes",
}


@dataclass(frozen=True)
class PageAssessment:
    """One assessment of one run. `places`: for each sample of the page its row in the tensors, -1 where it has none.

    `pictures`: its row in the images, -1 where they were not kept.
    """

    run: str
    name: str
    kind: str
    region: str
    data: Tensors
    places: NDArray[np.int64]
    pictures: NDArray[np.int64]

    def images(self, key: str) -> Tensor | None:
        """Return the images under `key`, (n, C, H, W); None where there are none to be shown."""
        if picture_mode() == "none":
            return None
        value = self.data.get(key)
        return value if isinstance(value, Tensor) and value.ndim == 4 else None

    def spread(self, key: str, missing: float) -> NDArray[np.float64] | None:
        """Return a 1-D tensor as a value per sample of the page; None where the assessment has none."""
        return self._spread(self.data.get(key), missing)

    def _spread(self, value: object, missing: float) -> NDArray[np.float64] | None:
        if not isinstance(value, Tensor) or value.ndim != 1 or not len(value):
            return None
        return np.where(self.places >= 0, value.double().numpy()[self.places.clip(0)], missing)

    def has_numbers(self, key: str) -> bool:
        """Return True if the assessment has `key` of NUMBERS."""
        keys = ("perturbed_logits", "clean_confidence") if key == CONFIDENCE else (key,)
        return any(isinstance(value := self.data.get(k), Tensor) and len(value) for k in keys)

    def numbers(self, key: str) -> NDArray[np.float64] | None:
        """Return `key` of NUMBERS as a value per sample of the page, NaN where it is not known; None without."""
        if key != CONFIDENCE:
            return self.spread(key, np.nan)
        if isinstance(logits := self.data.get("perturbed_logits"), Tensor) and logits.ndim == 2:
            return self._spread(logits.softmax(1).amax(1).double() * 100, np.nan)
        clean = self.spread("clean_confidence", np.nan)  # of the clean input where that is all there is
        return None if clean is None else clean * 100


@dataclass(frozen=True)
class PageSamples:
    """All samples of the page: names, classes, targets and clean answers int64 (N,), and every assessment of every run.

    sources: the assessments of each run in its order, then the summary of each run (`NEAREST`).
    about: of each run with a summary its model, data and global budget, in a line.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    targets: NDArray[np.int64]
    clean: NDArray[np.int64]
    runs: tuple[str, ...]
    summaries: Mapping[str, PageAssessment]
    sources: tuple[PageAssessment, ...]
    base: PageAssessment
    title: str
    about: Mapping[str, str]


def collect(runs: Sequence[Run]) -> PageSamples:
    """Return the samples of the first run, with what every run found of them, matched by name. Raises UserError for none."""
    read = [
        (run, name, directory, read_metadata(directory))
        for run in runs
        for name, directory in run.assessments().items()
    ]
    if not read:
        raise UserError("view: no results there; run dvc repro first")
    options = read[0][-1].kwargs
    index = {sample: i for i, sample in enumerate(options.sample_names)}
    sources = [_assessment(*row, index) for row in read]
    summaries = {
        run.label: replace(source, name=NEAREST)
        for (run, name, *_), source in zip(read, sources, strict=True)
        if name == "summary"
    }
    base = sources[0]
    targets, clean = (tensor_in(base.data, key).numpy() for key in ("targets", "clean_predictions"))
    numbered = (f"sample {i + 1}" for i in range(len(index)))
    return PageSamples(
        names=tuple(options.sample_names if options.show_sample_names else numbered),
        classes=tuple(options.class_names),
        targets=targets,
        clean=clean,
        runs=tuple(run.label for run in runs),
        summaries=summaries,
        sources=(*(s for s in sources if s.name not in ("summary", "clean")), *summaries.values()),
        base=base,
        title=runs[0].params.get("report.title", "Robustness assessment"),
        about={run.label: _about(run, metadata) for run, name, _, metadata in read if name == "summary"},
    )


def _assessment(run: Run, name: str, directory: Path, metadata: Metadata, index: Mapping[str, int]) -> PageAssessment:
    """Return an assessment at the samples of the page, which `index` numbers by name."""
    data = with_run_times(load_tensors(directory / DATA_FILE, whole=False), directory)
    places = np.full(len(index), -1, np.int64)
    for row, sample in enumerate(metadata.kwargs.sample_names):
        if sample in index:
            places[index[sample]] = row
    region = _region(metadata.semantics.perturbation)
    return PageAssessment(run.label, name, metadata.assessment_kind, region, data, places, _in_images(places, data))


def _about(run: Run, metadata: Metadata) -> str:
    layers, data = layers_in(metadata.metrics), run.params.get("data.source")
    of_data = f"{len(metadata.kwargs.sample_names)} samples" + (f" {origin_of(str(data))}" if data else "")
    parts = (metadata.provenance.model_source, of_data, *(layer.budget for layer in layers[:1]))
    return ", ".join(part for part in parts if part)


def _in_images(places: NDArray[np.int64], data: Tensors) -> NDArray[np.int64]:
    image_rows = data.get(KEPT)
    if not isinstance(image_rows, Tensor) or not len(image_rows):
        return places if image_rows is None else np.full_like(places, -1)
    rows = image_rows.numpy()
    positions: NDArray[np.int64] = np.searchsorted(rows, places).clip(max=len(rows) - 1)
    return np.where(rows[positions] == places, positions, -1)


def _region(region: Region) -> str:
    if region.norm is None:
        return region.corruption_name or ""
    limits = f"{region.norm}, no bound" if region.epsilon is None else budget_text(region.norm, region.epsilon)
    return limits.replace("\N{NO-BREAK SPACE}", " ") + region.around


def statuses(samples: PageSamples, run: str) -> NDArray[np.uint8]:
    """Return the state of each sample in a run, as an index into STATUSES; 0 where there is no summary."""
    source = samples.summaries.get(run)
    return np.zeros(len(samples.names), np.uint8) if source is None else _statuses(source)


def _statuses(summary: PageAssessment) -> NDArray[np.uint8]:
    clean, targets = (tensor_in(summary.data, key) for key in ("clean_predictions", "targets"))
    states = states_of(summary.data, clean, targets).numpy()
    return np.where(summary.places >= 0, states[summary.places.clip(0)] + 1, 0).astype(np.uint8)


def core(samples: PageSamples, large: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the data of the first view: who the samples are and their status in each run.

    Args:
        samples: all of them.
        large: size and sources of the large pictures; None where the small ones show every pixel.
    """
    images = samples.base.images("clean_inputs")
    return {
        "title": samples.title,
        "names": "\n".join(name.replace("\n", " ") for name in samples.names),
        "classes": list(samples.classes),
        "targets": _packed(samples.targets.astype("<u2")),
        "clean": _packed(samples.clean.astype("<u2")),
        "runs": [{"label": run, "about": samples.about.get(run, "")} for run in samples.runs],
        "statuses": [_packed(statuses(samples, run)) for run in samples.runs],
        "status_names": list(STATUSES),
        "verdicts": {int(v): v.label.replace("_", " ") for v in Verdict},
        "sources": [
            {
                "run": samples.runs.index(s.run),
                "name": s.name,
                "region": s.region,
                "images": changed_images(s) is not None,
                "numbers": [name for key, name in NUMBERS.items() if s.has_numbers(key)],
                "verdicts": np.unique(_verdicts(s)).tolist(),
            }
            for s in samples.sources
        ],
        "tile": list(tile_of(images, SMALL_SIDE)) if images is not None else None,
        "large": large,
        "nearest": NEAREST,
    }


def column(source: PageAssessment) -> dict[str, object]:
    """Return the results of one assessment for each sample: verdict, prediction, and its numbers by their words (`NUMBERS`)."""
    answers, verdicts = source.spread("perturbed_predictions", -1), _verdicts(source)
    numbers = {name: values for key, name in NUMBERS.items() if (values := source.numbers(key)) is not None}
    if source.name == NEAREST:  # of a sample that is not broken the clean input stands there
        answers = None if answers is None else np.where(verdicts > 0, answers, -1)
        numbers = {name: np.where(verdicts > 0, values, np.nan) for name, values in numbers.items()}
    return {
        "verdict": _packed(verdicts),
        "answer": _packed(np.where(answers < 0, NONE, answers).astype("<u2")) if answers is not None else "",
        "numbers": {name: _packed(values.astype("<f4")) for name, values in numbers.items()},
    }


def _verdicts(source: PageAssessment) -> NDArray[np.uint8]:
    """Return the verdict on each sample, 0 where there is none; of the nearest examples those of broken samples alone."""
    if source.name == NEAREST:
        is_broken = _statuses(source) == STATUSES.index(SampleState.BROKEN.words)
        return np.where(is_broken, int(Verdict.ATTACK_SUCCEEDED), 0).astype(np.uint8)
    verdicts = source.spread("verdicts", 0)
    return np.zeros(len(source.places), np.uint8) if verdicts is None else verdicts.astype(np.uint8)


def changed_images(source: PageAssessment) -> Tensor | None:
    """Return the perturbed images of an assessment; averages over corruptions and decoded images are no changed clean images."""
    if source.kind == AssessmentKind.STATISTICAL_SAMPLING or "latents" in source.data:
        return None
    return source.images("perturbed_inputs")


def _packed(values: NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def rows_at(source: PageAssessment, key: str, start: int, stop: int) -> Tensor | None:
    """Return the images of the samples start to stop of the page, NaN where there are none; None where the assessment has none."""
    images = source.images(key)
    if images is None:
        return None
    places = torch.from_numpy(source.pictures[start:stop])
    selected = images[places.clamp(min=0)].clone()
    selected[places < 0] = torch.nan
    return selected


class Sheet(NamedTuple):
    """Many pictures in one file: `samples` of them, `across` in a row, of `side` pixels at most, below `folder`."""

    folder: str
    samples: int
    across: int
    side: int


SMALL, LARGE = Sheet("sheets", 256, 16, SMALL_SIDE), Sheet("large", 4, 2, 256)
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
        with replacing(check_output(path, where="--bundle", suffixes=(path.suffix,), inside=folder)) as temporary:
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
