"""Small rewrites of an ONNX graph into one of equal outputs that Marabou reads."""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx, nn

from windtunnel.boundary.models.backends import read_graph, session_of
from windtunnel.core.errors import IncompatibleError

# What the parser of Marabou 2.0.0 has a rule for.
_READABLE = frozenset(
    """
    Constant Identity Dropout Cast Reshape Flatten Transpose Unsqueeze Squeeze Gemm Sub BatchNormalization Concat
    MaxPool Conv MatMul Mul Add Relu Sigmoid Split Tanh LeakyRelu
    """.split()
)
_READS = "it reads linear layers, convolutions, ReLU, leaky ReLU, sigmoid, tanh, pooling and sums: use those there, or leave out marabou"
_TAKEN_TO_PIECES = frozenset({"layer_norm", "group_norm", "instance_norm", "scaled_dot_product_attention"})
# Where the largest value of a layer is below or above, Marabou's absolute tolerances (1e-5 and less) say nothing of it.
_SMALLEST, _LARGEST = 1e-2, 1e6

# (weight, bias) of the 1x1 convolution that does what the operator does with a constant for each channel.
_AFFINE = {
    "Add": lambda c: (np.ones_like(c), c),
    "Sub": lambda c: (np.ones_like(c), -c),
    "Mul": lambda c: (c, np.zeros_like(c)),
    "Div": lambda c: (1 / c, np.zeros_like(c)),
}


def readable_by_marabou(source: Path, target: Path) -> Path:
    """`source` with arithmetic per channel turned into 1x1 convolutions, in `target`; `source` where there is none.

    Marabou 2.0.0 reads no division, and subtraction and multiplication of equal shapes only. That is how
    (pixel - mean) / std inside a model becomes a part of the graph, so that the property is about the pixels. What this
    gives is to be compared with the model afterwards.
    """
    model = onnx.shape_inference.infer_shapes(read_graph(source))
    graph = model.graph
    values = (*graph.value_info, *graph.input)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constants |= {
        node.output[0]: numpy_helper.to_array(attribute.t)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    changed = False
    for position, node in enumerate(graph.node):
        shape = shapes.get(node.input[0], []) if node.op_type in _AFFINE else []
        if len(shape) != 4 or node.input[1] not in constants or node.input[0] in constants:
            continue
        per_channel = _per_channel(constants[node.input[1]], shape[1])
        if per_channel is None:
            continue
        weight, bias = _AFFINE[node.op_type](per_channel)
        names = [f"windtunnel_{part}_{position}" for part in ("weight", "bias")]
        kernel = np.diag(weight).reshape(*[shape[1]] * 2, 1, 1)
        for name, array in zip(names, (kernel, bias), strict=True):
            graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        sizes = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1}
        replacement = helper.make_node("Conv", [node.input[0], *names], list(node.output), node.name, **sizes)
        graph.node[position].CopyFrom(replacement)
        changed = True
    if not changed:
        return source
    used = {name for node in graph.node for name in node.input}
    for node in [n for n in graph.node if n.op_type == "Constant" and n.output[0] not in used]:
        graph.node.remove(node)
    onnx.save(model, str(target))
    return target


def _per_channel(constant: np.ndarray, channels: int) -> np.ndarray | None:
    """Return a constant that is broadcast over height and width, as (channels,); None where it is anything else."""
    padded = constant.reshape((1,) * (4 - constant.ndim) + constant.shape) if constant.ndim <= 4 else constant
    if padded.ndim != 4 or padded.shape not in {(1, 1, 1, 1), (1, channels, 1, 1)}:
        return None
    return np.broadcast_to(padded, (1, channels, 1, 1)).reshape(channels).astype(np.float64)


def rescaled(source: Path, target: Path, unit: float, offset: float) -> Path:
    """`source` with logits (logits - offset) / unit, in `target`: in the last layer's own weights where it is linear."""
    model = read_graph(source)
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    last = makers[graph.output[0].name]
    bias = last if last.op_type == "Add" else None
    product = makers.get(last.input[0], last) if bias is not None else last
    parts = {"Gemm": product.input[1:], "MatMul": [*product.input[1:], *(bias.input[1:] if bias is not None else [])]}
    names = list(parts.get(product.op_type, []))
    plain = all(a.name not in ("alpha", "beta") or a.f == 1.0 for a in product.attribute)
    if len(names) == 2 and plain and all(name in weights for name in names):
        for name, offset_value in zip(names, (0.0, offset), strict=True):
            array = (numpy_helper.to_array(weights[name]).astype(np.float64) - offset_value) / unit
            weights[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    else:
        inner, classes = "windtunnel_logits", graph.output[0].type.tensor_type.shape.dim[-1].dim_value
        for position, name in enumerate(last.output):
            if name == graph.output[0].name:
                last.output[position] = inner
        array = np.eye(classes, dtype=np.float64) / unit
        for name, value in (("windtunnel_unit", array), ("windtunnel_offset", np.full(classes, -offset / unit))):
            graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
        graph.node.append(
            helper.make_node("Gemm", [inner, "windtunnel_unit", "windtunnel_offset"], [graph.output[0].name])
        )
    onnx.save(model, str(target))
    return target


def check_layers(network: nn.Module) -> None:
    """Raise IncompatibleError for layers that the exporter takes to pieces, or fails at with the whole graph on the screen."""
    for node in network.graph.nodes if isinstance(network, fx.GraphModule) else ():
        if str(node.target).removeprefix("aten.").split(".")[0] in _TAKEN_TO_PIECES:
            raise IncompatibleError(f"Marabou does not read {node.meta.get('operator', node.target)}; {_READS}")


def check_operators(path: Path, network: nn.Module) -> None:
    """Raise IncompatibleError, with the operator and where `network` has it, for a graph that Marabou does not read."""
    operator_names = (
        {str(node.target): str(node.meta.get("operator", "")) for node in network.graph.nodes}
        if isinstance(network, fx.GraphModule)
        else {}
    )
    graph = read_graph(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    unread = [
        node
        for node in graph.node
        if node.op_type not in _READABLE
        or (node.op_type in ("Mul", "Sub") and not constants & set(node.input))
        or (node.op_type == "Conv" and _overlooked(node))
    ]
    places = [
        next((operator_names[part] for part in node.name.split("/") if operator_names.get(part)), "") for node in unread
    ]
    if unread:
        named = next(
            (
                f"this {node.op_type}, of {module_path}"
                for node, module_path in zip(unread, places, strict=True)
                if module_path
            ),
            "",
        )
        raise IncompatibleError(f"Marabou does not read {named or unread[0].op_type}; {_READS}")


def _overlooked(conv: onnx.NodeProto) -> bool:
    """Return whether a convolution has groups or dilation, which Marabou's parser does not look at."""
    attributes = {attribute.name: attribute for attribute in conv.attribute}
    return ("group" in attributes and attributes["group"].i != 1) or (
        "dilations" in attributes and set(attributes["dilations"].ints) != {1}
    )


def check_scale(path: Path, inputs: torch.Tensor) -> None:
    """Raise IncompatibleError where a layer's values on `inputs` (n, ...) are too small or too large for Marabou.

    Its tolerances are absolute: of values of 1e-6 it says anything.
    """
    model = onnx.shape_inference.infer_shapes(read_graph(path))
    value_infos = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    single = onnx.TensorProto.FLOAT
    floats = {name for name, value in value_infos.items() if value.type.tensor_type.elem_type == single}
    inner = [name for node in model.graph.node for name in node.output if name in floats]
    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(value_infos[name] for name in inner if name not in outputs)
    session = session_of(model)
    largest = dict.fromkeys(inner, 0.0)
    for sample in inputs.split(1):
        values = session.run(inner, {session.get_inputs()[0].name: sample.numpy()}) if inner else []
        for name, value in zip(inner, values, strict=True):
            largest[name] = max(largest[name], float(np.abs(value).max(initial=0.0)))
    for name, size in largest.items():
        if size and not _SMALLEST <= size <= _LARGEST:
            raise IncompatibleError(
                f"the ONNX graph's values '{name}' are at most {size:.3g} on the samples, where Marabou's absolute "
                f"tolerances prove nothing; give the model as a torch module, which is brought to scale, or rescale its layers"
            )
