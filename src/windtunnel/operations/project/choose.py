"""Discover models, data and DVC stages for `windtunnel init`, and compose the first params.yaml of a project from them."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from windtunnel.boundary.discovery import samples, walk, weights
from windtunnel.boundary.discovery.architecture import factories
from windtunnel.boundary.discovery.samples import SampleFiles, is_training
from windtunnel.boundary.discovery.walk import Files, files_below, read_or_skip
from windtunnel.boundary.discovery.weights import Weights
from windtunnel.boundary.files import is_file, path_text
from windtunnel.boundary.text import read_yaml
from windtunnel.core.errors import UserError
from windtunnel.core.references import repository
from windtunnel.operations.project.graph import template, yaml_flow, yaml_scalar
from windtunnel.params.data import MAX_SIDE
from windtunnel.registry.plugins import library_of

# What upstream params call the side of images.
_SIDES = ("image_size", "img_size", "input_size", "imgsz", "resize", "crop_size")


@dataclass(frozen=True)
class FolderContents:
    """The folder `root`, looked at without `folder`, which the project will be."""

    root: Path
    folder: Path

    @cached_property
    def files(self) -> Files:
        """The files of interest."""
        return files_below(self.root, self.folder)

    @cached_property
    def made(self) -> dict[Path, str]:
        """Return the outputs of the existing DVC stages: path -> stage."""
        return walk.outputs(self.root, self.files.dvc)

    @cached_property
    def weights(self) -> list[Weights]:
        """Models, the likeliest first."""
        return weights.candidates(self.root, self.files.weights, self.files.pretrained, self.made)

    @cached_property
    def data(self) -> list[SampleFiles]:
        """Data, the likeliest first."""
        return samples.candidates(self.root, self.files, self.made)

    @cached_property
    def store(self) -> str:
        """The address of an MLflow store in this folder; empty where there is none."""
        return "sqlite:///../mlflow.db" if (self.root / "mlflow.db").is_file() else ""

    @cached_property
    def resize(self) -> tuple[int, int] | None:
        """The size of images that a params.yaml here speaks of."""
        if not is_file(self.root / "params.yaml"):
            return None
        raw = read_or_skip(Path("params.yaml"), lambda path: read_yaml(self.root / path))
        for block in [raw, *raw.values()] if isinstance(raw, dict) else []:
            for key in _SIDES:
                value = block.get(key) if isinstance(block, dict) else None
                if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE:
                    return (value, value)
        return None

    def model_at(self, name: str) -> Weights | None:
        """Return the model that the user names, a path or `library:name`; None where it is nothing that loads."""
        if weights_file := weights.named(name):
            return weights_file
        path = self._check_link("--model", Path(name))
        return read_or_skip(path, lambda path: weights.look_at(self.root, path, walk.maker(path, self.made)))

    def data_at(self, path: Path) -> SampleFiles:
        """Return the data at a path that the user names."""
        return samples.look_at(self.root, self._check_link("--data", path), self.made)

    def _check_link(self, option: str, path: Path) -> Path:
        """Return a path that the user names; it may not be there yet. Raises UserError for a link that leads nowhere."""
        full = self.root / path
        if os.path.islink(full) and not is_file(full) and not os.path.isdir(full):
            raise UserError(f"init: {option} {path_text(path)}: is a link that leads to no file and no folder")
        return path

    def factories(self, model: Weights) -> list[str]:
        """List candidate factories for a state dict: of the whole repository, for its root is where modules are found."""
        if model.source != "state_dict" or not model.parts:
            return []
        top = repository(self.root) or self.root
        files = self.files.code
        if top != self.root:
            below = Path(os.path.relpath(self.root, top))
            files = [below / path for path in files]
        return factories(top, files, model.parts) or factories(top, files, model.inner_parts)


TO_NAME = "NAME-IT"  # stands where nothing was found
_SMALL = 2_000_000  # numbers in a model up to which bounds are quick
_DIGITS = 32  # sides of grey images up to which a larger epsilon is usual
_EPSILONS, _EPSILONS_OF_GREY = "0 1/255 2/255 4/255 8/255 16/255", "0 0.02 0.05 0.1 0.2 0.3"
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
    model, data = choice.model, choice.data
    grey = data is not None and data.channels == 1 and (data.side is None or max(data.side) <= _DIGITS)
    side = choice.resize or (data.side if data else None)
    gradients = model is None or model.source not in {"function", "tflite"}
    bounds = gradients and model is not None and 0 < model.size <= _SMALL
    return template("params.yaml").render(
        data=[(key, yaml_scalar(value)) for key, value in _data(choice, up).items()],
        model=[(key, yaml_scalar(value)) for key, value in _model(choice, up).items()],
        gradients=gradients,
        most=lambda n: min(n, (data and data.samples) or n),
        epsilon="0.1" if grey else "8/255",
        epsilons=(_EPSILONS_OF_GREY if grey else _EPSILONS).split(),
        torchattacks=library_of("torchattacks", "attacks").is_installed,
        bounds=bounds and library_of("auto-LiRPA", "verification").is_installed,
        upsample=side is not None and min(side) < _SMALLEST,
        title=yaml_scalar(f"Robustness of {choice.experiment}"),
        tracking=yaml_flow({"experiment": choice.experiment, **({"uri": choice.store} if choice.store else {})}),
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
        untried = f"; not tried: {', '.join(model.untried)}" if model.untried else ""
        lines.append(
            f"model.factory: no class or function without arguments builds what {model.path} fits; name one, module:function{untried}"
        )
    if data is None:
        lines.append(
            "data: no folder of images by class, idx file, .npz with `x` or pair of .npy was found; name it under `data`"
        )
    elif data.source == "folder" and data.side is None and choice.resize is None and not (model and model.of_library):
        lines.append("data.resize: the images differ in size, or are not there yet; say which size the model takes")
    if model and data and model.classes and data.classes and max(model.classes, 2) != data.classes:
        lines.append(
            f"data.class_names: the model has {model.classes} outputs, {data.path} {data.classes} classes; list all of the model's"
        )
    if data and is_training(data.path):
        lines.append(f"data.path: {data.path} looks like training data; assess on samples the model has not seen")
    return lines


def _data(choice: Choice, up: Path) -> dict[str, object]:
    data = choice.data
    if data is None:
        return {"source": "folder", "path": TO_NAME}
    labels, train_labels = data.labels or (None, None)
    files = {"path": data.path, "labels": labels, "train_path": data.train, "train_labels": train_labels}
    block: dict[str, object] = {"source": data.source}
    block |= {key: _below(up, path) for key, path in files.items() if path is not None}
    if choice.resize:
        block["resize"] = list(choice.resize)
    channels = choice.model.channels if choice.model else None
    if data.source == "folder" and channels and data.channels != channels:
        block["channels"] = channels
    return block


def _model(choice: Choice, up: Path) -> dict[str, object]:
    model = choice.model
    if model is None:
        return {"source": "state_dict", "path": TO_NAME, "factory": f"{TO_NAME}:{TO_NAME}"}
    block: dict[str, object] = {"source": model.source}
    if model.name:
        kwargs = {"kwargs": dict(model.kwargs)} if model.kwargs else {}
        return {**block, "name": model.name, "path": _below(up, model.path), **kwargs}
    if model.source == "function":
        return {**block, "function": str(model.path)}
    if model.of_library and model.source != "huggingface":
        return {**block, "name": str(model.path), "weights": "pretrained"}
    if model.of_library and not model.is_folder:
        return {**block, "name": str(model.path)}
    block["path"] = _below(up, model.path)
    if model.source == "state_dict":
        block["factory"] = choice.factory or f"{TO_NAME}:{TO_NAME}"
    is_probability = model.activation == ("Sigmoid" if model.classes == 1 else "Softmax")
    head = {"kind": "binary"} if model.classes == 1 else {}
    if head := head | ({"output": "probability"} if is_probability else {}):
        block["head"] = head
    return block


def _below(up: Path, path: Path) -> str:
    return path.as_posix() if path.is_absolute() else Path(os.path.normpath(up / path)).as_posix()
