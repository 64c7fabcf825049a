"""Constant arithmetic folded into the layers beside it, in float64, and all values brought to a common scale: one form of one function."""

import math
import operator
from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from windtunnel.assessments.verification.canonical.operators import Affine, aten, with_weights


def fold(graph: fx.GraphModule) -> None:
    """Fold every `Affine` of `graph` into the layer before it, or into all those after it; turn the rest into layers.

    Folding is exact but for rounding in float64: a shift before zero padding, which it is not, becomes a 1x1 convolution.
    """
    changed = True
    while changed:
        changed = any([_fold(graph, *pair) for pair in affine_nodes(graph)])
    for pair in affine_nodes(graph):
        _lower(graph, *pair)
    graph.delete_all_unused_submodules()
    graph.recompile()


def layer_of(graph: fx.GraphModule, node: object) -> nn.Module | None:
    """Return the module behind a node; None where it is no module's."""
    if isinstance(node, fx.Node) and node.op == "call_module":
        return graph.get_submodule(str(node.target))
    return None


def argument(node: fx.Node) -> fx.Node:
    """Return the first argument of a node that has a node there."""
    first = node.args[0]
    assert isinstance(first, fx.Node)
    return first


def affine_nodes(graph: fx.GraphModule) -> list[tuple[fx.Node, Affine]]:
    """Return the nodes that are `Affine`, with their layers."""
    return [(node, layer) for node in graph.graph.nodes if isinstance(layer := layer_of(graph, node), Affine)]


def _fold(graph: fx.GraphModule, node: fx.Node, affine: Affine) -> bool:
    before = argument(node)
    earlier = layer_of(graph, before)
    if len(before.users) == 1:
        if isinstance(earlier, Affine):
            both = Affine(earlier.scale * affine.scale, earlier.shift * affine.scale + affine.shift)
            graph.add_submodule(str(node.target), both)
            return _without(graph, before)
        if isinstance(earlier, nn.Conv2d | nn.Linear):
            channels = _per_channel(affine, earlier.weight.ndim - 1, len(earlier.weight))
            if channels is not None:
                _after(earlier, *channels)
                return _without(graph, node)
    users = [user_layer for user in node.users if (user_layer := _takes(graph, affine, user))]
    if users and len(users) == len(node.users):
        for user in users:
            _before(*user)
        return _without(graph, node)
    return False


def _without(graph: fx.GraphModule, node: fx.Node) -> bool:
    node.replace_all_uses_with(argument(node))
    graph.graph.erase_node(node)
    return True


def _per_channel(affine: Affine, dims: int, size: int) -> tuple[Tensor, Tensor] | None:
    """(scale, shift) of each of `size` channels, both (size,), of values of `dims` dimensions; None where they differ within a channel."""
    constants = affine.scale, affine.shift
    if any(c.ndim != dims or any(d != 1 for d in c.shape[1:]) for c in constants):
        return None
    scales, offsets = (c.flatten().expand(size) for c in constants)
    return scales, offsets


def _after(layer: nn.Conv2d | nn.Linear, scale: Tensor, offset: Tensor) -> None:
    assert layer.bias is not None
    layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.ndim - 1)))
    layer.bias.mul_(scale).add_(offset)


def _takes(graph: fx.GraphModule, affine: Affine, user: fx.Node) -> tuple[nn.Conv2d | nn.Linear, Tensor, Tensor] | None:
    """(layer, scale, shift) for a user that an affine before it can be folded into; None otherwise.

    scale, shift: (inputs,) of a linear layer, (channels,) of a convolution.
    """
    if (layer := layer_of(graph, user)) is None:
        return None
    shape = argument(user).meta.get("shape")
    if isinstance(layer, nn.Flatten) and shape is not None and len(user.users) == 1:
        (after,) = user.users
        linear = layer_of(graph, after)
        if isinstance(linear, nn.Linear):
            return linear, affine.scale.expand(shape).flatten(), affine.shift.expand(shape).flatten()
    if isinstance(layer, nn.Linear) and shape is not None and len(shape) == 1:
        return layer, affine.scale.expand(shape).flatten(), affine.shift.expand(shape).flatten()
    if isinstance(layer, nn.Conv2d) and shape is not None:
        channels = _per_channel(affine, 3, layer.in_channels)
        padded = isinstance(layer.padding, str) or any(layer.padding)
        return None if channels is None or (padded and affine.shift.any()) else (layer, *channels)
    return None


def _before(layer: nn.Conv2d | nn.Linear, scale: Tensor, offset: Tensor) -> None:
    assert layer.bias is not None
    if isinstance(layer, nn.Linear):
        layer.bias.add_(layer.weight @ offset)
        layer.weight.mul_(scale)
        return
    group = layer.in_channels // layer.groups
    repeats = layer.out_channels // layer.groups
    expanded = [part.view(layer.groups, 1, group).expand(-1, repeats, -1) for part in (scale, offset)]
    per_group = [part.reshape(layer.out_channels, group) for part in expanded]
    layer.bias.add_((layer.weight.sum((2, 3)) * per_group[1]).sum(1))
    layer.weight.mul_(per_group[0][..., None, None])


def _lower(graph: fx.GraphModule, node: fx.Node, affine: Affine) -> None:
    """Replace an affine that nothing takes by a layer of a common kind: a 1x1 convolution at the input, else normalisation."""
    shape = node.meta.get("shape")
    if shape is None or len(shape) not in (1, 3) or not (constants := _per_channel(affine, len(shape), shape[0])):
        return
    channels, (scale, offset) = shape[0], constants
    layer: nn.Conv2d | nn.BatchNorm2d | nn.BatchNorm1d
    if is_first := len(shape) == 3 and argument(node).op == "placeholder":
        layer = nn.Conv2d(channels, channels, 1)
    else:
        layer = (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(channels, eps=0.0)
    with_weights(layer.double(), torch.diag(scale)[..., None, None] if is_first else scale, offset)
    graph.add_submodule(str(node.target), layer.eval().requires_grad_(False))


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
    layer = with_weights(nn.Linear(classes, classes).double(), torch.eye(classes), None)
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
