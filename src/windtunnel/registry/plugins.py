"""Families of assessments, libraries and sources of models: ours are found by their folder, others' by an entry point.

Ours are `FAMILY`, an object, in `windtunnel/assessments/<family>/family.py` and `LIBRARIES` in `libraries.py` beside it. The record
of a library holds names, not objects: `Lazy("package.module:name")` is imported when it is called. Another package registers
through the entry-point groups `windtunnel.families` (objects), `windtunnel.libraries` (records), `windtunnel.checks`,
`windtunnel.figures` (modules that register by being imported), `windtunnel.models` (records or functions) and `windtunnel.data`
(functions). Nothing else lists families, libraries or sources of models.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_type_hints

from windtunnel.core.errors import IncompatibleError, UserError, shown, unfit, unknown_word
from windtunnel.core.references import first_line, foreign_errors, limited_import, load_object, resolve
from windtunnel.registry.family import Family

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

T = TypeVar("T")
ASSESSMENTS = "windtunnel.assessments"
_ROOT = Path(__file__).parents[1] / "assessments"
_MODELS = Path(__file__).parents[1] / "boundary" / "models"
_STAGES = Path(__file__).parents[1] / "operations" / "stages"


@dataclass(frozen=True, slots=True)
class Lazy(Generic[T]):
    """An object by its reference `module:name`, imported when called."""

    reference: str

    def __call__(self) -> T:
        """Return the object. Raises whatever its import raises."""
        ours = self.reference.startswith("windtunnel.")  # a defect of ours keeps its traceback
        with nullcontext() if ours else _one_line(f"plug-in: {self.reference}"):
            value: T = load_object(self.reference)
        return value

    @property
    def module(self) -> str:
        """The module it is in."""
        return self.reference.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Library:
    """One library whose algorithms a family offers.

    name: as `library:` of an entry says it. family: whose algorithms they are. package: the distribution whose version is
    recorded beside the results; None for what is built in. rows: the family's registry rows (for attacks: AttackRow; for
    verification: VerifierRow).
    adapter: the function that runs one (for attacks: (Request, model) -> perturbed inputs; for corruptions: CorruptionRequest -> image).
    call: for attacks, Request -> LibraryCall, how the library is called, as call_kwargs record it. module: where the library keeps
    its algorithms by their name; their signatures are the parameters a user may give. row_of: where the algorithms are
    functions of the user's, the registry row of one by its reference `module:function`, without importing it. steps: for
    verification, what its algorithms and cascades are made of, by name (assessments.verification.cascade.step.Step).
    uses: other libraries of the family that its steps may ask. imports: the modules by which Python has it, itself first, as far as
    no other library of the family asks for them; none for what is built in. install: how `windtunnel doctor` gets it; None where it
    is not asked to.
    """

    name: str
    family: str
    package: str | None
    rows: Lazy[Sequence[Any]]
    adapter: Lazy[Callable[..., Any]] | None = None
    call: Lazy[Callable[..., Any]] | None = None
    module: str | None = None
    row_of: Lazy[Callable[[str], Any]] | None = None
    steps: Mapping[str, Lazy[Any]] = field(default_factory=dict)
    uses: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    install: Install | None = None

    @property
    def is_installed(self) -> bool:
        """Return True if the library can be imported; a built-in one always can."""
        return is_installed(*self.imports)

    def require(self, where: str) -> None:
        """Raise IncompatibleError, with the command that installs it, where the library is not installed."""
        if not self.is_installed:
            raise IncompatibleError(self.missing(where))

    def missing(self, where: str) -> str:
        """Return the one line for a library that is not installed."""
        return missing(where, self.name, None if self.install else self.package or self.name)

    def algorithm(self, name: str) -> Callable[..., object]:
        """Return the library's own object of this name. Imports the library. Raises UserError where it is not installed."""
        if self.row_of is not None:
            return resolve(name, f"library: {self.name}: algorithm")
        try:
            function: Callable[..., object] = load_object(f"{self.module}:{name}")
        except ModuleNotFoundError as error:
            raise UserError(self.missing("library")) from error
        except AttributeError as error:
            raise UserError(f"library: {self.name}: {self.module} has no {name}, which its rows name") from error
        return function


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One source of models: a value of `model.source`.

    load: (facts of model.json, directory, trust) -> Loaded. keep: (model, directory, seed) -> the facts, with all that `load`
    reads written to the directory; without it `model.path` is copied. view: model -> View, how the
    model's own library prepares images, and what the classes are called; without it params.yaml says so. view_reads: the files
    below `model.path` that decide the view. imports, install: as those of a Library.
    """

    name: str
    load: Lazy[Callable[..., Any]]
    keep: Lazy[Callable[..., Any]] | None = None
    view: Lazy[Callable[..., Any]] | None = None
    view_reads: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    install: Install | None = None

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that this source executes."""
        return tuple(dict.fromkeys(part.module for part in (self.load, self.keep, self.view) if part is not None))


R = TypeVar("R", Family[Any], Library, ModelSource)


@functools.cache
def families() -> dict[str, Family[Any]]:
    """Every family by name, in their order."""
    ours = [family_of(path.parent.name) for path in sorted(_ROOT.glob("*/family.py"))]
    records = _joined("family", ours, "windtunnel.families", cast("type[Family[Any]]", Family))
    stages = [family.stage for family in records]
    if twice := next((f for f in records if stages.count(f.stage) > 1 or (_STAGES / f"{f.stage}.py").is_file()), None):
        raise UserError(
            f"plug-in: stage '{twice.stage}': is there twice; a stage is of one family, and none of the pipeline's own"
        )
    return {family.name: family for family in sorted(records, key=lambda f: (f.order, f.name))}


@functools.cache
def libraries(family: str) -> dict[str, Library]:
    """Return the libraries of a family by name: ours first, then those of other packages."""
    ours = [record for name in own_module(family, "libraries") for record in load_object(f"{name}:LIBRARIES")]
    what = f"library of {family}"
    records = _joined(what, ours, "windtunnel.libraries", Library, lambda library: library.family == family)
    return {library.name: library for library in records}


def rows_of(family: str) -> list[Any]:
    """Return the registry rows of all libraries of a family. Raises UserError for a plug-in's that are none, or are there twice."""
    rows: list[Any] = []
    for library in libraries(family).values():
        theirs = library.rows()
        where = f"plug-in: rows of library {library.name} ({library.rows.reference})"
        if type(theirs) not in (tuple, list):  # what else is iterated may never end
            raise UserError(f"{where}: a {type(theirs).__name__} is no sequence of rows")
        keys = [getattr(getattr(row, "algorithm", None), "key", None) for row in theirs]
        for key in keys:
            if key is None or key[0] != library.name:
                raise UserError(
                    f"{where}: {shown(key[0]) if key else 'one of them'} is no row of an algorithm of {library.name}"
                )
            if keys.count(key) > 1:
                raise UserError(f"{where}: the algorithm {key[1]} is there twice")
        if not library.rows.reference.startswith("windtunnel."):
            for row in theirs:
                _check_fields(where, row.algorithm, is_strict=True)
        rows += theirs
    return rows


def own_module(family: str, name: str) -> list[str]:
    """Return our module `name` of a family, which is `family` or `libraries`; none for a plug-in's family."""
    return [f"{ASSESSMENTS}.{family}.{name}"] if (_ROOT / family / f"{name}.py").is_file() else []


def one_line(family: Family[Any]) -> AbstractContextManager[None]:
    """Make a UserError of one line of whatever a method of a plug-in's family raises; a defect of ours keeps its traceback."""
    module = type(family).__module__
    return nullcontext() if module.startswith("windtunnel.") else _one_line(f"plug-in: family {family.name} ({module})")


def family_of(name: str) -> Family[Any]:
    """Return the family of this name; no record of another one is read. Raises UserError, with the nearest match, for none."""
    for module in own_module(name, "family"):
        record: Family[Any] = load_object(f"{module}:FAMILY")
        return record
    if name not in families():
        raise UserError(unknown_word("family", name, families(), what="a family of assessments"))
    return families()[name]


def library_of(name: str, family: str) -> Library:
    """Return the library of this name. Raises UserError, with the nearest match, where there is none."""
    records = libraries(family)
    if name not in records:
        raise UserError(unknown_word("library", name, records, what=f"a library of {family}"))
    return records[name]


def model_sources(ours: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of all sources of models that have a record or are a plug-in; none is imported.

    `ours`: further names that no plug-in may have.
    """
    folders = tuple(path.parent.name for path in sorted(_MODELS.glob("*/source.py")))
    return (*folders, *plugins("windtunnel.models", (*ours, *folders)))


@functools.cache
def model_source(name: str) -> ModelSource:
    """Return the source of this name: ours, or a record or a `load` function of another package.

    Raises UserError for a name that is none, and for a plug-in that does not import.
    """
    if (_MODELS / name / "source.py").is_file():
        ours: ModelSource = import_module(f"windtunnel.boundary.models.{name}.source").SOURCE
        return ours
    if name not in plugins("windtunnel.models"):
        raise UserError(unknown_word("model.source", name, model_sources(), what="a source of models"))
    point = plugins("windtunnel.models")[name]
    if isinstance(record := _loaded(point), ModelSource):
        _check_record(point, record)
        return record
    load_plugin("windtunnel.models", name)  # refuses what is no function
    return ModelSource(name, Lazy(point.value))


@functools.cache
def _all_entry_points() -> EntryPoints:
    # Reads a file of every installed distribution: a twentieth of a second, which each group would cost.
    return cast("EntryPoints", entry_points())  # Python 3.11 gives another class here, which selects alike


@functools.cache
def plugins(group: str, ours: tuple[str, ...] = ()) -> dict[str, EntryPoint]:
    """Return the entry points of a group of ours, by name.

    Raises UserError for a name that two distributions have, or a distribution and we (`ours`).
    """
    points: dict[str, EntryPoint] = {}
    for point in sorted(_all_entry_points().select(group=group), key=lambda p: p.name):
        other = points.setdefault(point.name, point)
        if point.name in ours or (_distribution(other), other.value) != (_distribution(point), point.value):
            owner = "windtunnel" if point.name in ours else _distribution(other)
            raise _taken(f"entry point of {group}", point.name, owner, point)
    return points


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed distribution"


def _taken(what: str, name: str, owner: str, point: EntryPoint) -> UserError:
    return UserError(
        f"plug-in {point.name} ({point.value}): {what} '{name}' is there twice, of {owner} and of {_distribution(point)}; "
        f"names are unique: rename one, or uninstall its distribution"
    )


def _joined(
    what: str, ours: Sequence[R], group: str, kind: type[R], is_wanted: Callable[[R], bool] = lambda record: True
) -> list[R]:
    """Return records of ours and those of plug-ins that are wanted. Raises UserError for another type, or a name that is there twice."""
    records, owners = list(ours), {record.name: "windtunnel" for record in ours}
    for point in plugins(group).values():
        record = _loaded(point)
        if not isinstance(record, kind):
            raise UserError(
                f"plug-in {point.name} ({point.value}): is a {type(record).__name__}, not a {kind.__name__}"
            )
        _check_record(point, record)
        if not is_wanted(record):
            continue
        if record.name in owners:
            raise _taken(what, record.name, owners[record.name], point)
        owners[record.name] = _distribution(point)
        records.append(record)
    return records


def load_plugin(group: str, name: str) -> Callable[..., Any]:
    """Return the function that an entry point names. Raises UserError where it does not import, or is no function."""
    plugin = _loaded(plugins(group)[name])
    if not callable(plugin):
        raise UserError(f"plug-in {name} ({plugins(group)[name].value}): is a {type(plugin).__name__}, not a function")
    return plugin


def load_modules(group: str) -> None:
    """Import the modules of a group, which register their records. Raises UserError for one that fails to import."""
    for point in plugins(group).values():
        _loaded(point)


def _check_record(point: EntryPoint, record: Family[Any] | Library | ModelSource) -> None:
    """Raise UserError, naming the field, for a record whose fields have wrong types or no proper names."""
    where = f"plug-in {point.name} ({point.value}) of {_distribution(point)}"
    values = _check_fields(where, record)
    for name in ("name", "stage"):
        if name in values and not re.fullmatch(r"[A-Za-z][\w-]{0,99}", str(values[name])):
            raise UserError(
                f"{where}: {name}: {shown(values[name])} is no name; up to 100 letters, digits, - and _ make one"
            )
    if isinstance(record, Library) and record.family not in families():
        raise UserError(unknown_word(f"{where}: family", record.family, families(), what="a family of assessments"))


def _check_fields(where: str, record: Any, *, is_strict: bool = False) -> dict[str, object]:
    """Return the fields of a record by name. Raises UserError, naming the field, for one of a wrong type, or a name that is empty."""
    from pydantic import BaseModel, TypeAdapter, ValidationError

    hints = get_type_hints(type(record))
    if isinstance(record, Family):
        hints = {**get_type_hints(Family), "entry_type": type[BaseModel]}
    values = {name: getattr(record, name, None) for name in hints}
    for name, value in values.items():
        try:
            TypeAdapter(hints[name], config={"arbitrary_types_allowed": True}).validate_python(value, strict=is_strict)
        except ValidationError as error:
            raise UserError(f"{where}: {name}: {unfit(error.errors()[0])}") from error
        except Exception as error:  # an object that no schema can be asked about
            raise UserError(f"{where}: {name}: {type(value).__name__} does not fit ({type(error).__name__})") from error
        parts = [*value.values()] if isinstance(value, Mapping) else [value]
        for part in parts:
            if isinstance(part, Lazy) and not re.fullmatch(r"[\w.]+:\w+", str(part.reference)):
                raise UserError(f"{where}: {name}: {shown(part.reference)} is not of the form package.module:name")
    if values["name"] == "":
        raise UserError(f"{where}: name: '' is no name")
    return values


def _loaded(point: EntryPoint) -> object:
    with _one_line(f"plug-in {point.name} ({point.value})"):
        return point.load()


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Make a UserError of one line of whatever somebody else's package raises at import, `sys.exit` among it."""
    with (
        foreign_errors(lambda e: f"{where}: {type(e).__name__}: {first_line(e)}"),
        limited_import(f"{where}: its import"),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Install:
    """Instructions for `windtunnel doctor --install` of one library.

    requirement: what pip is asked for, with a marker where it has no wheels everywhere. enables: what works with it. alone: why
    its own dependencies must stay out; empty where pip may resolve it. beside: what its code imports all the same, and our own
    dependencies do not bring. asked: installed only where it is named. of_torch: is, or stands on, torchvision, which is built
    for one torch.
    """

    requirement: str
    enables: str
    alone: str = ""
    beside: tuple[str, ...] = ()
    asked: bool = False
    of_torch: bool = False


def is_installed(*modules: str) -> bool:
    """Return True if all these modules can be found; none of them is imported."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


def missing(where: str, library: str, distribution: str | None = None) -> str:
    """Return the one line for a library that is not installed. `distribution`: what pip installs where `windtunnel doctor` does not."""
    command = f"pip install {distribution}" if distribution else f"windtunnel doctor --install {library}"
    return f"{where}: {library} is not installed; `{command}` installs it"


@dataclass(frozen=True, slots=True)
class View:
    """The library's own transforms without their normalisation, which is folded into the model.

    image: a picture (RGB, or L for one channel) -> float32 (C, H, W) in [0, 1]. channels: C.
    said: the transforms in the library's words, for dataset.json.
    class_names: lists of the K names that classes may have, in the order of the logits; empty where nobody knows them.
    """

    image: Callable[[Image], Tensor]
    channels: int
    said: str
    class_names: tuple[tuple[str, ...], ...] = ()

    def names_of(self, labels: set[str]) -> tuple[str, ...]:
        """Return the first list that has all `labels`; empty where none has."""
        return next((names for names in self.class_names if labels <= set(names)), ())


def distinct(names: list[str]) -> tuple[str, ...]:
    """Return the names, each with a number where it stands there again: ImageNet has two classes `crane`."""
    counts: dict[str, int] = {}
    numbered = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(numbered)
