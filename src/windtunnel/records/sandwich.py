"""Metrics of the summary beside those of an assessment: a layer of the sandwich for each budget, and what is not valid."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from windtunnel.core.contracts import Norm
from windtunnel.core.transformations import budget_text
from windtunnel.records.files import METADATA_FILE, read_block
from windtunnel.records.metadata import Metadata, Options, Rate, Record, SandwichRecord, Value, fitting


class DrawRecord(Record):
    """The draw of one attack at a budget: the samples assigned to it before any result was known.

    selection: how the entry selected them among the assessed samples: `all`, `first`, `random` or `stratified`.
    """

    name: str
    family: str = "attacks"
    n: int
    selection: str

    @property
    def key(self) -> str:
        """The entry in params.yaml, for example `attacks.pgd`."""
        return f"{self.family}.{self.name}"


class Layer(SandwichRecord):
    """The robustness sandwich at one budget, each rate with its 95 % interval.

    name: of the budget, under which metrics have its rates; None where it has none.
    n: all samples. n_attacked: the union of the draws of the attacks at this budget (`draws`); n_examined: samples that a
    verifier was given. worst_case_accuracy: share of the union that is neither misclassified nor broken; None where nothing
    attacked. certified_accuracy: share of the union that is certified (of all samples where nothing attacked);
    certified_accuracy_all: of all samples; None where nothing was verified. robust_accuracy_at_most: certified, survived
    and not attacked, of all samples. states: how many of all samples are in each `SampleState`. attacked_by,
    certified_by: the assessments that broke or certified one.
    """

    name: str | None = None
    norm: Norm
    epsilon: float
    n: int
    n_attacked: int
    n_examined: int
    worst_case_accuracy: float | None = None
    worst_case_accuracy_ci_low: float | None = None
    worst_case_accuracy_ci_high: float | None = None
    certified_accuracy: float | None = None
    certified_accuracy_ci_low: float | None = None
    certified_accuracy_ci_high: float | None = None
    certified_accuracy_all: float | None = None
    certified_accuracy_all_ci_low: float | None = None
    certified_accuracy_all_ci_high: float | None = None
    robust_accuracy_at_most: float | None = None
    states: dict[str, int] = Field(default_factory=dict)
    draws: tuple[DrawRecord, ...] = ()
    attacked_by: tuple[str, ...] = ()
    certified_by: tuple[str, ...] = ()

    @property
    def budget(self) -> str:
        """`Linf ≤ 0.06`."""
        return budget_text(self.norm, self.epsilon)

    @property
    def certified_all(self) -> Rate | None:
        """Certified accuracy over all samples, the lower bound of robust accuracy; of older versions that of `certified`."""
        return self.rate_of("certified_accuracy_all") or self.certified

    @property
    def n_certified(self) -> int:
        """The number of samples that `certified` is of."""
        return self.n_attacked or self.n

    @property
    def only_first(self) -> bool:
        """True if every draw took the first samples: the sandwich is then no unbiased estimate for all samples."""
        return bool(self.draws) and all(draw.selection == "first" for draw in self.draws)


class Reproducibility(Record):
    """Reproducibility of a run: names of the assessments that two seeds cannot, or can, tell apart.

    decided_by_seed: a phrase for everything that the seed decides before any assessment. not_controlled: a phrase for everything
    that may differ on a second run with the same seed.
    """

    seed: int
    decided_by_seed: tuple[str, ...] = ()
    deterministic: tuple[str, ...]
    seeded: tuple[str, ...]
    not_controlled: tuple[str, ...]


class SummaryOptions(Options):
    """`kwargs` of the summary's metadata. assessments: their names, in the order of the run. hard_failures: a line each.

    failed: names of the entries that have no result. slices: (column, value) of the rows of `slice_members`.
    """

    assessments: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    hard_failures: tuple[str, ...]
    reproducibility: Reproducibility | None = None
    slices: tuple[tuple[str, str], ...] = ()


class _Sandwich(Record):
    sandwich: tuple[Layer, ...]


def layers_of(metrics: Mapping[str, Value]) -> tuple[Layer, ...]:
    """Return the layers among the metrics of the summary, the global budget first. Raises UserError where they do not fit."""
    return fitting(_Sandwich, metrics, "the summary", "a sandwich").sandwich


def layers_in(metrics: Mapping[str, Value]) -> tuple[Layer, ...]:
    """Return the layers among the metrics of any assessment: none but for the summary. Raises UserError as `layers_of`."""
    return layers_of(metrics) if "sandwich" in metrics else ()


def options_of_summary(metadata: Metadata) -> SummaryOptions:
    """Return the options of the summary. Raises UserError, in one line, where they do not fit."""
    return fitting(SummaryOptions, metadata.kwargs.model_dump(), metadata.name, "the options of a summary")


def read_summary(directory: Path) -> SummaryOptions:
    """Return the options of the summary in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / METADATA_FILE
    return fitting(SummaryOptions, read_block(path, "kwargs")["kwargs"], str(path), "the options of a summary")
