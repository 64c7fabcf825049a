"""One loader per kind of model that `import_model` keeps: from model.json and the files beside it to a torch module."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.core.classifier import module_digest
from windtunnel.core.contracts import Capability, Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import file_digest
from windtunnel.core.plugins import load_plugin
from windtunnel.core.references import resolve
from windtunnel.inputs.models.architectures import ARCHITECTURES
from windtunnel.inputs.models.backends import OnnxModule, PredictFunction, Program

TORCH = frozenset({Capability.FORWARD, Capability.AUTOGRAD, Capability.ONNX_GRAPH})
ONNX = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})
FUNCTION = frozenset({Capability.FORWARD})

# Where trainers keep the state dict inside a checkpoint.
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model before it was tried on data; the fields are those of `Classifier`."""

    module: nn.Module
    capabilities: frozenset[Capability]
    digest: str
    source: str
    onnx_path: Path | None = None


def load_trained(facts: dict[str, Json], directory: Path) -> Loaded:
    """What a recipe of ours trained."""
    shape = cast(list[int], facts["input_shape"])
    module = ARCHITECTURES[str(facts["architecture"])](tuple(shape), int(str(facts["num_classes"])))
    _load_weights(module, directory / "weights.pt", "the trained weights")
    recipe = cast(dict[str, Json], facts["recipe"])
    return Loaded(module, TORCH, module_digest(module), f"{recipe['recipe']} {facts['architecture']}")


def load_state_dict(facts: dict[str, Json], directory: Path) -> Loaded:
    """The user's factory with the user's weights."""
    factory = resolve(str(facts["factory"]), "model.factory")
    try:
        module = factory(**cast(dict[str, object], facts["kwargs"]))
    except Exception as error:  # whatever the user's factory raises
        line = first_line(error)
        raise UserError(f"model.factory: {facts['factory']} raised {type(error).__name__}: {line}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"model.factory: {facts['factory']} returned a {type(module).__name__}, not a torch.nn.Module")
    _load_weights(module, directory / str(facts["file"]), str(facts["original"]))
    return Loaded(module, TORCH, module_digest(module), f"{type(module).__name__} ({facts['original']})")


def load_export(facts: dict[str, Json], directory: Path) -> Loaded:
    """A torch.export program."""
    try:
        module = torch.export.load(directory / str(facts["file"])).module()
    except Exception as error:  # torch.export.load raises many kinds for what is no program
        raise UserError(
            f"model.path: {facts['original']} is not a torch.export program ({type(error).__name__})"
        ) from error
    return Loaded(Program(module), TORCH, str(facts["sha256"]), f"torch.export program ({facts['original']})")


def load_onnx(facts: dict[str, Json], directory: Path) -> Loaded:
    """An ONNX graph, run by onnxruntime."""
    path = directory / str(facts["file"])
    return Loaded(OnnxModule(path), ONNX, str(facts["sha256"]), f"ONNX ({facts['original']})", path)


def load_function(facts: dict[str, Json], directory: Path) -> Loaded:
    """The user's predict(batch) -> probabilities."""
    function = resolve(str(facts["function"]), "model.function")
    kwargs = cast(dict[str, object], facts["kwargs"])
    predict = cast(Callable[[np.ndarray], object], (lambda batch: function(batch, **kwargs)) if kwargs else function)
    return Loaded(PredictFunction(predict), FUNCTION, _source_digest(function), f"function {facts['function']}")


def load_pickle(facts: dict[str, Json], directory: Path) -> Loaded:
    """A whole module as MLflow pickles it. `allow_pickle` was asked for when it was fetched."""
    if (here := str(Path.cwd())) not in sys.path:  # where `resolve` finds the user's modules too
        sys.path.insert(0, here)
    try:
        module = torch.load(directory / str(facts["file"]), map_location="cpu", weights_only=False)
    except Exception as error:  # a pickle can raise anything, most often that a class of the user's is not importable
        raise UserError(f"model.uri: {facts['uri']} cannot be unpickled here ({first_line(error)})") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"model.uri: {facts['uri']} holds a {type(module).__name__}, not a torch.nn.Module")
    return Loaded(module, TORCH, module_digest(module), f"pickle ({facts['uri']})")


def load_mlflow(facts: dict[str, Json], directory: Path) -> Loaded:
    """What MLflow kept, in whichever form it did."""
    return MLFLOW_FORMS[str(facts["form"])](facts, directory)


Loader = Callable[[dict[str, Json], Path], Loaded]
MLFLOW_FORMS: dict[str, Loader] = {"onnx": load_onnx, "export": load_export, "pickle": load_pickle}
LOADERS: dict[str, Loader] = {
    "train": load_trained,
    "state_dict": load_state_dict,
    "export": load_export,
    "onnx": load_onnx,
    "function": load_function,
    "mlflow": load_mlflow,
}


def loader_of(source: str) -> Loader:
    """The loader of a `model.source`: one of ours, or of a plug-in of the group `windtunnel.inputs.models`."""
    return LOADERS[source] if source in LOADERS else load_plugin("windtunnel.inputs.models", source)


def first_line(error: Exception) -> str:
    """The first line of an exception's text, cut where it is long; its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _load_weights(module: nn.Module, path: Path, original: str) -> None:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files, and pickles that weights_only refuses
        raise UserError(
            f"model.path: {original} is not a state dict that loads with weights_only ({type(error).__name__})"
        ) from error
    try:
        module.load_state_dict(_state_dict_in(content))
    except Exception as error:  # keys or shapes that do not fit, or no state dict at all
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.path: {original} does not fit the factory's module ({reason})") from error


def _state_dict_in(content: object) -> dict[str, Tensor]:
    """The state dict of a checkpoint: itself, or what is kept under a trainer's key, without DataParallel's prefix."""
    if isinstance(content, dict):
        nested = [content[key] for key in _STATE_KEYS if isinstance(content.get(key), dict)]
        content = nested[0] if nested else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"it is a {type(content).__name__}, and not of names to tensors")
    prefix = "module." if all(str(key).startswith("module.") for key in content) else ""
    return {str(key).removeprefix(prefix): value for key, value in content.items()}


def _source_digest(function: Callable[..., object]) -> str:
    """sha256 of the file that defines a function: all that can be known of a model that is code."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # a builtin, or an object that is callable
        file = None
    return file_digest(Path(file)) if file else hashlib.sha256(type(function).__qualname__.encode()).hexdigest()
