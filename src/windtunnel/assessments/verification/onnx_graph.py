"""Small rewrites of an ONNX graph into one of equal outputs that Marabou reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

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
    model = onnx.shape_inference.infer_shapes(onnx.load(str(source)))
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
        made = helper.make_node("Conv", [node.input[0], *names], list(node.output), node.name,
                                kernel_shape=[1, 1], strides=[1, 1], pads=[0] * 4, dilations=[1, 1], group=1)  # fmt: skip
        graph.node[position].CopyFrom(made)
        changed = True
    if not changed:
        return source
    used = {name for node in graph.node for name in node.input}
    for node in [n for n in graph.node if n.op_type == "Constant" and n.output[0] not in used]:
        graph.node.remove(node)
    onnx.save(model, str(target))
    return target


def _per_channel(constant: np.ndarray, channels: int) -> np.ndarray | None:
    """A constant that is broadcast over height and width, as (channels,); None where it is anything else."""
    padded = constant.reshape((1,) * (4 - constant.ndim) + constant.shape) if constant.ndim <= 4 else constant
    if padded.ndim != 4 or padded.shape not in {(1, 1, 1, 1), (1, channels, 1, 1)}:
        return None
    return np.broadcast_to(padded, (1, channels, 1, 1)).reshape(channels).astype(np.float64)
