"""Tables among the metrics of an assessment: each line a type, written and read as the same one. Quick to import."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from windtunnel.records.files import replacing
from windtunnel.records.metadata import Rate, Record, SandwichRecord, Value, fitting

if TYPE_CHECKING:
    from windtunnel.core.statistics import BinomialRate


T = TypeVar("T")


class _Named(Record):
    model_config = ConfigDict(serialize_by_alias=True)

    label: str = Field(alias="class")


class Share(Record):
    """Number of samples, rate and the ends of its interval; n alone where n is 0."""

    n: int
    accuracy: float | None = None
    accuracy_ci_low: float | None = None
    accuracy_ci_high: float | None = None

    @property
    def rate(self) -> Rate | None:
        """The share with its interval; None without samples."""
        return self.rate_of("accuracy")

    @classmethod
    def of(cls, rate: BinomialRate, **name: str) -> Self:
        """Return the line of a rate; `name`: what else the line holds."""
        return cls.model_validate({**name, "n": rate.n, **(rate.metrics("accuracy") if rate.n else {})})


class ClassShare(Share, _Named):
    """A line of a table of classes: `class`, `n`, and `accuracy` with its interval."""


class SliceRow(SandwichRecord):
    """A slice at the global budget: samples, those attacked, how many are in each state, and rates with simultaneous intervals."""

    column: str
    value: str
    n: int
    n_attacked: int
    states: dict[str, int]
    clean_accuracy: float
    clean_accuracy_ci_low: float
    clean_accuracy_ci_high: float
    worst_case_accuracy: float | None = None
    worst_case_accuracy_ci_low: float | None = None
    worst_case_accuracy_ci_high: float | None = None
    certified_accuracy: float | None = None
    certified_accuracy_ci_low: float | None = None
    certified_accuracy_ci_high: float | None = None

    @property
    def name(self) -> str:
        """`camera = B`."""
        return f"{self.column} = {self.value}"

    @property
    def clean(self) -> Rate | None:
        """Clean accuracy over all samples of the slice."""
        return self.rate_of("clean_accuracy")


def table(kind: type[T], block: Mapping[str, object], key: str) -> T:
    """Return the value under `key` of metrics or options as `kind`, such as `tuple[ClassShare, ...]`; an empty one for nothing.

    Raises UserError, in one line, where it does not fit.
    """
    value = block.get(key)
    return kind() if value is None else fitting(kind, value, key, "what this version writes there")


def written(lines: Iterable[BaseModel]) -> list[Value]:
    """Return a table as it stands among the metrics."""
    return [line.model_dump(mode="json") for line in lines]


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Write a CSV file with a header; the same rows give the same bytes on every system."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class ConfidenceBins(Record):
    """Mean confidence and accuracy of the samples of each bin of confidence, 0 for an empty one, and how many they are."""

    confidence: tuple[float, ...] = ()
    accuracy: tuple[float, ...] = ()
    count: tuple[int, ...] = ()

    @property
    def filled(self) -> list[tuple[float, float, int]]:
        """(confidence, accuracy, count) of each bin with samples."""
        return [line for line in zip(self.confidence, self.accuracy, self.count, strict=True) if line[2]]
