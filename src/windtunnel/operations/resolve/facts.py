"""What `resolve` must know of a family or of an input that cannot be read from imports: the one table of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

from windtunnel.core.plugins import ASSESSMENTS, libraries, library_records
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.data import Data
from windtunnel.params.entry import BudgetOverride, Entry
from windtunnel.params.latent import Generators, LatentEntry
from windtunnel.params.model import Model, OtherModel
from windtunnel.params.schema import Params
from windtunnel.params.verification import VerificationEntry


@dataclass(frozen=True, slots=True)
class Option:
    """Code that only some entries reach: modules of ours, and libraries by the name under which they are imported."""

    libraries: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()


# What an entry, a model or a data source may ask for. Everything else that a stage imports, each of its uses needs.
OPTIONS: dict[str, Option] = {
    "torchattacks": Option(
        frozenset({"torchattacks"}), frozenset({"windtunnel.assessments.attacks.torchattacks.adapter"})
    ),
    "foolbox": Option(frozenset({"foolbox", "eagerpy"}), frozenset({"windtunnel.assessments.attacks.foolbox.adapter"})),
    "function": Option(modules=frozenset({"windtunnel.assessments.attacks.function.adapter"})),
    "any attack": Option(modules=frozenset({"windtunnel.assessments.attacks.assess"})),
    "auto-LiRPA": Option(frozenset({"auto_LiRPA"})),
    "Marabou": Option(frozenset({"maraboupy", "onnx", "onnxruntime"})),
    "ONNX model": Option(frozenset({"onnxruntime"})),
    "MLflow model": Option(
        frozenset({"mlflow"}),
        frozenset({"windtunnel.inputs.models.from_mlflow", "windtunnel.inputs.mlflow_server"}),
    ),
    "corruptions run again": Option(modules=frozenset({"windtunnel.evaluation.sanity.corruptions_recomputed"})),
    "digits": Option(frozenset({"sklearn"})),
    "image files": Option(frozenset({"PIL"})),
}
# They decide no result: how progress is shown, how files of params are read, how memory is measured.
WITHOUT_SAY = frozenset({"click", "filelock", "psutil", "pydantic", "pydantic_core", "rich", "ruamel", "tqdm"})
# The distribution that brings a module, where it is not of the same name.
DISTRIBUTION = {
    "PIL": "pillow",
    "auto_LiRPA": "auto-LiRPA",
    "cv2": "opencv-python",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}


def not_reached(options: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """(modules, libraries) that a use with these options does not reach."""
    reached = [OPTIONS[name] for name in options if name in OPTIONS]  # a library without code apart needs no row
    modules = frozenset().union(*(o.modules for o in OPTIONS.values())) - frozenset().union(
        *(o.modules for o in reached)
    )
    libraries = frozenset().union(*(o.libraries for o in OPTIONS.values()))
    return modules, libraries - frozenset().union(*(o.libraries for o in reached))


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """options: of an entry. own_budget: whether an entry leaves the global budget out.

    files: the user's files of an entry, by key. code: the user's own modules that it
    executes. builds_on: (stage, name) of the entries whose results it reads.
    """

    options: Callable[[Entry, Params], frozenset[str]]
    own_budget: Callable[[Entry], bool] = lambda entry: True
    files: Callable[[Entry], Mapping[str, str]] = lambda entry: {}
    code: Callable[[Entry], Iterator[str]] = lambda entry: iter(())
    builds_on: Callable[[Entry], tuple[tuple[str, str], ...]] = lambda entry: ()


def _attack_options(entry: Entry, params: Params) -> frozenset[str]:
    attack = cast(AttackEntry, entry)
    libraries = {attack.library}
    if attack.library == "windtunnel":
        from windtunnel.assessments.attacks.ensembles.profiles import PROFILES

        norm = attack.budget.over(params.budget).norm
        libraries = {member.library for member in PROFILES[attack.algorithm].get(norm, ())}
    return frozenset({"any attack", *libraries, *_remote(attack.transfer_to.values())})


def _query_options(entry: Entry, params: Params) -> frozenset[str]:
    return frozenset({entry.library} - {"windtunnel"})


def _sweep_options(entry: Entry, params: Params) -> frozenset[str]:
    return frozenset() if entry.library == "windtunnel" else frozenset({entry.library, "any attack"})


def _verification_steps(entry: Entry) -> tuple[str, ...]:
    """The steps that decide an entry; none for an algorithm that goes its own way."""
    from windtunnel.assessments.verification.table import ROWS

    row = ROWS[entry.library, entry.algorithm]
    return cast(VerificationEntry, entry).steps if row.of_entry else row.steps


def _verification_options(entry: Entry, params: Params) -> frozenset[str]:
    from windtunnel.assessments.verification.step import library_of_step

    asked = [library_of_step(step) for step in _verification_steps(entry)]
    return frozenset(name for library in asked for name in (library.name, *library.uses)) - {"windtunnel"}


def _verification_code(entry: Entry) -> Iterator[str]:
    from windtunnel.assessments.verification.step import library_of_step
    from windtunnel.assessments.verification.table import ROWS

    yield from (library_of_step(step).steps[step].module for step in _verification_steps(entry))
    assess = ROWS[entry.library, entry.algorithm].assess
    if assess is not None:
        yield assess.module


def _latent_options(entry: Entry, params: Params) -> frozenset[str]:
    return frozenset(_remote(cast(LatentEntry, entry).models))


def _remote(places: Iterable[str | OtherModel]) -> set[str]:
    return {"MLflow model", "ONNX model"} if any(":/" in OtherModel.of(place).model for place in places) else set()


def _survivors(entry: Entry) -> tuple[tuple[str, str], ...]:
    on = cast(AttackEntry, entry).on
    return tuple(("attack", name) for name in (on.survivors_of if on else ()))


def _examples(entry: Entry) -> tuple[tuple[str, str], ...]:
    return tuple(("attack", name) for name in cast(VerificationEntry, entry).examples_from)


def _reference(entry: Entry) -> dict[str, str]:
    reference = cast(CorruptionEntry, entry).reference
    return {"reference": reference} if reference and Path(reference).is_dir() else {}


def _functions(entry: AttackEntry) -> tuple[str | None, ...]:
    """The user's own functions that an attack calls."""
    return entry.invoker, entry.adapt, entry.algorithm if entry.library == "function" else None


def other_models(places: Mapping[str, str | OtherModel]) -> dict[str, str]:
    """Those further models that are directories, by key."""
    found = {key: OtherModel.of(place).model for key, place in places.items()}
    return {key: place for key, place in found.items() if ":/" not in place}


def code_of_others(places: Iterable[str | OtherModel]) -> Iterator[str]:
    """The user's own modules that further models are made of."""
    for other in map(OtherModel.of, places):
        yield from (*_module(other.factory), *_module(other.function))


_FACTS: dict[str, FamilyFacts] = {
    "attacks": FamilyFacts(
        _attack_options,
        own_budget=lambda entry: False,
        files=lambda e: other_models({f"transfer_to.{k}": p for k, p in cast(AttackEntry, e).transfer_to.items()}),
        code=lambda e: chain(
            *map(_module, _functions(cast(AttackEntry, e))), code_of_others(cast(AttackEntry, e).transfer_to.values())
        ),
        builds_on=_survivors,
    ),
    "queries": FamilyFacts(_query_options, own_budget=lambda entry: entry.library == "windtunnel"),
    "sweeps": FamilyFacts(_sweep_options),
    "verification": FamilyFacts(
        _verification_options, own_budget=lambda entry: False, code=_verification_code, builds_on=_examples
    ),
    "corruptions": FamilyFacts(lambda entry, params: frozenset(), files=_reference),
    "latent": FamilyFacts(
        _latent_options,
        files=lambda e: other_models({f"models[{i}]": p for i, p in enumerate(cast(LatentEntry, e).models)}),
        code=lambda e: code_of_others(cast(LatentEntry, e).models),
    ),
}


def of_family(family: str) -> FamilyFacts:
    """The facts of a family; those of a plug-in's are that an entry reaches its library and may use the global budget."""
    return _FACTS.get(family) or FamilyFacts(
        lambda entry, params: frozenset({entry.library}), own_budget=lambda _: False
    )


def reached_by(options: Iterable[str]) -> Iterator[str]:
    """Modules of code apart that these options reach, none of which is imported by name."""
    for option in options:
        known = libraries("attacks").get(option)
        if known is not None and known.adapter is not None:
            yield known.adapter.module


def lazy_imports() -> dict[str, list[str]]:
    """What a module imports by reference, as a record has it: module -> modules."""
    of_attacks = library_records("attacks")
    records = [f"{ASSESSMENTS}.{name}.family" for name in _FACTS]
    return {
        f"{ASSESSMENTS}.attacks.adapters": of_attacks,
        f"{ASSESSMENTS}.verification.step": library_records("verification"),
        **{
            f"{ASSESSMENTS}.{family}.table": [
                *library_records(family),
                *(library.rows.module for library in libraries(family).values()),
            ]
            for family in ("attacks", "verification")
        },
        **dict.fromkeys(
            ("windtunnel.evaluation.summary.headline", "windtunnel.params.load", "windtunnel.params.schema"), records
        ),
        **{
            f"{ASSESSMENTS}.{name}.preflight": [f"{ASSESSMENTS}.{name}.family", f"{ASSESSMENTS}.{name}.table"]
            for name in _FACTS
        },
    }


def with_budget(family: str, entry: Entry, params: Params) -> Entry:
    """The entry with the budget that it runs under, or only with its own keys where the global budget has no say."""
    if of_family(family).own_budget(entry):
        return entry
    budget = entry.budget.over(params.budget)
    whole = BudgetOverride(norm=budget.norm, epsilon=budget.epsilon, step_size=budget.step_size, steps=budget.steps)
    return entry.model_copy(update={"budget": whole})


def data_files(data: Data) -> dict[str, str]:
    """The files of `data`, by key."""
    named = {"path": data.path, "labels": data.labels, "train_path": data.train_path, "train_labels": data.train_labels}
    return {f"data.{key}": path for key, path in named.items() if path and path != "none"}


def data_options(data: Data) -> frozenset[str]:
    """What reading `data` reaches."""
    return frozenset({"digits": {"digits"}, "folder": {"image files"}}.get(data.source, set()))


def model_options(model: Model) -> frozenset[str]:
    """What a classifier of `model` reaches, when it is made and when it is asked."""
    known = {"onnx": {"ONNX model"}, "mlflow": {"MLflow model", "ONNX model"}}
    return frozenset(known.get(model.source, set()))


def model_code(model: Model) -> Iterator[str]:
    """The user's own modules that a classifier of `model` is made of: every assessment executes them."""
    used = {"state_dict": model.factory, "train": model.factory, "function": model.function}.get(model.source)
    yield from _module(used)


def data_code(data: Data) -> Iterator[str]:
    """The user's own modules that `data` is read by."""
    yield from _module(data.function if data.source == "function" else None)


def generator_code(generators: Generators) -> Iterator[str]:
    """The user's own modules that generative models are made of."""
    yield from _module(generators.function if generators.source == "function" else None)


def _module(reference: str | None) -> Iterator[str]:
    if reference:
        yield reference.partition(":")[0]
