"""Constant arithmetic folded into the layers beside it, in float64, so that all forms of one function become one."""

import torch
from torch import Tensor, fx, nn

from windtunnel.assessments.verification.canonical.operators import Affine


def fold(graph: fx.GraphModule) -> None:
    """Fold every `Affine` of `graph` into the layer before it, or into all those after it; turn the rest into layers.

    Folding is exact but for rounding in float64: a shift before zero padding, which it is not, becomes a 1x1 convolution.
    """
    changed = True
    while changed:
        changed = any([_fold(graph, node) for node in affine_nodes(graph)])
    for node in affine_nodes(graph):
        _lower(graph, node)
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


def affine_nodes(graph: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes that are `Affine`."""
    return [node for node in graph.graph.nodes if isinstance(layer_of(graph, node), Affine)]


def _affine(graph: fx.GraphModule, node: fx.Node) -> Affine:
    layer = layer_of(graph, node)
    assert isinstance(layer, Affine)
    return layer


def _fold(graph: fx.GraphModule, node: fx.Node) -> bool:
    affine, before = _affine(graph, node), argument(node)
    earlier = layer_of(graph, before)
    if len(before.users) == 1:
        if isinstance(earlier, Affine):
            graph.add_submodule(
                str(node.target), Affine(earlier.scale * affine.scale, earlier.shift * affine.scale + affine.shift)
            )
            return _without(graph, before)
        if isinstance(earlier, nn.Conv2d | nn.Linear) and (channels := _per_channel(affine, earlier)):
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


def _per_channel(affine: Affine, layer: nn.Conv2d | nn.Linear) -> tuple[Tensor, Tensor] | None:
    """(scale, shift) for each output of a layer before it, both (outputs,); None where they differ within a channel."""
    size = layer.weight.shape[0]
    dims = 3 if isinstance(layer, nn.Conv2d) else 1
    parts = []
    for constant in (affine.scale, affine.shift):
        if constant.ndim != dims or any(d != 1 for d in constant.shape[1:]):
            return None
        parts.append(constant.flatten().expand(size))
    return parts[0], parts[1]


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
        if any(c.ndim != 3 or c.shape[1:] != (1, 1) for c in (affine.scale, affine.shift)):
            return None
        padded = isinstance(layer.padding, str) or any(layer.padding)
        if padded and affine.shift.any():
            return None
        channels = layer.in_channels
        return layer, affine.scale.flatten().expand(channels), affine.shift.flatten().expand(channels)
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


def _lower(graph: fx.GraphModule, node: fx.Node) -> None:
    """Replace an affine that nothing takes by a layer of a common kind: a 1x1 convolution at the input, else normalisation."""
    affine, shape = _affine(graph, node), node.meta.get("shape")
    if shape is None or len(shape) not in (1, 3):
        return
    channels = shape[0]
    if any(c.ndim != len(shape) or any(d != 1 for d in c.shape[1:]) for c in (affine.scale, affine.shift)):
        return
    scale, offset = affine.scale.flatten().expand(channels), affine.shift.flatten().expand(channels)
    layer: nn.Module
    if len(shape) == 3 and argument(node).op == "placeholder":
        conv = nn.Conv2d(channels, channels, 1).double()
        assert conv.bias is not None
        with torch.no_grad():
            conv.weight.copy_(torch.diag(scale)[..., None, None])
            conv.bias.copy_(offset)
        layer = conv
    else:
        norm = (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(channels, eps=0.0).double()
        with torch.no_grad():
            norm.weight.copy_(scale)
            norm.bias.copy_(offset)
        layer = norm
    graph.add_submodule(str(node.target), layer.eval().requires_grad_(False))
