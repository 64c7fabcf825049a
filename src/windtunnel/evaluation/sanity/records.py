"""Public records of robust accuracy, from records.json beside this file, which a person can update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from windtunnel.params.numbers import parse_number
from windtunnel.records.files import read_json
from windtunnel.records.metadata import fitting

FILE = Path(__file__).with_name("records.json")


@dataclass(frozen=True, slots=True)
class Record:
    """The best known robust accuracy of a benchmark under Linf `epsilon`. read: when it was looked up."""

    model: str
    accuracy: float
    epsilon: float
    read: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """One model of a benchmark. external: the lower one of an adaptive evaluation, where there is one."""

    model: str
    clean: float
    autoattack: float
    paper: str
    external: float | None = None
    by: str = ""

    @property
    def lowest(self) -> float:
        return self.autoattack if self.external is None else min(self.autoattack, self.external)


@dataclass(frozen=True, slots=True)
class _Benchmark:
    epsilon: str
    records: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class _Records:
    source: str
    read: str
    how: str
    benchmarks: dict[str, _Benchmark]


def best_known(benchmark: str) -> Record:
    """The highest of the records, each by its lowest evaluation: the external one where there is one."""
    content = fitting(_Records, read_json(FILE), str(FILE), "the best known accuracies")
    known = content.benchmarks[benchmark]
    best = max(known.records, key=lambda entry: entry.lowest)
    return Record(best.model, best.lowest, parse_number(known.epsilon), content.read)
