"""Gradients through torch.export programs that cut them off: `no_grad` and `detach` change no value, so they can go."""

import torch
from torch import Tensor, fx, nn

from windtunnel.core.contracts import Caveat

_DETACH = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


def open_gradients(program: nn.Module) -> list[str]:
    """Take `no_grad` and `detach` out of a program, in place; the names of what was taken out.

    Every value stays, bit by bit: detach gives its argument, and the mode of autograd decides no number.
    """
    operators = []
    for part in program.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in list(part.graph.nodes):
            if node.op != "call_function":
                continue
            if str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
                node.args = (True, *node.args[1:])
                operators.append("no_grad")
            elif node.target in _DETACH:
                node.replace_all_uses_with(node.args[0])
                part.graph.erase_node(node)
                operators.append("detach")
        part.recompile()
    return sorted(set(operators))


def opened(cuts: list[str]) -> Caveat:
    """Return the caveat on gradients that the program itself does not give."""
    return Caveat(
        "converted_model",
        f"The torch.export program cuts off its gradients ({', '.join(cuts)}). They were let through for attacks and bounds; no "
        f"logit changes by that.",
    )


def cutting_operator(module: nn.Module, sample: Tensor) -> str:
    """Return the first operator of a program whose output no gradient comes back from, for `sample` (1, *shape); empty for none."""
    graphs = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    if not graphs:
        return ""
    cuts = _Cuts(graphs[0])
    with torch.enable_grad():
        cuts.run(sample.clone().requires_grad_())
    return cuts.first


class _Cuts(fx.Interpreter):
    """Notes the first node that is given a tensor with a gradient and gives one without."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.first = ""

    def run_node(self, n: fx.Node) -> object:
        """Compute the value of a node."""
        value = super().run_node(n)
        inputs = [self.env[node] for node in n.all_input_nodes if n.op == "call_function" and node in self.env]
        cut = isinstance(value, Tensor) and not value.requires_grad
        if not self.first and cut and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            self.first = str(getattr(n.target, "__name__", n.target)).split(".")[0]
        return value
