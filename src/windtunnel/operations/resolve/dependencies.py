"""List dependencies that cannot be read from imports (of an entry, see `Family.dependencies`), and versions of libraries."""

import importlib.metadata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windtunnel.assessments.depends import module_of
from windtunnel.assessments.figures.registry import CLEAN_FIGURES
from windtunnel.core.errors import UserError
from windtunnel.params.data import Data
from windtunnel.params.entry import BudgetOverride, Entry
from windtunnel.params.latent import Generators
from windtunnel.params.model import Model
from windtunnel.params.schema import Params
from windtunnel.registry.family import WITHOUT_RESULT
from windtunnel.registry.plugins import (
    Library,
    families,
    family_of,
    libraries,
    missing,
    model_source,
    model_sources,
    own_module,
)

_FAMILY = "windtunnel.registry.family"


@dataclass(frozen=True, slots=True)
class Option:
    """Code that only some entries reach: modules of ours, and libraries by the name under which they are imported."""

    libraries: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()


# What an entry, a model or a data source may ask for beside the library of an algorithm, which has a record. Everything else
# that a stage imports, each of its uses needs.
OPTIONS: dict[str, Option] = {
    "any attack": Option(modules=frozenset({"windtunnel.assessments.attacks.assess"})),
    "adaptive": Option(
        modules=frozenset(
            f"windtunnel.assessments.attacks.adaptive.{name}" for name in ("adapt", "surrogates", "torchscript")
        )
    ),
    "ONNX model": Option(frozenset({"onnxruntime"}), frozenset({"windtunnel.boundary.models.onnx_gradients"})),
    "safetensors": Option(frozenset({"safetensors"})),
    "MLflow model": Option(
        frozenset({"mlflow"}),
        frozenset({"windtunnel.boundary.models.from_mlflow", "windtunnel.boundary.mlflow_server"}),
    ),
    "any corruption suite": Option(modules=frozenset({"windtunnel.assessments.corruptions.assess"})),
    "digits": Option(frozenset({"sklearn"})),
    "image files": Option(frozenset({"PIL"})),
}
# They decide no result: how progress is shown, how files of params are read, how memory is measured.
WITHOUT_SAY = frozenset(
    {"click", "cloudpickle", "ray", "filelock", "psutil", "pydantic", "pydantic_core", "rich", "ruamel", "tqdm"}
)
# The distribution that brings a module, where it is not of the same name, and no record says it.
DISTRIBUTION = {"PIL": "pillow", "cv2": "opencv-python", "skimage": "scikit-image", "sklearn": "scikit-learn"}


@cache
def every_option() -> list[tuple[str, Option]]:
    """Return the options by name, those of the libraries' records among them; one name may stand for several, of several families."""
    return [*OPTIONS.items(), *((library.name, _option(library)) for library in _recorded())]


def _recorded() -> Iterator[Library]:
    return (library for family in families() for library in libraries(family).values())


def _option(library: Library) -> Option:
    adapter = {library.adapter.module} if library.adapter else set()
    return Option(frozenset(library.imports), frozenset(adapter))


def not_reached(options: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """(modules, libraries) that a use with these options does not reach."""
    options_known = every_option()
    reached = [option for name, option in options_known if name in options]
    modules, libraries = (
        frozenset[str]().union(*(getattr(o, key) for _, o in options_known))
        - frozenset[str]().union(*(getattr(o, key) for o in reached))
        for key in ("modules", "libraries")
    )
    return modules, libraries


def reached_by(options: Iterable[str], family: str) -> Iterator[str]:
    """Yield the modules of code apart that these options reach, none of which is imported by name.

    Of several families' libraries of one name, that of `family` alone; of all where it has none.
    """
    for option in options:
        for name in [family] if family and option in libraries(family) else families():
            record = libraries(name).get(option)
            if record is not None and record.adapter is not None:
                yield record.adapter.module


def lazy_imports() -> dict[str, list[str]]:
    """Return the modules that a module imports by reference: module -> modules, or methods of the classes in them."""
    names = [*families()]
    records = [module for name in names for module in own_module(name, "family")]
    facts = [f"{module}:" for module in records]
    rows = {
        module: [library.rows.module for library in libraries(name).values()]
        for name in names
        for module in own_module(name, "libraries")
    }
    return {
        **rows,  # who asks for the libraries of a family may read the rows of any
        "windtunnel.boundary.data.sources": ["sklearn"],  # whose file it reads
        "windtunnel.evaluation.summary.headline": facts,
        "windtunnel.evaluation.summary.meanings": [f"{name}:report_section" for name in (_FAMILY, *records)],
        "windtunnel.params.load": facts,
        "windtunnel.params.schema": facts,
        "windtunnel.reporting.report.pictures": [CLEAN_FIGURES, *(family.figures for family in families().values())],
    }


def left_out() -> dict[str, frozenset[str]]:
    """Return the methods of classes on which no result depends, by module."""
    return dict.fromkeys([_FAMILY, *(type(family).__module__ for family in families().values())], WITHOUT_RESULT)


def as_it_runs(family: str, entry: Entry, params: Params) -> Entry:
    """Return the entry with what is global filled in: the storage, and the budget unless the global one has no say in this entry."""
    changes: dict[str, object] = {"storage": (entry.storage or params.storage) if entry.drops_images else None}
    if not family_of(family).has_own_budget(entry):
        budget = entry.budget.over(params.budget)
        changes["budget"] = BudgetOverride(
            norm=budget.norm, epsilon=budget.epsilon, step_size=budget.step_size, steps=budget.steps
        )
    return entry.model_copy(update=changes)


def data_files(data: Data) -> dict[str, str]:
    """Return the files of `data`, by key."""
    named = {"path": data.path, "labels": data.labels, "train_path": data.train_path, "train_labels": data.train_labels}
    return {f"data.{key}": path for key, path in named.items() if path and path != "none"}


def data_options(data: Data) -> frozenset[str]:
    """Return the optional dependencies that reading `data` needs."""
    return frozenset({"digits": {"digits"}, "folder": {"image files"}}.get(data.source, set()))


def model_options(model: Model) -> frozenset[str]:
    """Return the optional dependencies that a classifier of `model` needs to be built and to run."""
    extras = {"onnx": {"ONNX model"}, "mlflow": {"MLflow model", "ONNX model"}}
    packed = {"safetensors"} if model.path and model.path.endswith(".safetensors") else set()
    options = frozenset(extras.get(model.source, set()) | packed)
    return options | model_options(model.twin_model) if model.twin_model else options


def model_code(model: Model) -> Iterator[str]:
    """Yield the user's own modules that a classifier of `model` is made of: every assessment executes them."""
    used = {"state_dict": model.factory, "train": model.factory, "function": model.function}.get(model.source)
    yield from module_of(used)
    if model.twin_model:
        yield from model_code(model.twin_model)
    if model.source in model_sources():
        yield from model_source(model.source).modules


def view_model(model: Model) -> Model | None:
    """Return the part of `model` that decides its library's preprocessing; None where there is none."""
    if model.source not in model_sources() or model_source(model.source).view is None:
        return None
    path = model.path if model_source(model.source).view_reads else None
    return Model(source=model.source, name=model.name, weights=model.weights, kwargs=model.kwargs, path=path)


def view_code(model: Model) -> Iterator[str]:
    """Yield the modules that see images as a library does."""
    if view_model(model):
        yield from model_source(model.source).modules


def view_files(model: Model) -> dict[str, str]:
    """Return the files below `model.path` that decide how images are seen."""
    if not view_model(model) or model.path is None:
        return {}
    paths = {name: Path(model.path) / name for name in model_source(model.source).view_reads}
    return {f"model.path/{name}": path.as_posix() for name, path in paths.items() if path.is_file()}


def generator_code(generators: Generators) -> Iterator[str]:
    """Yield the user's own modules that generative models are made of."""
    yield from module_of(generators.function if generators.source == "function" else None)


def versions(names: Iterable[str], where: str) -> dict[str, str]:
    """Distribution and version for each top-level name, but for those without a say in results.

    A local build (`2.13.0+cpu`) is no other version: colleagues on other machines share results.
    Raises UserError, for the stage `where`, where one is not installed.
    """
    installed_versions = {}
    for name in sorted(set(names) - WITHOUT_SAY):
        distribution = DISTRIBUTION.get(name) or _packages().get(name, name)
        version = _version(distribution)
        if version is None:
            distribution = next(iter(_modules().get(name, [name])))
            version = _version(distribution)
        if version is None:
            raise UserError(_missing(where, name))
        installed_versions[distribution] = version
    return installed_versions


@cache
def _packages() -> dict[str, str]:
    """Return the distributions that the records name, by the module that each brings."""
    return {library.imports[0]: library.package for library in _recorded() if library.imports and library.package}


@cache
def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution).partition("+")[0]
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


# Reads the metadata of everything installed, half a second: only for a name that is not its distribution's.
_modules = cache(importlib.metadata.packages_distributions)


def _missing(where: str, module: str) -> str:
    """Return the record's hint for a missing library, or the line for a module that is no record's."""
    hints = [library.missing(where) for library in _recorded() if module in library.imports[:1]]
    hints += [missing(where, source) for source in model_sources() if module in model_source(source).imports]
    return next(
        filter(None, hints), f"{where}: needs '{module}', which is neither installed nor a module in this folder"
    )
