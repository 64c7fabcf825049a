"""Checks of an ONNX graph before Marabou is given it: operators that it reads, values that its tolerances can tell."""

from pathlib import Path

import numpy as np
import onnx
import torch
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


def check_layers(network: nn.Module) -> None:
    """Raise IncompatibleError for layers that the exporter takes to pieces, or fails at with the whole graph on the screen."""
    for node in network.graph.nodes if isinstance(network, fx.GraphModule) else ():
        if str(node.target).removeprefix("aten.").split(".")[0] in _TAKEN_TO_PIECES:
            raise IncompatibleError(f"Marabou does not read {node.meta.get('operator', node.target)}; {_READS}")


def check_operators(path: Path, network: nn.Module) -> None:
    """Raise IncompatibleError, with the operator and where `network` has it, for a graph that Marabou does not read."""
    nodes = network.graph.nodes if isinstance(network, fx.GraphModule) else ()
    operator_names = {str(node.target): str(node.meta.get("operator", "")) for node in nodes}
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
    if unread:
        origins = ((node, operator_names.get(part)) for node in unread for part in node.name.split("/"))
        named = (f"this {node.op_type}, of {operator}" for node, operator in origins if operator)
        raise IncompatibleError(f"Marabou does not read {next(named, unread[0].op_type)}; {_READS}")


def _overlooked(conv: onnx.NodeProto) -> bool:
    """Return whether a convolution has groups or dilation, which Marabou's parser does not look at."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in conv.attribute}
    return attributes.get("group", 1) != 1 or set(attributes.get("dilations", [1])) != {1}


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
