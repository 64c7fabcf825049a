"""`metadata.json` of an assessment as a type: written and read as the same one.

Keys may be added, never renamed and never removed; what another version added is kept on reading (`extra`). A file that
does not fit is refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from windtunnel.core.contracts import AssessmentKind, Case, Caveat, Norm, Objective, ThreatModel
from windtunnel.core.errors import UserError, unfit
from windtunnel.records.files import METADATA_FILE, read_json

if TYPE_CHECKING:
    from windtunnel.core.contracts import Json

    Value: TypeAlias = Json
else:  # pydantic cannot read a recursive alias; its own type holds the same
    Value = JsonValue

Metrics = dict[str, Value]
_NOT_FINITE = ("inf", "-inf", "nan")  # as `plain_json` writes these numbers
T = TypeVar("T")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # building one takes longer than validating


class Record(BaseModel):
    """A block of a file of ours. Fields that are None are left out when it is written."""

    model_config = ConfigDict(extra="allow", frozen=True)
    _empty: ClassVar[tuple[object, ...]] = (None,)

    @model_serializer(mode="wrap")
    def _without_what_is_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        declared = type(self).model_fields
        return {key: value for key, value in write(self).items() if key not in declared or not self._is_empty(value)}

    def _is_empty(self, value: object) -> bool:
        return any(value is empty or (value == empty and type(value) is type(empty)) for empty in self._empty)

    @property
    def extra(self) -> Mapping[str, Value]:
        """Return the values of undeclared keys."""
        return self.model_extra or {}

    def rate_of(self, key: str) -> Rate | None:
        """Return the rate in the field `key`, with its interval from the fields beside it; None where it has no value."""
        return rate(vars(self), key)


class SandwichRecord(Record):
    """A block with the rates of a sandwich: of a budget, or of a slice at one."""

    @property
    def worst_case(self) -> Rate | None:
        """Worst-case accuracy over the attacked samples: the union of the draws."""
        return self.rate_of("worst_case_accuracy")

    @property
    def certified(self) -> Rate | None:
        """Certified accuracy over the same samples."""
        return self.rate_of("certified_accuracy")


class SparseRecord(Record):
    """A block whose fields are left out too where they are empty or false."""

    _empty: ClassVar[tuple[object, ...]] = (None, False, "", [], {})


class Region(Record):
    """The perturbation region: a ball (norm and the rest of the budget), or a distribution (corruption and severity).

    With both a norm and a corruption it is a ball around the corrupted image.
    """

    norm: Norm | None = None
    epsilon: float | None = None
    step_size: float | None = None
    steps: int | None = None
    corruption_name: str | None = None
    severity: int | None = None
    severities: tuple[int, ...] | None = None

    @property
    def is_around_corrupted(self) -> bool:
        """True if it is a ball around corrupted images: what holds there says nothing of the clean samples."""
        return self.norm is not None and self.corruption_name is not None

    @property
    def around(self) -> str:
        """` around images corrupted by haze`, for what is said after a budget; empty for a ball around the clean samples."""
        return f" around images corrupted by {self.corruption_name}" if self.is_around_corrupted else ""


class SemanticsRecord(Record):
    """Meaning of one assessment, from the registry row of the algorithm that ran.

    families: the categories of the algorithm; keys of our files are never renamed, so it keeps its name here.
    """

    assessment_kind: AssessmentKind
    case: Case
    threat_model: ThreatModel
    objective: Objective
    perturbation: Region
    families: tuple[str, ...]
    stochastic: bool
    randomness: str = ""
    sample_selection: dict[str, Value] = Field(default_factory=dict)
    input_metadata: dict[str, Value] = Field(default_factory=dict)
    norm: Norm | None = None
    target_classes: Value = None
    minimum_norm: bool = False


class FigureRecord(SparseRecord):
    """One figure of an assessment: the visualiser that drew it, its file and its options; `empty`: why it shows nothing."""

    name: str
    file: str
    scope: str
    title: str = ""
    options: dict[str, Value] = Field(default_factory=dict)
    embeds_clean_input: bool = False
    embeds_perturbation_map: bool = False
    empty: str = ""


class Options(Record):
    """The assessment's own options (`kwargs`): sample ids and further facts about the assessment."""

    sample_names: tuple[str, ...] = ()
    show_sample_names: bool = True
    class_names: tuple[str, ...] = ()


class Provenance(Record):
    """Versions, seed, device and digests that decide a result beside the params; empty ones are left out."""

    _empty: ClassVar[tuple[object, ...]] = (None, "", {})

    python: str = ""
    packages: dict[str, str] = Field(default_factory=dict)
    seed: int | None = None
    device: str = ""
    threads_deterministic: bool | None = None
    dataset_digest: str = ""
    model_digest: str = ""
    model_source: str = ""


class CaveatRecord(SparseRecord):
    """A caveat as it is written."""

    code: str
    text: str
    samples: tuple[str, ...] = ()


class Failure(Record):
    """Why an entry has no result. is_temporary: it may succeed next time (memory, network, a killed worker), so it runs again."""

    reason: str
    is_temporary: bool = False


class Metadata(Record):  # type: ignore[no-redef]  # for mypy a field kwargs is __init__'s own **kwargs
    """metadata.json. `family`: the key of params.yaml the entry stands under; None for what is no entry.

    failure: why the entry failed at run time; then every verdict is `error`. None where it has a result.
    """

    name: str
    family: str | None = None
    assessment_kind: AssessmentKind
    case: Case
    algorithm: str
    library: str
    library_version: str
    semantics: SemanticsRecord
    verdict_codes: dict[str, int]
    metrics: Metrics
    kwargs: Options
    call_kwargs: dict[str, Value]
    visualisers: tuple[FigureRecord, ...] = ()
    caveats: tuple[CaveatRecord, ...] = ()
    failure: Failure | None = None
    provenance: Provenance

    @property
    def all_caveats(self) -> tuple[Caveat, ...]:
        """The caveats, as the assessment gave them."""
        return tuple(Caveat(row.code, row.text, row.samples) for row in self.caveats)


class Rate(NamedTuple):
    """A share of samples with the ends of its 95 % interval, where it has one."""

    value: float
    low: float | None
    high: float | None

    @property
    def limits(self) -> tuple[float, float] | None:
        """The ends of the interval; None where it has none."""
        # A bound of 0 comes out of the library as 1.7e-18.
        return None if self.low is None or self.high is None else (round(self.low, 12), round(self.high, 12))

    def __str__(self) -> str:
        """`66.0% [59.0%, 72.5%]`."""
        limits = self.limits
        return f"{self.value:.1%}" + (f" [{limits[0]:.1%}, {limits[1]:.1%}]" if limits else "")


def rate(metrics: Mapping[str, object], key: str) -> Rate | None:
    """Return the rate under `key`, with its interval from the metrics beside it; None where there is no such metric."""
    return None if metrics.get(key) is None else Rate(number(metrics, key), *_interval(metrics, key))


def limits(metrics: Mapping[str, object], key: str) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval of the metric `key`; None where it has none."""
    return Rate(0.0, *_interval(metrics, key)).limits


def _interval(metrics: Mapping[str, object], key: str) -> Iterator[float | None]:
    for end in (f"{key}_ci_low", f"{key}_ci_high"):
        yield None if metrics.get(end) is None else number(metrics, end)


def read_metadata(directory: Path) -> Metadata:
    """metadata.json of an assessment directory. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / METADATA_FILE
    return parse_metadata(read_json(path), str(path))


def parse_metadata(content: object, where: str) -> Metadata:
    """Return the content of a metadata.json. Raises UserError, in one line, where it does not fit."""
    return fitting(Metadata, content, where, "the metadata of an assessment")


def fitting(kind: type[T], content: object, where: str, what: str) -> T:
    """`content` as one of our types, a pydantic model or a dataclass. Raises UserError, in one line, where it does not fit."""
    try:
        value: T = _adapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{where}: not {what} ({key}: {unfit(first)}); of another version?") from error
    return value


def number(metrics: Mapping[str, object], key: str) -> float:
    """Return a metric that is a number. Raises KeyError where there is none, TypeError where it is no number."""
    value = metrics[key]
    if value in _NOT_FINITE:
        return float(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"the metric {key} is a {type(value).__name__}, not a number")
    return float(value)


def numbers(metrics: Mapping[str, object], key: str) -> list[float]:
    """Return a metric that is a list of numbers. Raises KeyError and TypeError as `number`."""
    value = metrics[key]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"the metric {key} is a {type(value).__name__}, not a list of numbers")
    return [number({key: item}, key) for item in value]


def names_in(options: Options, key: str) -> tuple[str, ...]:
    """Return a list of names among the options; none where there is none. Raises UserError, in one line, for something else."""
    return fitting(tuple[str, ...], options.extra.get(key, ()), f"kwargs.{key}", "a list of names")


class _Suite(Record):
    corruptions: tuple[tuple[str, int], ...] = ()
    severities: tuple[int, ...] = ()


def corruption_pairs(options: Options) -> tuple[tuple[str, int], ...]:
    """(corruption, severity) of each part of a suite, in the order of its rows; none if it is no suite."""
    return fitting(_Suite, options.model_dump(), "kwargs", "the options of a suite of corruptions").corruptions


def part_name(corruption: str, severity: int) -> str:
    """Return the name of a part of a suite, `fog-3`: one corruption at one severity."""
    return f"{corruption}-{severity}"


def severities_of(options: Options) -> tuple[int, ...]:
    """Return the severities of a suite of corruptions; none if it is no suite."""
    return fitting(_Suite, options.model_dump(), "kwargs", "the options of a suite of corruptions").severities
