"""Compose the first params.yaml of a project from discovered models and data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader

from windtunnel.boundary.discovery.samples import SampleFiles
from windtunnel.boundary.discovery.weights import Weights
from windtunnel.boundary.text import yaml_text
from windtunnel.registry.plugins import library_of

TO_NAME = "NAME-IT"  # stands where nothing was found
_SMALL = 2_000_000  # numbers in a model up to which bounds are quick
_DIGITS = 32  # sides of grey images up to which a larger epsilon is usual
_SMALLEST = 32  # imagecorruptions refuses smaller images


@dataclass(frozen=True, slots=True)
class Choice:
    """Model and data of a project. factory: `module:name` for a state dict, empty where it is not known.

    experiment: MLflow's. store: an MLflow store to log to; empty for one in the project's folder.
    """

    model: Weights | None
    data: SampleFiles | None
    factory: str
    experiment: str
    store: str = ""
    resize: tuple[int, int] | None = None


def params_text(choice: Choice, up: Path) -> str:
    """params.yaml for a choice; `up` leads from the project's folder to where the paths of the choice begin."""
    template = Environment(
        loader=PackageLoader("windtunnel.operations.project"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    ).get_template("params.yaml")
    model, data = choice.model, choice.data
    grey = data is not None and data.channels == 1 and (data.side is None or max(data.side) <= _DIGITS)
    epsilon = "0.1" if grey else "8/255"
    side = choice.resize or (data.side if data else None)
    return template.render(
        data=[(key, _scalar(value)) for key, value in _data(choice, up)],
        model=[(key, _scalar(value)) for key, value in _model(choice, up)],
        gradients=model is None or model.source not in {"function", "tflite"},
        n=200,
        epsilon=epsilon,
        epsilons=["0", "0.02", "0.05", "0.1", "0.2", "0.3"]
        if grey
        else ["0", "1/255", "2/255", "4/255", "8/255", "16/255"],
        torchattacks=library_of("torchattacks", "attacks").is_installed,
        bounds=model is not None and 0 < model.size <= _SMALL and library_of("auto-LiRPA", "verification").is_installed,
        upsample=side is not None and min(side) < _SMALLEST,
        title=_scalar(f"Robustness of {choice.experiment}"),
        tracking=_flow({"experiment": choice.experiment, **({"uri": choice.store} if choice.store else {})}),
    )


def notes(choice: Choice) -> list[str]:
    """List what the user must specify, and what may not match."""
    model, data, lines = choice.model, choice.data, []
    if model is None:
        lines.append(
            "model: no weights were found; name them under `model` (state_dict, export, onnx, torchvision, timm, huggingface, mlflow "
            "or function)"
        )
    elif model.source == "state_dict" and not choice.factory:
        lines.append(
            f"model.factory: no class or function without arguments builds what {model.path} fits; name one, module:function"
        )
    if data is None:
        lines.append("data: no folder of images by class, idx file or .npz with `x` was found; name it under `data`")
    elif data.source == "folder" and data.side is None and choice.resize is None and not (model and model.of_library):
        lines.append("data.resize: the images differ in size, or are not there yet; say which size the model takes")
    if model and data and model.classes and data.classes and model.classes != data.classes:
        lines.append(
            f"data.class_names: the model has {model.classes} outputs, {data.path} {data.classes} classes; list all of the model's"
        )
    if data and data.path.name in {"train", "training"}:
        lines.append(f"data.path: {data.path} looks like training data; assess on samples the model has not seen")
    return lines


def _data(choice: Choice, up: Path) -> list[tuple[str, object]]:
    data = choice.data
    if data is None:
        return [("source", "folder"), ("path", TO_NAME)]
    rows: list[tuple[str, object]] = [("source", data.source), ("path", _below(up, data.path))]
    if data.labels:
        rows.append(("labels", _below(up, data.labels[0])))
    if data.train:
        rows.append(("train_path", _below(up, data.train)))
    if data.labels and data.labels[1]:
        rows.append(("train_labels", _below(up, data.labels[1])))
    if choice.resize:
        rows.append(("resize", list(choice.resize)))
    channels = choice.model.channels if choice.model else None
    if data.source == "folder" and channels and data.channels != channels:
        rows.append(("channels", channels))
    return rows


def _model(choice: Choice, up: Path) -> list[tuple[str, object]]:
    model = choice.model
    if model is None:
        return [("source", "state_dict"), ("path", TO_NAME), ("factory", f"{TO_NAME}:{TO_NAME}")]
    if model.name:
        kwargs = [("kwargs", dict(model.kwargs))] if model.kwargs else []
        return [("source", model.source), ("name", model.name), ("path", _below(up, model.path)), *kwargs]
    if model.source == "function":
        return [("source", "function"), ("function", str(model.path))]
    if model.of_library and model.source != "huggingface":
        return [("source", model.source), ("name", str(model.path)), ("weights", "pretrained")]
    if model.of_library and not model.is_folder:
        return [("source", model.source), ("name", str(model.path))]
    factory = [("factory", choice.factory or f"{TO_NAME}:{TO_NAME}")] if model.source == "state_dict" else []
    return [("source", model.source), ("path", _below(up, model.path)), *factory]


def _below(up: Path, path: Path) -> str:
    return path.as_posix() if path.is_absolute() else Path(os.path.normpath(up / path)).as_posix()


def _scalar(value: object) -> str:
    """Return a value as YAML writes it on one line."""
    return _flow(value) if isinstance(value, dict) else _flow([value])[1:-1]


def _flow(value: object) -> str:
    return yaml_text(value, plain=True, default_flow_style=True, width=10_000).strip()
