"""Put what `model.preprocess` describes between inputs in [0, 1] and a model: as a module, or inside an ONNX graph."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from windtunnel.boundary.models.backends import session_of
from windtunnel.boundary.models.record import Steps
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.params.model import Preprocess

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in PIL and OpenCV
_KEY = "model.preprocess"
_PREFIX = "windtunnel_"  # of the nodes that are added to a graph


def steps_of(block: Preprocess, shape: Sequence[int]) -> Steps:
    """Resolve `model.preprocess` for inputs of `shape` (C, H, W), or (F,) where data are tabular.

    Raises:
        UserError: a key that does not fit the shape.
    """
    is_image = len(shape) == 3
    if not is_image and (block.layout or block.channels != "RGB"):
        raise UserError(f"{_KEY}: layout and channels are of images; the data have shape {_sizes(shape)}")
    channels, mixing = (shape[0] if is_image else 1), None
    if block.channels != "RGB":
        if channels != 3:
            raise UserError(f"{_KEY}.channels: {block.channels} is made of 3 channels; the data have {channels}")
        mixing = ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)) if block.channels == "BGR" else (_LUMA,)
        channels = len(mixing)
    for key in ("mean", "std"):
        values = getattr(block, key)
        if values is not None and len(values) not in {1, channels}:
            raise UserError(f"{_KEY}.{key}: has {len(values)} values; one, or one for each of {channels} channels")
    low, high = block.range or (0.0, 1.0)
    mean, std = (
        np.broadcast_to(np.array(values or default), channels)
        for values, default in ((block.mean, (0.0,)), (block.std, (1.0,)))
    )
    scale, offset = (high - low) / std, (low - mean) / std
    return Steps(
        mixing=mixing,
        scale=tuple(scale.tolist()),
        shift=tuple(offset.tolist()),
        channels_last=block.layout == "NHWC",
        is_image=is_image,
    )


def joined(first: Preprocess, second: Preprocess, shape: Sequence[int]) -> Preprocess:
    """Return one preprocessing that does what `first` and then `second` do to inputs of `shape` (C, H, W)."""
    if second == Preprocess(layout=second.layout):
        return Preprocess.model_validate(
            {**second.model_dump(exclude_unset=True), **first.model_dump(exclude_unset=True)}
        )
    a, b = steps_of(first, shape), steps_of(second, shape)
    order = -1 if second.channels == "BGR" else 1
    scale, offset = (np.array(values)[::order] for values in (a.scale, a.shift))
    factor = np.array(b.scale) * scale
    mean = -(np.array(b.scale) * offset + np.array(b.shift)) / factor
    channels = second.channels if second.channels == "gray" else "RGB" if first.channels == second.channels else "BGR"
    values = {key: [float(f"{v:.4g}") for v in array] for key, array in (("mean", mean), ("std", 1 / factor))}
    layout = first.layout or second.layout
    return Preprocess.model_validate(
        {**values, **({"layout": layout} if layout else {}), **({"channels": channels} if channels != "RGB" else {})}
    )


def as_yaml(preprocess: Preprocess) -> str:
    """Return the keys that are set, as a line of params.yaml."""

    def text(value: object) -> str:
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(text, value))}]"
        return "1/255" if value == 1 / 255 else f"{value:g}" if isinstance(value, int | float) else str(value)

    return (
        f"{{{', '.join(f'{key}: {text(value)}' for key, value in preprocess.model_dump(exclude_unset=True).items())}}}"
    )


class Preprocessed(nn.Module):
    """A network behind `model.preprocess`: inputs (N, C, H, W) or (N, F) in [0, 1], logits (N, K)."""

    def __init__(self, network: nn.Module, steps: Steps) -> None:
        super().__init__()
        self.network, self.channels_last = network, steps.channels_last
        self.mixing: Tensor | None
        self.scale: Tensor | None
        self.shift: Tensor | None
        mixing = torch.tensor(steps.mixing)[..., None, None] if steps.mixing else None
        self.register_buffer("mixing", mixing)
        form = (-1, 1, 1) if steps.is_image else (-1,)
        self.register_buffer("scale", torch.tensor(steps.scale).view(form) if steps.changes_values else None)
        self.register_buffer("shift", torch.tensor(steps.shift).view(form) if steps.changes_values else None)

    def prepared(self, inputs: Tensor) -> Tensor:
        """Return the inputs as the network takes them."""
        if self.mixing is not None:
            inputs = nn.functional.conv2d(inputs, self.mixing)
        if self.scale is not None and self.shift is not None:
            inputs = inputs * self.scale + self.shift
        return inputs.permute(0, 2, 3, 1) if self.channels_last else inputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        logits: Tensor = self.network(self.prepared(inputs))
        return logits


def adapt_graph(path: Path, preprocess: Preprocess, shape: Sequence[int], name: str) -> str:
    """Rewrite the ONNX file at `path` so that it takes images of `shape` (C, H, W) in [0, 1].

    The layout comes from `model.preprocess.layout`, else from the shape that the graph declares. A file that takes such
    images already stays as it is.

    Args:
        path: The file, which is overwritten.
        preprocess: What params.yaml says of the preprocessing.
        shape: Shape of a sample of the data.
        name: What the user calls the file, for messages.

    Returns:
        `Steps.label` of what the file does to its input now.

    Raises:
        IncompatibleError: the layout is ambiguous, or the graph takes images of another size.
        UserError: `model.preprocess` does not fit the data.
    """
    try:
        model = onnx.load(str(path))
    except Exception:  # protobuf raises many kinds for what is no ONNX file; who loads it says what it is
        return ""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or not inputs[0].type.tensor_type.HasField("shape"):
        return ""
    declared = [size.dim_value or None for size in inputs[0].type.tensor_type.shape.dim][1:]
    kind = inputs[0].type.tensor_type.elem_type
    if kind == TensorProto.UINT8 and preprocess.range is None:
        preprocess = preprocess.model_copy(update={"range": (0.0, 255.0)})
    sample = (1, *shape[1:]) if preprocess.channels == "gray" and len(shape) == 3 else tuple(shape)
    layout = layout_of(declared, sample, preprocess.layout, name, path)
    steps = steps_of(preprocess.model_copy(update={"layout": layout if len(shape) == 3 else None}), shape)
    if not steps.label and kind != TensorProto.UINT8:
        return ""
    _insert(model, inputs[0], steps, shape)
    onnx.save(model, str(path))
    return steps.label


def layout_of(
    declared: Sequence[int | None], shape: Sequence[int], stated: str | None, name: str, path: Path | None = None
) -> str:
    """Return NCHW or NHWC, as a graph that declares `declared` for a sample takes images of `shape` (C, H, W).

    Sizes of 1 do not count. A graph that takes a flat vector takes the pixels in the order of `stated`, NCHW by default.
    Where sizes are left open, the file at `path` is run on a sample of each layout.

    Raises:
        IncompatibleError: both layouts fit and none is stated, or none fits.
    """
    known = [size for size in declared if size != 1]
    if len(shape) != 3 or len(known) < 2:
        return stated or "NCHW"
    orders = {"NCHW": tuple(shape), "NHWC": (*shape[1:], shape[0])}
    possible = [layout for layout, sizes in orders.items() if _is_compatible(declared, sizes)]
    takes = _sizes(declared)
    if stated:
        if stated not in possible:
            raise IncompatibleError(
                f"{_KEY}.layout: {stated}, but {name} takes {takes} for a sample of {_sizes(shape)} (C x H x W)"
            )
        return stated
    if not possible:
        sides = [size for size in declared if size is not None and size not in (1, 3)]
        advice = f"data.resize: {sides[0]} or data.channels" if sides else "data.resize and data.channels"
        raise IncompatibleError(
            f"model: {name} takes {takes}, which is no order of the data's {_sizes(shape)} (C x H x W); {advice} "
            f"may make them fit"
        )
    if len(possible) == 2 and None in declared and path is not None:
        possible = [layout for layout in possible if _runs(path, orders[layout])] or possible
    if len(possible) == 2 and shape[0] != 1 and tuple(shape[1:]) != (1, 1):
        raise IncompatibleError(
            f"model: {name} takes {takes}, which fits images with channels first and with channels last; say which it is: "
            f"model.preprocess: {{layout: NCHW}} or {{layout: NHWC}}"
        )
    return possible[0]


def _is_compatible(declared: Sequence[int | None], sizes: Sequence[int]) -> bool:
    """Return True if images of `sizes` fit the declared sizes, None for any, but for sizes of 1."""
    if len(declared) != len(sizes):
        declared, sizes = [size for size in declared if size != 1], [size for size in sizes if size != 1]
    return len(declared) == len(sizes) and all(d in (None, s) for d, s in zip(declared, sizes, strict=True))


def _runs(path: Path, sizes: Sequence[int]) -> bool:
    """Return True if onnxruntime runs the graph on a float32 sample of these sizes."""
    try:
        session = session_of(path)
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, *sizes), np.float32)})
    except Exception:  # onnxruntime's own errors share no base but this
        return False
    return True


def _insert(model: onnx.ModelProto, graph_input: onnx.ValueInfoProto, steps: Steps, shape: Sequence[int]) -> None:
    """Put the steps before the first node of a graph, which takes float32 (N, *shape) afterwards."""
    nodes: list[onnx.NodeProto] = []
    kind, (size, *declared) = graph_input.type.tensor_type.elem_type, graph_input.type.tensor_type.shape.dim
    batch = size.dim_value or size.dim_param or "batch"
    input_name, current = graph_input.name, f"{_PREFIX}pixels"

    def add(operator: str, *constants: np.ndarray, output: str = "", **attributes: object) -> None:
        nonlocal current
        names = []
        for array in constants:
            names.append(f"{_PREFIX}constant_{len(nodes)}")
            nodes.append(helper.make_node("Constant", [], [names[-1]], value=numpy_helper.from_array(array)))
        result = output or f"{_PREFIX}{operator.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(operator, [current, *names], [result], **attributes))
        current = result

    is_image = len(shape) == 3
    if steps.mixing is not None:
        add("Conv", np.array(steps.mixing, np.float32)[..., None, None])
    if steps.changes_values:
        form = (1, -1, 1, 1) if is_image else (1, -1)
        add("Mul", np.array(steps.scale, np.float32).reshape(form))
        add("Add", np.array(steps.shift, np.float32).reshape(form))
    if steps.channels_last:
        add("Transpose", perm=[0, 2, 3, 1])
    if len(declared) != len(shape):
        rest = [size.dim_value or -1 for size in declared]
        if rest.count(-1) < 2:
            first = batch if isinstance(batch, int) else 0 if -1 in rest else -1
            add("Reshape", np.array([first, *rest], np.int64))
    if kind == TensorProto.UINT8:
        add("Round")
    if kind != TensorProto.FLOAT:
        add("Cast", to=kind)
    add("Identity", output=input_name)
    others = [value for value in model.graph.input if value.name != input_name]
    del model.graph.input[:]
    pixels = helper.make_tensor_value_info(f"{_PREFIX}pixels", TensorProto.FLOAT, [batch, *shape])
    model.graph.input.extend([pixels, *others])
    old_nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *old_nodes])


def _sizes(shape: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)
