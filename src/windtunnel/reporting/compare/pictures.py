"""Pictures of the samples that flipped: the clean image, and what each run's assessment made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import Verdict
from windtunnel.reporting.compare.document import flips
from windtunnel.reporting.compare.paired import Pair
from windtunnel.reporting.report.png import data_uri, png_of

MAX_PICTURES = 24  # of each way of flipping: a page that opens at once
_SMALLEST = 64  # pixels; a digit of 8x8 would be a dot


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as a data URI, and what the model says of it."""

    source: str
    caption: str


@dataclass(frozen=True, slots=True)
class Flips:
    """The samples of one outcome that flipped one way: rows of (name, pictures); `left_out` had no room."""

    title: str
    rows: tuple[tuple[str, tuple[Picture, ...]], ...]
    left_out: int


def flipped(pair: Pair, first: str, second: str) -> Iterator[Flips]:
    """Pictures of what flipped in `pair`; nothing where the samples are no images."""
    if pair.first.tensor("clean_inputs").ndim != 4:
        return
    for words, rows in flips(pair, first, second):
        shown = tuple(
            (pair.first.sample_names[i], tuple(_pictures(pair, i, first, second))) for i in rows[:MAX_PICTURES]
        )
        yield Flips(words, shown, len(rows) - len(shown))


def _pictures(pair: Pair, i: int, first: str, second: str) -> Iterator[Picture]:
    target, clean = (int(pair.first.tensor(key)[i]) for key in ("targets", "clean_predictions"))
    names = pair.first.class_names
    yield Picture(
        _png(pair.first.tensor("clean_inputs")[i]), f"clean: {_name(clean, names)}, is {_name(target, names)}"
    )
    for label, artifacts in ((first, pair.first), (second, pair.second)):
        yield _perturbed(artifacts, i, label)


def _perturbed(artifacts: Artifacts, i: int, label: str) -> Picture:
    verdict = int(artifacts.tensor("verdicts")[i])
    if "perturbed_inputs" in artifacts.data and "perturbed_predictions" in artifacts.data:
        image, prediction = artifacts.tensor("perturbed_inputs")[i], int(artifacts.tensor("perturbed_predictions")[i])
        if image.isfinite().all() and prediction >= 0:
            return Picture(_png(image), f"{label}: {_name(prediction, artifacts.class_names)}")
    return Picture("", f"{label}: {Verdict(verdict).label.replace('_', ' ')}")


def _name(label: int, names: list[str]) -> str:
    return names[label] if 0 <= label < len(names) else str(label)


def _png(image: Tensor) -> str:
    """A float image (C, H, W) in [0, 1] as a data URI; one channel is grey, two or more than three show the first."""
    return data_uri(png_of(image, _SMALLEST))
