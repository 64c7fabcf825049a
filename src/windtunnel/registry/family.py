"""The class of a family of assessments: a key of params.yaml, a DVC stage, and methods that check, run and report its entries.

A method imports what it needs when it is called, so that a list of the families costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.core.classifier import Classifier
    from windtunnel.core.contracts import Algorithm, AssessmentKind
    from windtunnel.core.dataset import Dataset
    from windtunnel.params.entry import Budget, Entry
    from windtunnel.records.artifacts import Artifacts
    from windtunnel.records.layout import Layout
    from windtunnel.records.result import AssessmentResult
    from windtunnel.registry.reported import Reported

E = TypeVar("E", bound="Entry")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Dependencies of an entry's result beyond the imports of its stage.

    options: names of optional code that the entry imports, such as its library. files: the user's files, by key. code: modules
    that this entry alone executes, the user's own among them.
    """

    options: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()


class PlannedRun(NamedTuple, Generic[E]):
    """An entry before it is run. where: its key in params.yaml. budget: the global one."""

    where: str
    entry: E
    budget: Budget
    classifier: Classifier
    dataset: Dataset


class Family(ABC, Generic[E]):
    """One family of assessments, whose entries in params.yaml are of the type E.

    name: the key of params.yaml. stage: the DVC stage (`python -m windtunnel stage <stage> <entry>`). order: place in lists
    and reports. entry_type: the pydantic model of an entry. figures: module that registers its visualisers. visualisers: those
    drawn where an entry names none. headline: the metrics that lead, for people who compare runs. accuracy: the one that stands
    for an assessment where one alone is shown, in words; without it that of its kind (records.basis). plot: x, y and title of
    the series that `finish` writes to reports/plots/<stage>/<entry>.csv, as DVC draws it; empty for none. generators: whether
    its entries read the generative models of the stage `generators`. built_on: whether entries may name its entries, whose
    results they build on (`on`, `examples_from`).
    """

    name: str
    stage: str
    order: int
    entry_type: type[E]
    figures: str
    visualisers: tuple[str, ...] = ()
    headline: tuple[str, ...] = ()
    accuracy: Mapping[str, str] = {}
    plot: Mapping[str, str] = {}
    generators: bool = False
    built_on: bool = False

    @abstractmethod
    def algorithms(self) -> Sequence[Algorithm]:
        """Return the algorithms that entries may name."""

    @abstractmethod
    def run(self, task: Task[E]) -> AssessmentResult:
        """Return the result of an entry, reading what other entries or stages left where the entry says so."""

    def finish(self, artifacts: Artifacts, layout: Layout) -> None:
        """Write what lies beside the artifacts, once these are on disk; nothing by default."""

    def preflight(self, plan: PlannedRun[E]) -> Iterable[str]:
        """Return lines for `check` to print. Raises UserError, in one line that begins with `where`, for what cannot run."""
        return ()

    def has_own_budget(self, entry: E) -> bool:
        """Return True for an entry that the global budget has no say in."""
        return False

    def dependencies(self, entry: E, budget: Budget) -> Dependencies:
        """Return what the entry's result depends on, under the global budget; by default the library that it names."""
        return Dependencies(frozenset({entry.library}))

    def unknown_words(self, where: str, entry: E) -> Iterable[str]:
        """Return a line for each name in the entry, beside its algorithm and its figures, that nothing offers."""
        return ()

    def parts(self, entry: E, where: str) -> Sequence[str]:
        """Return the names of the parts of its results that other entries may name."""
        return ()

    def stored_results(self, entry: E) -> int:
        """Return about how many results of all its samples the entry leaves on the disk."""
        return 1

    def most_rows(self, entry: E, shape: tuple[int, ...], n_samples: int) -> int | None:
        """Return the most rows that the model is sent for `n_samples` images of `shape` (C, H, W); None where no number is sure."""
        return None

    def report_section(self, kind: AssessmentKind) -> Reported:
        """Return the section of the report on assessments of this kind."""
        from windtunnel.registry.reported import OF_KIND

        return OF_KIND[kind]


# Methods of a family on which no result depends. `resolve` leaves them, and what they alone import, out of cache keys: what
# `preflight` refuses has no result, and `dependencies` decides what is in the key.
WITHOUT_RESULT = frozenset(
    "preflight has_own_budget dependencies unknown_words parts stored_results most_rows report_section".split()
)
