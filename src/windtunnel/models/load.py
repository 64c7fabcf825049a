"""From `model` in params.yaml to a Classifier: `import_model` once, by `train`; `load_classifier` by every stage after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.core.artifacts import save_tensors
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Json
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.files import file_digest, read_json, write_json
from windtunnel.core.references import resolve
from windtunnel.models.architectures import ARCHITECTURES
from windtunnel.models.backends import OnnxModule, PredictFunction
from windtunnel.models.training import train_classifier
from windtunnel.params.model import Model

MODEL_JSON = "model.json"
_FORWARD_ONLY = frozenset({Capability.FORWARD})
_TORCH = frozenset({Capability.FORWARD, Capability.AUTOGRAD, Capability.ONNX_GRAPH})


@dataclass(frozen=True, slots=True)
class _Loaded:
    module: nn.Module
    capabilities: frozenset[Capability]
    digest: str
    source: str
    onnx_path: Path | None = None


def pick_device(name: str) -> torch.device:
    """`auto` is the first accelerator there is, else the CPU. Raises UserError for a device that is not there."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device: '{name}' is not to be had here ({str(error).splitlines()[0]}); auto picks one"
        ) from error
    return device


def import_model(model: Model, train: Dataset | None, seed: int, device: str, directory: Path) -> None:
    """Make or fetch the model and keep all of it in `directory`, so that later stages read nothing else.

    Raises UserError where it cannot be had or its digest is not the `sha256` of params.
    """
    directory.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Json] = {"source": model.source}
    if model.source == "train":
        if train is None:
            raise UserError(
                "model.source: train needs a training split; give data.train_path, or import a trained model"
            )
        module = train_classifier(model.train, train, seed, pick_device(device))
        save_tensors(dict(module.state_dict()), directory / "weights.pt")
        facts |= {
            "architecture": model.train.architecture,
            "recipe": model.train.model_dump(mode="json"),
            "input_shape": list(train.inputs.shape[1:]),
            "num_classes": train.num_classes,
        }
    elif model.source == "function":
        facts |= {"function": _required(model.function, "function"), "kwargs": dict(model.kwargs)}
    elif model.source == "mlflow":
        from windtunnel.tracking.store import fetch_model

        facts |= fetch_model(_required(model.uri, "uri"), directory, allow_pickle=model.allow_pickle)
    else:
        path = Path(_required(model.path, "path"))
        if not path.is_file():
            raise UserError(f"model.path: {path}: no such file")
        digest = file_digest(path)
        if model.sha256 and digest != model.sha256:
            raise UserError(f"model.sha256: {path} has {digest}, not {model.sha256}")
        shutil.copyfile(path, directory / f"weights{path.suffix}")
        facts |= {"file": f"weights{path.suffix}", "sha256": digest, "original": path.name}
        if model.source == "state_dict":
            facts |= {"factory": _required(model.factory, "factory"), "kwargs": dict(model.kwargs)}
    write_json(facts, directory / MODEL_JSON)


def load_classifier(directory: Path, device: str, dataset: Dataset) -> Classifier:
    """The model that `import_model` kept, checked against the data it is to classify (see `fit`)."""
    facts = read_json(directory / MODEL_JSON)
    assert isinstance(facts, dict)
    return fit(_LOADERS[str(facts["source"])](facts, directory), pick_device(device), dataset)


def preview_classifier(model: Model, dataset: Dataset, train: Dataset | None, device: str) -> Classifier:
    """The classifier as it will be: an import is made in full, a recipe gives its untrained module. For `check`."""
    if model.source == "train":
        if train is None:
            raise UserError(
                "model.source: train needs a training split; give data.train_path, or import a trained model"
            )
        module = ARCHITECTURES[model.train.architecture](tuple(train.inputs.shape[1:]), train.num_classes).eval()
        loaded = _Loaded(
            module, _TORCH, "untrained", f"{model.train.recipe} {model.train.architecture}, not trained yet"
        )
        return fit(loaded, pick_device(device), dataset)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        import_model(model, train, 0, device, Path(folder))
        return load_classifier(Path(folder), device, dataset)


def fit(loaded: _Loaded, device: torch.device, dataset: Dataset) -> Classifier:
    """Check a model on one sample of the data: it takes the shape, gives (1, K) logits, and K is the data's.

    Raises IncompatibleError, in one line that says both sides.
    """
    shape = tuple(dataset.inputs.shape[1:])
    module = loaded.module.to(device)
    if not isinstance(module, _exported_types()):
        module = module.eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # attacks differentiate by the input alone
    try:
        with torch.no_grad():
            logits = module(dataset.inputs[:1].to(device))
    except UserError:
        raise
    except Exception as error:  # whatever the user's model raises on an input that does not fit it
        raise IncompatibleError(
            f"model: {loaded.source} does not take inputs of shape {shape} ({str(error).splitlines()[0]}); "
            f"data.resize and data.channels change them"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        given = type(logits).__name__ if not isinstance(logits, Tensor) else f"shape {tuple(logits.shape)}"
        raise IncompatibleError(
            f"model: {loaded.source} gives {given} for one sample; logits of shape (N, K) are needed"
        )
    if logits.shape[1] != dataset.num_classes:
        raise IncompatibleError(
            f"model: {loaded.source} has {logits.shape[1]} classes, the data has {dataset.num_classes} "
            f"({', '.join(dataset.class_names[:5])}, ...); data.class_names names them all"
        )
    return Classifier(
        module, logits.shape[1], shape, loaded.capabilities, loaded.digest, loaded.source, device, loaded.onnx_path
    )


def _exported_types() -> tuple[type, ...]:
    # A torch.export program is in the mode it was exported in; eval() on it raises.
    return (torch.fx.GraphModule,)


def _load_trained(facts: dict[str, Json], directory: Path) -> _Loaded:
    shape = cast(list[int], facts["input_shape"])
    module = ARCHITECTURES[str(facts["architecture"])](tuple(shape), int(str(facts["num_classes"])))
    _load_weights(module, directory / "weights.pt")
    recipe = cast(dict[str, Json], facts["recipe"])
    return _Loaded(module, _TORCH, module_digest(module), f"{recipe['recipe']} {facts['architecture']}")


def _load_state_dict(facts: dict[str, Json], directory: Path) -> _Loaded:
    factory = resolve(str(facts["factory"]), "model.factory")
    module = factory(**cast(dict[str, object], facts["kwargs"]))
    if not isinstance(module, nn.Module):
        raise UserError(f"model.factory: {facts['factory']} returned a {type(module).__name__}, not a torch.nn.Module")
    _load_weights(module, directory / str(facts["file"]))
    return _Loaded(module, _TORCH, module_digest(module), f"{type(module).__name__} ({facts['original']})")


def _load_export(facts: dict[str, Json], directory: Path) -> _Loaded:
    path = directory / str(facts["file"])
    try:
        module = torch.export.load(path).module()
    except Exception as error:  # torch.export.load raises many kinds for what is no program
        raise UserError(
            f"model.path: {facts['original']} is not a torch.export program ({type(error).__name__})"
        ) from error
    return _Loaded(module, _TORCH, str(facts["sha256"]), f"torch.export program ({facts['original']})")


def _load_onnx(facts: dict[str, Json], directory: Path) -> _Loaded:
    path = directory / str(facts["file"])
    capabilities = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})
    return _Loaded(
        OnnxModule(path), capabilities, str(facts["sha256"]), f"ONNX ({facts.get('original', path.name)})", path
    )


def _load_function(facts: dict[str, Json], directory: Path) -> _Loaded:
    function = resolve(str(facts["function"]), "model.function")
    kwargs = cast(dict[str, object], facts["kwargs"])
    predict = cast(Callable[[np.ndarray], object], (lambda batch: function(batch, **kwargs)) if kwargs else function)
    return _Loaded(PredictFunction(predict), _FORWARD_ONLY, str(facts["function"]), f"function {facts['function']}")


def _load_mlflow(facts: dict[str, Json], directory: Path) -> _Loaded:
    if facts["flavour"] == "onnx":
        return _load_onnx(facts, directory)
    # allow_pickle was checked when the model was fetched: MLflow's pytorch flavour is a pickle by nature.
    module = torch.load(directory / str(facts["file"]), map_location="cpu", weights_only=False)
    if not isinstance(module, nn.Module):
        raise UserError(f"model.uri: {facts['uri']} holds a {type(module).__name__}, not a torch.nn.Module")
    return _Loaded(module, _TORCH, module_digest(module), f"MLflow {facts['uri']}")


_LOADERS: dict[str, Callable[[dict[str, Json], Path], _Loaded]] = {
    "train": _load_trained,
    "state_dict": _load_state_dict,
    "export": _load_export,
    "onnx": _load_onnx,
    "function": _load_function,
    "mlflow": _load_mlflow,
}


def _load_weights(module: nn.Module, path: Path) -> None:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:  # damaged files, pickles that weights_only refuses, keys that do not fit
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.path: {path.name} does not fit the factory's module ({reason})") from error


def _required(value: str | None, key: str) -> str:
    if value is None:
        raise UserError(f"model.{key}: is required for this model.source")
    return value


def export_onnx(classifier: Classifier, path: Path) -> Path:
    """Write the classifier as ONNX (opset 13, batch of one, the graph that Marabou reads) and return the path.

    The legacy exporter: Marabou 2.0.0 does not read what torch.export's exporter writes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(1, *classifier.input_shape)
    torch.onnx.export(classifier.module.cpu(), (example,), str(path), dynamo=False, opset_version=13)
    classifier.module.to(classifier.device)
    return path
