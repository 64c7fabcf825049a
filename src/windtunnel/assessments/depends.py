"""Dependencies of an entry's result beyond the imports of its stage, declared by its family for `resolve`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from windtunnel.params.entry import Entry
from windtunnel.params.model import OtherModel

if TYPE_CHECKING:
    from windtunnel.params.schema import Params


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Depends(Generic[E]):
    """options: names of optional code that an entry imports, by default of its library. own_budget: whether it leaves
    the global budget out. files: the user's files of an entry, by key. code: modules that it alone executes, the user's own
    among them.
    """

    options: Callable[[E, Params], frozenset[str]] = lambda entry, params: frozenset({entry.library})
    own_budget: Callable[[E], bool] = lambda entry: False
    files: Callable[[E], Mapping[str, str]] = lambda entry: {}
    code: Callable[[E], Iterator[str]] = lambda entry: iter(())


def remote(places: Iterable[str | OtherModel]) -> frozenset[str]:
    """Return the options that further models reach."""
    far = any(":/" in OtherModel.of(directory).model for directory in places)
    return frozenset({"MLflow model", "ONNX model"}) if far else frozenset()


def other_models(places: Mapping[str, str | OtherModel]) -> dict[str, str]:
    """Return the further models that are directories, by key."""
    directories = {key: OtherModel.of(directory).model for key, directory in places.items()}
    return {key: directory for key, directory in directories.items() if ":/" not in directory}


def code_of_others(places: Iterable[str | OtherModel]) -> Iterator[str]:
    """Yield the user's own modules that further models are made of."""
    for other in map(OtherModel.of, places):
        yield from (*module_of(other.factory), *module_of(other.function))


def module_of(reference: str | None) -> Iterator[str]:
    """Yield the module of a reference `module:name`; nothing for none."""
    if reference:
        yield reference.partition(":")[0]
