"""Public records of robust accuracy, from records.json beside this file, which a person can update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from windtunnel.core.files import read_json
from windtunnel.params.numbers import parse_number

FILE = Path(__file__).with_name("records.json")


@dataclass(frozen=True, slots=True)
class Record:
    """The best known robust accuracy of a benchmark under Linf `epsilon`. read: when it was looked up."""

    model: str
    accuracy: float
    epsilon: float
    read: str


def best_known(benchmark: str) -> Record:
    """The highest of the records, each by its lowest evaluation: the external one where there is one."""
    content = cast(dict[str, object], read_json(FILE))
    block = cast(dict[str, dict[str, object]], content["benchmarks"])[benchmark]
    rows = cast(list[dict[str, object]], block["records"])
    best = max(rows, key=_lowest)
    return Record(str(best["model"]), _lowest(best), parse_number(block["epsilon"]), str(content["read"]))


def _lowest(row: dict[str, object]) -> float:
    return min(float(str(row[key])) for key in ("autoattack", "external") if key in row)
