"""Which operator of a network a verifier cannot take: the last of the shortest part of the network that it refuses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx, nn

from windtunnel.assessments.verification.canonical.fold import layer_of


def culprit(network: nn.Module, fails: Callable[[nn.Module], bool]) -> str:
    """The operator at which a network first `fails`, and where the user's module has it; empty where none can be named.

    Each kind of operator is tried once, at the end of the part of the network that leads to it.
    """
    if not isinstance(network, fx.GraphModule):
        return ""
    tried = set()
    for node in network.graph.nodes:
        if node.op not in ("call_module", "call_function"):
            continue
        layer = layer_of(network, node)
        kind = node.target if layer is None else repr(layer)
        if kind not in tried:
            tried.add(kind)
            if fails(_leading_to(network, node)):
                return str(node.meta.get("operator", node.name))
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
    graph.eliminate_dead_code()
    return fx.GraphModule(network, graph)
