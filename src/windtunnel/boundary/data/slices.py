"""Read `data.slices`: a CSV of sample,column,value that gives the conditions under which each sample was taken."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.boundary.files import read_text
from windtunnel.core.errors import UserError, nearest, shown

if TYPE_CHECKING:  # names of metrics are checked without torch
    from torch import Tensor

    from windtunnel.core.dataset import Dataset

_KEY = "data.slices"
_HEADER = ("sample", "column", "value")
_MAX_BYTES = 2**28  # some million lines
MOST_SLICES = 500
_WORD = re.compile(r"[\w .:+-]+")  # a part of the name of a metric, also in MLflow


@dataclass(frozen=True, slots=True)
class Slices:
    """Parts of the assessed samples. names: S pairs (column, value), sorted; members: bool (S, N)."""

    names: tuple[tuple[str, str], ...]
    members: Tensor


def slice_names(path: str) -> list[tuple[str, str]]:
    """Return the (column, value) pairs of the file, sorted. Raises UserError as `read_slices`."""
    return sorted({(column, value) for _, column, value in _lines(path)})


def read_slices(path: str, dataset: Dataset) -> Slices:
    """Return the slices with at least one assessed sample.

    Raises:
        UserError: in one line, for a file that is missing or no such CSV, a sample with two values of a column, names that are
            no samples, more than 500 slices, and where no line is of an assessed sample.
    """
    import torch

    index_of = {name: i for i, name in enumerate(dataset.ids)}
    value_of: dict[tuple[str, str], str] = {}
    for sample, column, value in _lines(path):
        if value_of.setdefault((sample, column), value) != value:
            raise UserError(
                f"{_KEY}: {path}: {sample} has two values of {column}, {value_of[sample, column]} and {value}"
            )
    strange = next((sample for sample, _ in value_of if sample not in index_of), None)
    if strange is not None and (_all_are_assessed(dataset) or not any(sample in index_of for sample, _ in value_of)):
        near = nearest(strange, index_of)
        hint = f"; did you mean {near}?" if near else f"; ids are like {next(iter(index_of), '')}"
        raise UserError(f"{_KEY}: {path} names {shown(strange)}, which is no sample{hint}")
    names = sorted({(column, value) for (sample, column), value in value_of.items() if sample in index_of})
    members = torch.zeros(len(names), len(index_of), dtype=torch.bool)
    row = {name: i for i, name in enumerate(names)}
    for (sample, column), value in value_of.items():
        if sample in index_of:
            members[row[column, value], index_of[sample]] = True
    return Slices(tuple(names), members)


def _all_are_assessed(dataset: Dataset) -> bool:
    chosen = dataset.metadata.get("samples")
    return isinstance(chosen, dict) and chosen.get("of") == len(dataset)


def _lines(path: str) -> Iterator[tuple[str, str, str]]:
    text = read_text(Path(path), where=_KEY, max_bytes=_MAX_BYTES)
    slices: set[tuple[str, str]] = set()
    try:
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = tuple(cell.strip() for cell in next(rows, ()))
        if header != _HEADER:
            raise UserError(
                f"{_KEY}: {path}: its first line is {shown(','.join(header))}; it has to be {','.join(_HEADER)}"
            )
        for cells in rows:
            if not cells:
                continue
            values = [cell.strip() for cell in cells]
            if len(values) != len(_HEADER) or not all(values):
                raise UserError(
                    f"{_KEY}: {path}, line {rows.line_num}: needs sample,column,value, each of them filled in"
                )
            sample, column, value = values
            if odd := next((word for word in (column, value) if not _WORD.fullmatch(word)), None):
                raise UserError(
                    f"{_KEY}: {path}, line {rows.line_num}: {shown(odd)} is no name of a slice; letters, digits, spaces and _ . : + - "
                    f"make one"
                )
            slices.add((column, value))
            if len(slices) > MOST_SLICES:
                raise UserError(f"{_KEY}: {path} has more than {MOST_SLICES} slices; group the values of a column")
            yield sample, column, value
    except csv.Error as error:
        raise UserError(f"{_KEY}: {path} is not a CSV ({error})") from error
    if not slices:
        raise UserError(f"{_KEY}: {path} has no lines below {','.join(_HEADER)}")
