"""Recognise weight files and read the shapes of their tensors, without running any code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.boundary.discovery.architecture import IMAGENET_CLASSES, fitting_architecture
from windtunnel.boundary.discovery.walk import kind_of_weights, maker, read_or_skip
from windtunnel.boundary.files import check_file
from windtunnel.boundary.text import read_json_map
from windtunnel.registry.plugins import is_installed

if TYPE_CHECKING:
    from torch import Tensor

LIBRARIES = ("torchvision", "timm", "huggingface")
_FIRST_LOOK = 12  # so many files are opened at most; more are checkpoints of one training


_LEAVE_VALUES = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
_OF_TFLITE = {  # in words of ONNX
    "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid", "RESHAPE": "Reshape", "SQUEEZE": "Squeeze", "CAST": "Cast",
    "QUANTIZE": "Identity", "DEQUANTIZE": "Identity",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weights:
    """One candidate. source: as `model.source`. made_by: the DVC stage that makes it; empty for none.

    path: a file, or for huggingface a folder; where a library brings the weights too, what it calls them.
    parts: the names of the module's children, for a state dict. channels, side: of its inputs, side is (height, width); classes:
    of its outputs; None where that is not known. size: how many numbers it has. activation: the operator of an ONNX or TFLite graph
    that makes its outputs, by ONNX's name; empty where that is not known.
    """

    path: Path
    source: str
    made_by: str = ""
    parts: frozenset[str] = frozenset()
    channels: int | None = None
    classes: int | None = None
    side: tuple[int, int] | None = None
    size: int = 0
    activation: str = ""
    is_folder: bool = False
    # of the library's architecture that a file of weights fits; empty elsewhere
    name: str = ""
    kwargs: Mapping[str, int] = field(default_factory=dict)
    # of a state dict that fits no architecture: the libraries whose architectures could not be tried, and why
    untried: tuple[str, ...] = ()
    # the names below the only child, which may be a wrapper of a trainer's; empty where there are several
    inner_parts: frozenset[str] = frozenset()

    @property
    def of_library(self) -> bool:
        """True if a library brings the architecture, and its own transforms of images."""
        return self.source in LIBRARIES


def candidates(
    root: Path, files: Iterable[Path], pretrained: Iterable[Path], makers: Mapping[Path, str]
) -> list[Weights]:
    """Return loadable weights among `files` and folders, and outputs of stages that do not exist yet; the latter come first."""
    paths = [*files, *(path for path in makers if kind_of_weights(path))]
    paths = sorted(dict.fromkeys(paths), key=lambda path: (not maker(path, makers), len(path.parts), path))

    def usable(places: Iterable[Path]) -> list[Weights]:
        looked = (read_or_skip(path, lambda path: look_at(root, path, maker(path, makers))) for path in places)
        return [weights for weights in looked if weights]

    folders = usable(pretrained)
    inside = {weights.path for weights in folders}  # whose files are no models of their own
    return [*usable([path for path in paths if path.parent not in inside][:_FIRST_LOOK]), *folders]


def named(model: str) -> Weights | None:
    """Return what `torchvision:resnet50` names, or `function:api:predict`; None for anything else."""
    source, _, name = model.partition(":")
    return Weights(Path(name), source) if source in (*LIBRARIES, "function") and name else None


def look_at(root: Path, path: Path, made_by: str = "") -> Weights | None:
    """Return the kind of a weight file; None if it has no weights.

    Raises whatever its parser raises for a damaged file, and for a pickle that could run code.
    """
    file = root / path
    if file.is_dir():
        return _pretrained(file, path, made_by)
    if (source := kind_of_weights(path)) is None:
        return None
    if not file.exists():
        return Weights(path, source, made_by)
    check_file(file)
    if source == "onnx":
        return _graph(file, path, made_by)
    if source == "state_dict" and _is_program(file):
        source = "export"
    if source == "tflite" and is_installed("ai_edge_litert"):
        return _flat_buffer(file, path, made_by)
    if source in {"export", "tflite"}:
        return Weights(path, source, made_by, size=file.stat().st_size // 4)
    return _tensors(file, path, made_by)


def _pretrained(folder: Path, path: Path, made_by: str) -> Weights | None:
    """Return an image classifier as transformers' save_pretrained writes it."""
    if not (folder / "config.json").exists():
        return None
    config = read_json_map(folder / "config.json")
    kinds = config.get("architectures")
    if not any(str(kind).endswith("ForImageClassification") for kind in (kinds if isinstance(kinds, list) else [])):
        return None
    labels = config.get("id2label")
    return Weights(
        path, "huggingface", made_by, classes=len(labels) if isinstance(labels, dict) else None, is_folder=True
    )


def _is_program(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith(("archive_format", "serialized_exported_program.json")) for name in archive.namelist())


def _graph(file: Path, path: Path, made_by: str) -> Weights | None:
    import onnx

    graph = onnx.load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    shape, out = (
        [dim.dim_value for value in values[:1] for dim in value.type.tensor_type.shape.dim]
        for values in (inputs, graph.output)
    )
    size = sum(math.prod(tensor.dims) for tensor in graph.initializer)
    producers = {name: (node.op_type, list(node.input)) for node in graph.node for name in node.output}
    activation = _activation(producers, graph.output[0].name) if graph.output else ""
    return Weights(path, "onnx", made_by, size=size, activation=activation, **_shapes(shape, out))


def _flat_buffer(file: Path, path: Path, made_by: str) -> Weights:
    """Return what a TFLite file says of its first subgraph."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(file.read_bytes(), 0)
    graph = model.subgraphs[0]
    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    # Older files have the operator in the other field alone.
    codes = [names[max(code.builtinCode, code.deprecatedBuiltinCode)] for code in model.operatorCodes]
    producers = {
        tensor: (_OF_TFLITE.get(codes[operator.opcodeIndex], ""), list(operator.inputs))
        for operator in graph.operators
        for tensor in operator.outputs
    }
    shape, out = ([*map(int, graph.tensors[places[0]].shape)] for places in (graph.inputs, graph.outputs))
    size, activation = file.stat().st_size // 4, _activation(producers, graph.outputs[0])
    return Weights(path, "tflite", made_by, size=size, activation=activation, **_shapes(shape, out))


def _shapes(shape: list[int], out: list[int]) -> dict[str, Any]:
    """Return channels, side and classes of the shape of an input and an output, where 0 or a batch size says nothing."""
    from windtunnel.boundary.data.sources import channels_first

    channels, *side = channels_first(shape) if len(shape) == 4 else (0, 0, 0)
    return {
        "channels": channels if channels in {1, 3} else None,
        "side": (side[0], side[1]) if all(side) else None,
        "classes": (out[-1] if out else 0) or None,
    }


def _activation(producers: Mapping[Any, tuple[str, list[Any]]], output: Any) -> str:
    """Return the ONNX operator that makes `output`, behind those that leave its values as they are; empty for none.

    producers: the operator and the inputs of each value.
    """
    operator = ""
    for _ in range(len(producers) + 1):
        operator, inputs = producers.get(output, ("", []))
        if operator not in _LEAVE_VALUES:
            break
        output = inputs[0]
    return operator


def _tensors(file: Path, path: Path, made_by: str) -> Weights | None:
    import torch

    from windtunnel.boundary.models.loaders import read_weights, state_dict_in

    content = read_weights(file, path.name)
    # Trainers write the architecture beside the weights: {"arch": "resnet50", "state_dict": ...}.
    hints = [value for value in content.values() if isinstance(value, str)] if isinstance(content, dict) else []
    state, _ = state_dict_in(content)
    # Quantised layers also have other values.
    weights = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    parts = _children(state)
    # A single child is a wrapper, as of Lightning; no architecture of a library has one.
    inner = {name.partition(".")[2]: value for name, value in weights.items()} if len(parts) == 1 else weights
    architecture, untried = fitting_architecture(inner, " ".join([path.name, *hints]))
    if architecture:
        classes = architecture.classes or IMAGENET_CLASSES
        kwargs = {"num_classes": architecture.classes} if architecture.classes else {}
        return Weights(path, architecture.source, made_by, classes=classes, name=architecture.name, kwargs=kwargs)
    tensors = list(weights.values())
    kernels = [tensor for tensor in tensors if tensor.ndim == 4]
    return Weights(
        path,
        "state_dict",
        made_by,
        parts=parts,
        inner_parts=_children(inner) if inner is not weights else frozenset(),
        channels=int(kernels[0].shape[1]) if kernels and kernels[0].shape[1] in {1, 3} else None,
        classes=_classes(tensors),
        size=sum(tensor.numel() for tensor in tensors),
        untried=untried,
    )


def _children(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in names)


def _classes(tensors: list[Tensor]) -> int | None:
    """Return the rows of the last matrix: the classes, in networks that end in a linear layer."""
    matrices = [tensor for tensor in tensors if tensor.ndim == 2]
    return int(matrices[-1].shape[0]) if matrices else None
