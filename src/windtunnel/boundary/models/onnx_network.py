"""An ONNX graph as a torch module with gradients, for the operators of classifiers.

onnx2torch, the kept library for it, imports torchvision, which does not import beside a CPU build of torch. What is made
here is compared with onnxruntime by who uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn

from windtunnel.core.errors import IncompatibleError, UserError

# (attributes, inputs) -> output. Weights and shapes are tensors of the graph itself.
Operator = Callable[[Mapping[str, Any], list[Tensor]], Tensor]


class OnnxNetwork(nn.Module):
    """The graph's nodes, run one after the other by torch. Input (N, *input_shape), output (N, K), both of the module's dtype.

    input_shape: as the graph declares it, without the batch. Raises UserError for what is no graph with one input and one
    output, IncompatibleError, naming the operator, for one that has no row here.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            graph = onnx.load(str(path)).graph
        except Exception as error:  # protobuf raises many kinds for what is no ONNX file
            raise UserError(f"{path}: not an ONNX model ({' '.join(str(error).split())[:200]})") from error
        constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in constants]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise UserError(
                f"{path}: has {len(inputs)} inputs and {len(graph.output)} outputs; a classifier has one of each"
            )
        batch, *shape = [size.dim_value for size in inputs[0].type.tensor_type.shape.dim]
        if batch > 1 or not shape or not all(shape):
            given = [size.dim_param or size.dim_value for size in inputs[0].type.tensor_type.shape.dim]
            raise UserError(f"{path}: takes {given}; a batch of one or of any size, then known sizes, are needed")
        self.input_shape = tuple(shape)
        self._input, self._output = inputs[0].name, graph.output[0].name
        self._nodes: list[tuple[Operator, dict[str, Any], list[str], str]] = []
        self._places: dict[str, str] = {}
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant":
                constants[node.output[0]] = numpy_helper.to_array(attributes["value"])
                continue
            if node.op_type not in OPERATORS:
                raise IncompatibleError(
                    f"{path}: operator {node.op_type} ('{node.name}') cannot be read; known: {', '.join(sorted(OPERATORS))}"
                )
            self._nodes.append((OPERATORS[node.op_type], attributes, list(node.input), node.output[0]))
        for number, (name, array) in enumerate(constants.items()):
            self._places[name] = f"constant_{number}"
            self.register_buffer(self._places[name], torch.from_numpy(np.array(array)))

    def forward(self, x: Tensor) -> Tensor:
        """The logits (N, K)."""
        values = {name: getattr(self, place) for name, place in self._places.items()} | {self._input: x}
        for operator, attributes, names, made in self._nodes:
            values[made] = operator(attributes, [values[name] for name in names if name])
        logits: Tensor = values[self._output].flatten(1)
        return logits


def _gemm(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    x, weight, *bias = given
    x = x.T if attributes.get("transA") else x
    weight = weight if attributes.get("transB") else weight.T
    weight = weight * attributes.get("alpha", 1.0)
    return F.linear(x, weight, bias[0] * attributes.get("beta", 1.0) if bias else None)


def _matmul(_: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    x, weight = given
    return F.linear(x, weight.T) if weight.ndim == 2 and x.ndim <= 3 else x @ weight


def _conv(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    _plain_padding(attributes)
    x, weight, *bias = given
    spatial = weight.ndim - 2
    pads = attributes.get("pads") or [0] * 2 * spatial
    if pads[:spatial] != pads[spatial:]:
        x, pads = F.pad(x, [p for i in reversed(range(spatial)) for p in (pads[i], pads[i + spatial])]), [0] * spatial
    convolve = {1: F.conv1d, 2: F.conv2d}[spatial]
    return convolve(
        x, weight, bias[0] if bias else None, tuple(attributes.get("strides") or [1] * spatial), tuple(pads[:spatial]),
        tuple(attributes.get("dilations") or [1] * spatial), attributes.get("group", 1),
    )  # fmt: skip


def _pool(function: Callable[..., Tensor], more: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Operator:
    def pooled(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
        _plain_padding(attributes)
        kernel = tuple(attributes["kernel_shape"])
        pads = attributes.get("pads") or [0] * 2 * len(kernel)
        if len(kernel) != 2 or pads[:2] != pads[2:]:
            raise IncompatibleError("pooling of other than two dimensions, or padded on one side, cannot be read")
        return function(given[0], kernel, tuple(attributes.get("strides") or [1, 1]), tuple(pads[:2]),
                        ceil_mode=bool(attributes.get("ceil_mode", 0)), **more(attributes))  # fmt: skip

    return pooled


def _plain_padding(attributes: Mapping[str, Any]) -> None:
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise IncompatibleError("auto_pad of a convolution or a pooling cannot be read; export explicit pads")


def _batch_norm(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    x, weight, bias, mean, variance = given
    return F.batch_norm(x, mean, variance, weight, bias, eps=attributes.get("epsilon", 1e-5))


def _reshape(_: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    x, shape = given
    wanted = [int(size) for size in shape]
    # The first is the batch; graphs exported for a batch of one say 1, and sometimes -1 because all else is known.
    rest = [x.shape[i + 1] if size == 0 else size for i, size in enumerate(wanted[1:])]
    return x.flatten(1).reshape(x.shape[0], *rest) if rest else x.reshape(-1)


def _flatten(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    if attributes.get("axis", 1) != 1:
        raise IncompatibleError("Flatten along another axis than 1 cannot be read")
    return given[0].flatten(1)


def _axes(attributes: Mapping[str, Any], given: list[Tensor]) -> list[int]:
    return [int(a) for a in (given[1] if len(given) > 1 else attributes.get("axes", []))]


def _squeeze(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    return given[0].squeeze(tuple(_axes(attributes, given)))


def _unsqueeze(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    x = given[0]
    for axis in sorted(_axes(attributes, given)):
        x = x.unsqueeze(axis)
    return x


def _clip(attributes: Mapping[str, Any], given: list[Tensor]) -> Tensor:
    low, high = (float(given[i]) if len(given) > i else attributes.get(key) for i, key in ((1, "min"), (2, "max")))
    return given[0].clamp(low, high)


OPERATORS: dict[str, Operator] = {
    "Add": lambda _, g: g[0] + g[1],
    "AveragePool": _pool(F.avg_pool2d, lambda a: {"count_include_pad": bool(a.get("count_include_pad", 0))}),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": lambda a, g: torch.cat(g, a["axis"]),
    "Conv": _conv,
    "Div": lambda _, g: g[0] / g[1],
    "Dropout": lambda _, g: g[0],
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, g: g[0].mean(tuple(range(2, g[0].ndim)), keepdim=True),
    "Identity": lambda _, g: g[0],
    "LeakyRelu": lambda a, g: F.leaky_relu(g[0], a.get("alpha", 0.01)),
    "LogSoftmax": lambda a, g: g[0].log_softmax(a.get("axis", -1)),
    "MatMul": _matmul,
    "MaxPool": _pool(F.max_pool2d, lambda a: {"dilation": tuple(a.get("dilations") or [1, 1])}),
    "Mul": lambda _, g: g[0] * g[1],
    "Neg": lambda _, g: -g[0],
    "Relu": lambda _, g: g[0].relu(),
    "Reshape": _reshape,
    "Sigmoid": lambda _, g: g[0].sigmoid(),
    "Softmax": lambda a, g: g[0].softmax(a.get("axis", -1)),
    "Squeeze": _squeeze,
    "Sub": lambda _, g: g[0] - g[1],
    "Tanh": lambda _, g: g[0].tanh(),
    "Transpose": lambda a, g: g[0].permute(*a["perm"]),
    "Unsqueeze": _unsqueeze,
}
