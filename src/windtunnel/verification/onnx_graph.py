"""Small rewrites of an ONNX graph into one of equal outputs that Marabou reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def readable_by_marabou(source: Path, target: Path) -> Path:
    """`source` with divisions by constants turned into multiplications, written to `target`; `source` where it has none.

    Marabou 2.0.0 reads Add, Sub and Mul of constants, and no Div: that is how (pixel - mean) / std inside a model becomes
    a part of the graph, so that the property is about the pixels. What this gives is compared with the model afterwards.
    """
    model = onnx.load(str(source))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {
        node.output[0]: attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    divisions = [node for node in model.graph.node if node.op_type == "Div" and node.input[1] in constants]
    if not divisions:
        return source
    for number, node in enumerate(divisions):
        divisor = numpy_helper.to_array(constants[node.input[1]])
        name = f"windtunnel_reciprocal_{number}"
        model.graph.initializer.append(numpy_helper.from_array((1.0 / divisor).astype(np.float32), name))
        node.op_type, node.input[1] = "Mul", name
    onnx.save(model, str(target))
    return target
