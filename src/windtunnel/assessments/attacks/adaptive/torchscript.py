"""Read TorchScript programs as calls of torch's operators, which can be traced and get other derivatives."""

import copy
from contextlib import suppress

import torch
from torch import Tensor, nn

from windtunnel.core.references import quiet_library
from windtunnel.core.seeds import seeded

SAMPLES = (2, 1, 3)  # of the program's conversion, and of the comparisons with it


def with_operations(module: nn.Module, inputs: Tensor) -> nn.Module:
    """Return a copy of the module whose TorchScript programs are torch.fx graphs of the same logits, bit for bit.

    Args:
        module: Any model, logits (n, K) of inputs; returned as it is if it has no program, or one that torch cannot convert.
        inputs: float32 (n, C, H, W), at least one sample.
    """
    if not any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        return module
    programs: dict[int, tuple[torch.jit.ScriptModule, tuple[Tensor, ...]]] = {}

    def remember(part: nn.Module, args: tuple[Tensor, ...]) -> None:
        if isinstance(part, torch.jit.ScriptModule):
            programs.setdefault(id(part), (part, args))

    batches = [inputs[torch.arange(size) % len(inputs)] for size in SAMPLES]
    hook = nn.modules.module.register_module_forward_pre_hook(remember)
    try:
        with seeded(0), torch.no_grad():
            expected = [module(batch) for batch in batches]
    finally:
        hook.remove()
    with suppress(Exception), quiet_library():  # whatever the converter makes of a graph
        from torch._export.converter import TS2EPConverter

        graphs = {
            key: TS2EPConverter(program, args).convert().module(check_guards=False)
            for key, (program, args) in programs.items()
        }
        for graph in graphs.values():
            vars(graph)["validate_inputs"] = False  # the check takes sizes for constants while calls are recorded
            del graph.train, graph.eval  # which raise
        readable = copy.deepcopy(module, dict(graphs))
        with seeded(0), torch.no_grad():
            if all(torch.equal(readable(batch), logits) for batch, logits in zip(batches, expected, strict=True)):
                return readable
    return module
