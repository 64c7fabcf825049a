"""Dependencies of an entry on further models and on code of the user's, for `Family.dependencies`."""

from collections.abc import Iterable, Iterator, Mapping

from windtunnel.params.model import OtherModel


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
