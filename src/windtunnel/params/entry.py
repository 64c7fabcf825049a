"""Types of the values of params.yaml, and the keys that every entry of an assessment map has.

Numbers are read as people write budgets, equally by DVC and by us: `0.1`, `1e-3`, `8/255`.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.errors import nearest, shown
from windtunnel.core.transformations import KINDS, ZEROS, Transformation, transformation_of

Scalar = bool | int | float | str | None


def _named_parameters(value: object) -> object:
    """Refuse in one line what is neither a value nor names with parameters of their own."""
    parameters = [*value.values()] if isinstance(value, Mapping) else [value]
    if isinstance(value, Mapping) and not all(isinstance(of_name, Mapping) for of_name in parameters):
        name = value.get("algorithm", next(iter(value)))
        raise ValueError(
            f"{shown(value)} is no name with its parameters; write {{{name}: {{steps: 20}}}}, or {name} alone"
        )
    scalars = [v for of_name in parameters for v in (of_name.values() if isinstance(of_name, Mapping) else [of_name])]
    if bad := [v for v in scalars if not isinstance(v, Scalar)]:
        raise ValueError(f"{shown(bad[0])} is no number, text, true or false")
    return value


# A free value inside `params:` or a visualiser's options; numbers may be written as text (8/255). A list may hold names with
# parameters of their own: [FGSM, {PGD: {steps: 20}}].
Named = Annotated[dict[str, dict[str, Scalar]], BeforeValidator(_named_parameters)]
Value = Scalar | list[Scalar | Named] | dict[str, Scalar]
MAX_INTEGER = 2**63 - 1
MAX_COUNT = 10**9  # of whatever a run repeats or holds: more would never end
_NO_COUNTS = {"seed", "total_queries"}  # keys of integers up to MAX_INTEGER
MAX_CHARACTERS, MAX_EXPONENT = 200, 400  # doubles end at 1e308
_EXPONENT = re.compile(r"[eE][+-]?0*([\d_]+)")


def parse_number(value: object) -> float:
    """Return a float from a number or from text such as `8/255` or `1e-3`; the quotient is rounded once.

    Raises ValueError for anything else: booleans, NaN, infinities, zero denominators and other text.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        text = str(value)  # a ValueError for an integer of more than 4300 digits
        if (
            not text.isascii()
            or len(text) > MAX_CHARACTERS
            or any(len(e) > 3 or int(e.strip("_") or 0) > MAX_EXPONENT for e in _EXPONENT.findall(text))
        ):
            raise ValueError  # Fraction writes all digits out: 1e999999999 would take hours
        numerator, *denominator = (Fraction(part.strip()) for part in text.split("/"))
        (divisor,) = denominator or [Fraction(1)]
        number = float(numerator / divisor)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"{shown(value)} is not a number; write it as 0.03, 1e-3 or 8/255") from None
    if not math.isfinite(number):
        raise ValueError(f"{shown(value)} is not a finite number")
    return number


Number = Annotated[float, BeforeValidator(parse_number), PlainSerializer(float)]

MAX_SECONDS = 1e8  # three years; timers of Python and of the system overflow at some more
# Limits stand before the parser: after it, pydantic names them `gt` and `le` in the JSON Schema, which editors do not know.
_PARSE, _WRITE = BeforeValidator(parse_number), PlainSerializer(float)
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS), _PARSE, _WRITE]
Positive = Annotated[float, Field(gt=0), _PARSE, _WRITE]
NonNegative = Annotated[float, Field(ge=0), _PARSE, _WRITE]
Share = Annotated[float, Field(ge=0, le=1), _PARSE, _WRITE]
PositiveShare = Annotated[float, Field(gt=0, le=1), _PARSE, _WRITE]
PartialShare = Annotated[float, Field(gt=0, lt=1), _PARSE, _WRITE]


def key(default: Any, description: str, **limits: Any) -> Any:
    """Return the field of a key of params.yaml.

    Args:
        default: its value where it is absent; a type makes a new value each time.
        description: its meaning, for the schema and the documentation.
        limits: further arguments of pydantic's `Field`, such as `gt`.
    """
    defaults = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return Field(**defaults, description=description, **limits)


class Block(BaseModel):
    """A block of params.yaml: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_odd_values(cls, value: object, info: ValidationInfo) -> object:
        """Refuse empty text, `true` where a number is needed, which pydantic reads as 1, and integers and counts that are too large."""
        field = cls.model_fields[str(info.field_name)]
        if value == "" != field.default:
            raise ValueError("is empty; leave the key out, or give it a value")
        kinds = set(types_in(field.annotation))
        has_own_message = any(isinstance(rule, BeforeValidator) for rule in field.metadata)
        needs_number = kinds & {int, float} and bool not in kinds and not has_own_message
        if needs_number and any(isinstance(v, bool) for v in _values_in(value)):
            raise ValueError(f"{shown(value)} is not a number")
        is_count = int in kinds and float not in kinds and not isinstance(value, Mapping)
        largest = MAX_COUNT if is_count and info.field_name not in _NO_COUNTS else MAX_INTEGER
        read_as_integers = int | float if is_count else int  # 1e15 is one
        if too_large := [v for v in _values_in(value) if isinstance(v, read_as_integers) and abs(v) > largest]:
            raise ValueError(f"{shown(too_large[0])} is too large; {largest} at most")
        return value


def _different(names: list[str]) -> list[str]:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{shown(twice[0])} stands there twice; each name once")
    return names


Names = Annotated[list[str], AfterValidator(_different)]


def types_in(annotation: object) -> Iterator[object]:
    """Yield every type that an annotation names, at any depth."""
    yield annotation
    for argument in get_args(annotation):
        yield from types_in(argument)


def _values_in(value: object) -> Iterator[object]:
    """Yield the scalars of a value from a params.yaml."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _values_in(item)
    else:
        yield value


def norm_of(word: object) -> object:
    """Return the norm that a word names, in letters of any case; any other value as it is."""
    return next((norm for norm in Norm if isinstance(word, str) and word.lower() == norm.lower()), word)


def _of_inputs(norm: Norm) -> Norm:
    if norm is Norm.LATENT_L2:
        raise ValueError(
            "latent_L2 is the norm of latent searches, which have radii of their own; use Linf, L2, L1 or L0"
        )
    return norm


InputNorm = Annotated[Norm, BeforeValidator(norm_of), AfterValidator(_of_inputs)]


def _range_of(kind: str) -> Any:
    return Field(None, exclude=True, description=f"half range of a transformation: {KINDS[kind].meaning}")


_BORDER = "what a moved image shows beyond its border: zeros (black), edge (the nearest pixel) or reflect"


class Ranges(Block):
    """A region of transformations in place of a norm: {rotation: 10, brightness: 0.1}, up to four kinds.

    The keys are read into `norm`, the measure of their parameters, and an `epsilon` of 1, the whole of each half range.
    """

    rotation: Number | None = _range_of("rotation")
    translation: Number | None = _range_of("translation")
    scale: Number | None = _range_of("scale")
    shear: Number | None = _range_of("shear")
    blur: Number | None = _range_of("blur")
    brightness: Number | None = _range_of("brightness")
    contrast: Number | None = _range_of("contrast")
    gamma: Number | None = _range_of("gamma")
    saturation: Number | None = _range_of("saturation")
    hue: Number | None = _range_of("hue")
    occlusion: Number | None = _range_of("occlusion")
    patch: Number | None = _range_of("patch")
    border: Literal["zeros", "edge", "reflect"] | None = Field(None, exclude=True, description=_BORDER)

    @model_validator(mode="before")
    @classmethod
    def _as_measure(cls, block: object) -> object:
        if not isinstance(block, Mapping):
            return block
        if not (ranges := {k: v for k, v in block.items() if k in KINDS}):
            if block.get("border") is not None:
                raise ValueError("border: stands beside the range of a rotation, translation, scale or shear")
            return block
        if clash := [key for key in ("norm", "epsilon") if block.get(key) is not None]:
            raise ValueError(
                f"{clash[0]} is of a ball and {next(iter(ranges))} of a transformation; keep one of the two"
            )
        sizes: dict[str, float] = {}
        for kind, size in ranges.items():
            try:
                sizes[str(kind)] = parse_number(size)
            except ValueError as error:
                raise ValueError(f"{kind}: {error}") from None
        region = Transformation.of(sizes, ZEROS if (border := block.get("border")) is None else str(border))
        others = {k: v for k, v in block.items() if k not in KINDS and k != "border"}
        return {**others, "norm": region.text, "epsilon": 1.0}


class Budget(Ranges):
    """The perturbation budget that every worst-case assessment uses unless it overrides it, key by key."""

    norm: InputNorm = key(Norm.LINF, "Linf, L2, L1 or L0")
    epsilon: Positive = Field(
        description="size in the norm's units: of [0, 1] pixels, e.g. 8/255; of the features where data are tabular"
    )


class BudgetOverride(Ranges):
    """Keys of the budget that one entry sets for itself."""

    norm: InputNorm | None = None
    epsilon: Positive | None = None
    step_size: Positive | None = None
    steps: PositiveInt | None = None

    def over(self, budget: Budget) -> PerturbationBudget:
        """Return the budget this entry runs under: its own keys over the global ones."""
        return PerturbationBudget(
            self.norm or budget.norm,
            budget.epsilon if self.epsilon is None else self.epsilon,
            self.step_size,
            self.steps,
        )

    def lack(self, where: str, budget: Budget) -> str | None:
        """Return the line for an override that changes the norm alone: the global epsilon is meant for another one."""
        if self.norm in {None, budget.norm} or self.epsilon is not None:
            return None
        if transformation_of(budget.norm):
            return f"{where}.budget.epsilon: is needed beside norm: {self.norm}; the global budget is a transformation"
        return (
            f"{where}.budget.epsilon: is needed beside norm: {self.norm}; the global epsilon {budget.epsilon:g} is meant "
            f"for {budget.norm}"
        )


class Samples(Block):
    """Which samples: of the data source, or a subset of the assessed ones."""

    n: PositiveInt | None = key(None, "how many; all where absent")
    selection: Literal["first", "random", "stratified"] = "first"
    seed: int | None = key(None, "of random and stratified; the run's seed where absent", ge=0)


def _all_or_number(value: object) -> object:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    hint = " Did you mean 'all'?" if isinstance(value, str) and nearest(value, ["all"]) else ""
    raise ValueError(f"{shown(value)} is neither 'all' nor a number of samples from 1.{hint}".removesuffix("."))


class Storage(Block):
    """Images that a result keeps on disk; everything is computed before they are dropped."""

    inputs: Annotated[int | Literal["all"], BeforeValidator(_all_or_number)] = key(
        "all", "all, or for how many samples (evenly spaced) clean and perturbed inputs are kept"
    )


CORRUPTED_BY = "on.corrupted_by"


class EntryReference(NamedTuple):
    """Another entry whose result an entry reads: the key that names it, its family, its name and the part that is meant.

    part: of a suite of corruptions one corruption at one severity, `fog-3`; empty for the whole result.
    """

    key: str
    family: str
    name: str
    part: str = ""


class Entry(Block):
    """One named assessment."""

    drops_images: ClassVar[bool] = True  # whether `storage.inputs` has a say in it
    batch_is_a_unit: ClassVar[bool] = True  # of work that goes to one worker; else a batch is spread over several
    draws_by_batch: ClassVar[bool] = False  # whether what is drawn at random depends on who shares a batch

    library: str = Field(description="the library that runs it")
    algorithm: str = Field(description="the library's own name for the algorithm")
    params: dict[str, Value] = key(dict, "parameters, named as the library names them")
    budget: BudgetOverride = BudgetOverride()
    samples: Samples = Samples()
    batch_size: PositiveInt = key(128, "samples that are worked on together")
    storage: Storage | None = key(None, "of this entry alone; the global storage where absent")
    show_sample_names: bool = key(True, "figures name the samples; else they number them")
    visualisers: list[str | Annotated[dict[str, dict[str, Value]], Field(min_length=1, max_length=1)]] | None = key(
        None, "names, or {name: {option: value}}; the kind's defaults where absent"
    )

    @model_validator(mode="before")
    @classmethod
    def _nowhere(cls, given: object) -> object:
        """Return the number of workers (a key of earlier versions); it decides no result, so the cache key leaves it out."""
        if isinstance(given, Mapping) and "workers" in given:
            raise ValueError(
                "workers: where work is done is no part of params.yaml; leave the line out, and set "
                "WINDTUNNEL_EXECUTOR=processes:4, --executor, or `executor:` in windtunnel.local.yaml"
            )
        return given

    @property
    def kept_inputs(self) -> int | Literal["all"]:
        """Number of samples whose images are kept."""
        return self.storage.inputs if self.storage and self.drops_images else "all"

    def references(self) -> Iterator[EntryReference]:
        """Yield the entries of this run whose results it reads; none by default."""
        yield from ()

    @property
    def corrupted_by(self) -> tuple[EntryReference, ...]:
        """The suites, or parts of them, whose corrupted images are assessed in place of the clean ones."""
        return tuple(reference for reference in self.references() if reference.key == CORRUPTED_BY)

    @property
    def batch_size_unused(self) -> str:
        """Why `batch_size` decides neither time nor memory; empty where it does."""
        return ""

    @property
    def takes_minutes_a_sample(self) -> bool:
        """True if a single sample may take minutes, so that a few are tried where the time of all is estimated."""
        return False

    def visualisers_by_default(self, of_family: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the visualisers of an entry that names none: those of its family, unless it knows better."""
        return of_family


class OneOf:
    """Annotate a string that must be one of `choices` or of `more()`: a Literal with names that this machine alone may have."""

    def __init__(self, *choices: str, more: Callable[[], Iterable[str]]) -> None:
        self._choices, self._more = choices, more

    @property
    def choices(self) -> list[str]:
        """Return the values allowed on this machine."""
        return [*self._choices, *self._more()]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return a string, refused as pydantic refuses a Literal."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return an enumeration, for editors."""
        return {"type": "string", "enum": self.choices}

    def _check(self, value: str) -> str:
        if value not in self.choices:
            expected = ", ".join(f"'{choice}'" for choice in self.choices)
            raise PydanticCustomError("enum", "is not allowed", {"expected": expected})
        return value
