"""Hidden values and logits brought to a common scale, so that absolute tolerances of solvers mean the same everywhere."""

import math
import operator
from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from windtunnel.assessments.verification.canonical.fold import argument, layer_of
from windtunnel.assessments.verification.canonical.operators import aten

# f(c x) = c f(x) for c > 0: a scale passes through.
_HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.Identity)
_SHAPING = frozenset(
    {
        torch.add, aten.add.Tensor, aten.sub.Tensor, aten.cat.default, aten.view.default, aten.reshape.default,
        aten.transpose.int, aten.permute.default, aten.squeeze.dim, aten.squeeze.default, aten.unsqueeze.default,
        aten.select.int, aten.slice.Tensor, aten.expand.default, aten.mean.dim, aten.sum.dim_IntList, aten.amax.default,
        aten.adaptive_avg_pool2d.default, operator.getitem,
    }
)  # fmt: skip
_LAYERS = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d)


def end_in_linear(graph: fx.GraphModule, classes: int) -> None:
    """Give a graph whose logits come from anything else one more linear layer, the identity."""
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    result = argument(output)
    if isinstance(layer_of(graph, result), nn.Linear) and len(result.users) == 1:
        return
    layer = nn.Linear(classes, classes).double()
    assert layer.bias is not None
    with torch.no_grad():
        layer.weight.copy_(torch.eye(classes))
        layer.bias.zero_()
    graph.add_submodule("logits", layer.requires_grad_(False))
    with graph.graph.inserting_before(output):
        output.args = (graph.graph.call_module("logits", (result,)),)
    graph.recompile()


def rescale(graph: fx.GraphModule, inputs: Tensor, unit: float, offset: float) -> None:
    """Divide the values of every layer of `graph` by a power of two near their largest on `inputs`, and the logits by `unit`.

    A positive scale passes through ReLU, pooling and sums, so the next layer's weights undo it: the logits become
    (logits - offset) / unit, and nothing else changes. What comes before an operator of another kind keeps its scale.
    """
    group = _groups(graph)
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    result = argument(output)
    scales = _scales(graph, group, inputs)
    scales[group[result]] = unit
    last = layer_of(graph, result)
    for node in graph.graph.nodes:
        layer = layer_of(graph, node)
        if not isinstance(layer, _LAYERS):
            continue
        scale_of_group = scales[group[node]]
        assert layer.bias is not None  # every layer of ours has one
        if layer is last:
            layer.bias.sub_(offset)
        layer.weight.mul_(scales[group[argument(node)]] / scale_of_group)
        layer.bias.div_(scale_of_group)


def _groups(graph: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """For each node the representative of those that share its scale."""
    leader: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        while leader[node] is not node:
            node = leader[node]
        return node

    for node in graph.graph.nodes:
        leader[node] = node
        if _passes_scale(graph, node):
            for source in node.all_input_nodes:
                leader[find(source)] = find(node)
    return {node: find(node) for node in leader}


def _passes_scale(graph: fx.GraphModule, node: fx.Node) -> bool:
    layer = layer_of(graph, node)
    return isinstance(layer, _HOMOGENEOUS) or (node.op == "call_function" and node.target in _SHAPING)


def _scales(graph: fx.GraphModule, group: dict[fx.Node, fx.Node], inputs: Tensor) -> dict[fx.Node, float]:
    """For each representative a power of two near the largest value of its nodes; 1 where a scale cannot pass."""
    largest = _Largest(graph)
    largest.run(inputs)
    sizes: dict[fx.Node, float] = dict.fromkeys(group.values(), 0.0)
    for node, size in largest.sizes.items():
        sizes[group[node]] = max(sizes[group[node]], size)
    for node in _fixed(graph):
        sizes[group[node]] = 1.0
    return {
        node: 2.0 ** round(math.log2(size)) if size > 0 and math.isfinite(size) else 1.0 for node, size in sizes.items()
    }


def _fixed(graph: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the nodes whose values must stay as they are: the input, constants, and both sides of every other operator."""
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            yield node
        elif node.op != "output" and not _passes_scale(graph, node) and not isinstance(layer_of(graph, node), _LAYERS):
            yield node
            yield from node.all_input_nodes


class _Largest(fx.Interpreter):
    """Notes the largest absolute value of every node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.sizes: dict[fx.Node, float] = {}

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel() and n.op != "output":
            self.sizes[n] = float(value.abs().max())
        return value
