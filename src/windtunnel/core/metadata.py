"""`metadata.json` of an assessment as a type: written and read as the same one.

Keys may be added, never renamed and never removed; what another version added is kept on reading (`extra`). A file that
does not fit is refused in one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from windtunnel.core.contracts import AssessmentKind, Case, Caveat, Norm, Objective, ThreatModel
from windtunnel.core.errors import UserError
from windtunnel.core.files import METADATA_FILE, read_json

if TYPE_CHECKING:
    from windtunnel.core.contracts import Json as Value
else:  # pydantic cannot read a recursive alias; its own type holds the same
    Value = JsonValue

Metrics = dict[str, Value]


class Record(BaseModel):
    """A block of a file of ours. Fields that are None are left out when it is written."""

    model_config = ConfigDict(extra="allow", frozen=True)
    _empty: ClassVar[tuple[object, ...]] = (None,)

    @model_serializer(mode="wrap")
    def _without_what_is_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        declared = type(self).model_fields
        return {key: value for key, value in write(self).items() if key not in declared or not self._is_empty(value)}

    def _is_empty(self, value: object) -> bool:
        return any(value is nothing or (value == nothing and type(value) is type(nothing)) for nothing in self._empty)

    @property
    def extra(self) -> Mapping[str, Value]:
        """What stands beside the declared fields."""
        return self.model_extra or {}


class SparseRecord(Record):
    """A block whose fields are left out too where they are empty or false."""

    _empty: ClassVar[tuple[object, ...]] = (None, False, "", [], {})


class Region(Record):
    """The perturbation region: a ball (norm and the rest of the budget), or a distribution (corruption and severity)."""

    norm: Norm | None = None
    epsilon: float | None = None
    step_size: float | None = None
    steps: int | None = None
    corruption_name: str | None = None
    severity: int | None = None
    severities: tuple[int, ...] | None = None


class SemanticsRecord(Record):
    """What one assessment means, from the registry row of the algorithm that ran."""

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
    """The assessor's own options (`kwargs`): who the samples are, and what else the assessment says of itself."""

    sample_names: tuple[str, ...] = ()
    show_sample_names: bool = True
    class_names: tuple[str, ...] = ()


class Provenance(Record):
    """What decides the bytes of a result beside the params. What an older version did not record is left out."""

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


class Metadata(Record):  # type: ignore[no-redef]  # for mypy a field kwargs is __init__'s own **kwargs
    """metadata.json. `family`: the key of params.yaml the entry stands under; None for what is no entry."""

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
    provenance: Provenance

    @property
    def all_caveats(self) -> tuple[Caveat, ...]:
        """The caveats, as the assessment gave them."""
        return tuple(Caveat(row.code, row.text, row.samples) for row in self.caveats)


def read_metadata(directory: Path) -> Metadata:
    """metadata.json of an assessment directory. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / METADATA_FILE
    return parse_metadata(read_json(path), str(path))


def parse_metadata(content: object, where: str) -> Metadata:
    """The content of a metadata.json. Raises UserError, in one line, where it does not fit."""
    try:
        return Metadata.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"{where}: not the metadata of an assessment ({key}: {first['msg'].lower()}); of another version?"
        ) from error


def number(metrics: Mapping[str, object], key: str) -> float:
    """A metric that is a number. Raises KeyError where there is none, TypeError where it is no number."""
    value = metrics[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"the metric {key} is a {type(value).__name__}, not a number")
    return float(value)


def numbers(metrics: Mapping[str, object], key: str) -> list[float]:
    """A metric that is a list of numbers. Raises KeyError and TypeError as `number`."""
    value = metrics[key]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"the metric {key} is a {type(value).__name__}, not a list of numbers")
    return [number({key: item}, key) for item in cast(Sequence[object], value)]


def corruption_pairs(options: Options) -> list[tuple[str, int]]:
    """(corruption, severity) of each part of a suite, in the order of its rows; none for what is no suite."""
    rows = cast("list[tuple[str, int]]", options.extra.get("corruptions") or [])
    return [(str(corruption), int(severity)) for corruption, severity in rows]
