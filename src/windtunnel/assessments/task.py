"""One entry of params.yaml with what it runs on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget, Entry
from windtunnel.params.resolved import Resolved
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.layout import HERE, Layout

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Task(Generic[E]):
    """One entry of params.yaml as it is run. budget: the norm and epsilon it runs under.

    subject: the model beside the samples that the entry asks for; all_samples: beside all assessed samples. layout: where the
    run keeps what it makes. earlier: the results of the entries that `entry.references()` names, by name. kept_in: where its
    result goes while another entry, which builds on it, is run; None for the run's own place.
    """

    where: str
    name: str
    entry: E
    budget: Budget
    subject: Subject
    all_samples: Subject
    resolved: Resolved
    layout: Layout = HERE
    earlier: Mapping[str, Artifacts] = field(default_factory=dict)
    kept_in: Path | None = None

    @property
    def directory(self) -> Path:
        """The directory of its result."""
        return self.kept_in or self.layout.robustness / self.name

    def chosen_of(self, all_samples: Subject) -> Subject:
        """Return the samples that the entry asks for."""
        samples = self.entry.samples
        seed = self.resolved.seed if samples.seed is None else samples.seed
        return all_samples.choose(samples.n, samples.selection, seed)
