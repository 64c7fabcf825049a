"""Which operator of a network a verifier cannot take: the last of the shortest part of the network that it refuses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx, nn

from windtunnel.assessments.verification.canonical.fold import layer_of

_COMMON = (nn.Conv2d, nn.Linear, nn.ReLU, nn.Flatten, nn.BatchNorm1d, nn.BatchNorm2d)


def culprit(network: nn.Module, fails: Callable[[nn.Module], bool]) -> str:
    """The operator at which a network first `fails`, and where the user's module has it; empty where none can be named.

    Of a network that could not be traced all that are not common.

    Each kind of operator is tried once, at the end of the part of the network that leads to it. Where the part ends in a
    layer that every verifier knows, what it cannot be combined with came before.
    """
    if not isinstance(network, fx.GraphModule):
        leaves = [part for part in network.modules() if not next(part.children(), None)]
        return " or ".join(sorted({type(part).__name__ for part in leaves if not isinstance(part, _COMMON)}))
    tried, last = set(), ""
    for node in network.graph.nodes:
        if node.op not in ("call_module", "call_function") or not node.meta.get("value", True):
            continue
        layer = layer_of(network, node)
        kind = node.target if layer is None else repr(layer)
        if kind not in tried:
            tried.add(kind)
            if not isinstance(layer, _COMMON):
                last = str(node.meta.get("operator", node.name))
            if fails(_leading_to(network, node)):
                return last
    return ""


def _leading_to(network: fx.GraphModule, last: fx.Node) -> fx.GraphModule:
    """The part of a network that gives the value of `last`, flattened to (n, values)."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in network.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node is last:
            break
    graph.output(graph.call_function(torch.flatten, (copies[last], 1)))
    part = fx.GraphModule(network, graph)
    part.graph.eliminate_dead_code()
    part.recompile()
    return part
