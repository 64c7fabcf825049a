"""Copy or wrap a caller's models and functions, or refuse them in one line."""

import copy
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from windtunnel.boundary.models.backends import FixedMode, PredictFunction
from windtunnel.boundary.models.loaders import FUNCTION, TORCH, Loaded
from windtunnel.core.classifier import module_digest
from windtunnel.core.errors import UserError, shown
from windtunnel.core.references import users_code

_MODULE = "windtunnel_caller"  # holds functions of a caller's that no module has


def model_of(model: object) -> Loaded:
    """Return a copy of a caller's torch module, or its function wrapped so that queries are counted.

    Raises UserError, in one line, for any other object, one that cannot be copied, and a module with uninitialised parameters.
    """
    if isinstance(model, nn.Module):
        return _module(model)
    kind = type(model).__name__
    if isinstance(model, type):
        raise UserError(f"model: is the class {model.__name__}; an instance is needed: {model.__name__}()")
    if isinstance(model, Mapping):
        raise UserError(f"model: is a {kind}; a state dict is no model: load it into a module (load_state_dict)")
    if not callable(model):
        description = f"{shown(model)} ({kind})" if model is None or isinstance(model, str) else f"a {kind}"
        raise UserError(f"model: is {description}, not a torch module or a function from images to probabilities")
    name = str(getattr(model, "__qualname__", None) or kind)
    return Loaded(PredictFunction(model, "model"), FUNCTION, name, f"function {name}")


def _module(model: nn.Module) -> Loaded:
    name = type(model).__name__
    while isinstance(model, nn.DataParallel) or hasattr(model, "_orig_mod"):  # torch.compile's wrapper has the latter
        model = model.module if isinstance(model, nn.DataParallel) else model._orig_mod  # type: ignore[assignment]
    for part, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UserError(f"model: {part} is not initialized; call the model once on a batch before")
        if tensor.device.type == "meta":
            raise UserError(f"model: {part} is on device meta, which holds no numbers; load the weights first")
    # Tensors that were computed from parameters, as old weight norms keep them, cannot be copied by deepcopy itself.
    computed = {
        id(value): value.detach().clone()
        for part in model.modules()
        for value in (() if isinstance(part, torch.jit.ScriptModule) else vars(part).values())
        if isinstance(value, Tensor) and not value.is_leaf
    }
    with users_code("model: copied by copy.deepcopy, it"), torch.no_grad():
        # The caller's stays in its mode, on its device, with its gradients.
        copied: nn.Module = copy.deepcopy(model, computed)
        returned = copied if isinstance(copied, torch.jit.ScriptModule) else copied.eval()
    if not isinstance(returned, nn.Module):
        raise UserError(f"model: eval() of {name} does not return the module; remove it, or let it return self")
    if isinstance(copied, torch.jit.ScriptModule):
        if hasattr(copied, "training"):  # a frozen one has no mode
            copied.eval()
        copied = FixedMode(copied)
    return Loaded(copied, TORCH, module_digest(copied), name)


class CallersFunctions(ExitStack):
    """Functions of a caller's, found by `module:name` while the block lasts, lambdas and a notebook's own among them."""

    def reference(self, function: Callable[..., object], name: str) -> str:
        """Return the reference by which a stage finds the function: its own where it has one."""
        module, qualified = getattr(function, "__module__", None), getattr(function, "__name__", None)
        if (
            isinstance(module, str)
            and isinstance(qualified, str)
            and getattr(sys.modules.get(module), qualified, None) is function
        ):
            return f"{module}:{qualified}"
        holder, free = sys.modules.setdefault(_MODULE, ModuleType(_MODULE)), name
        while hasattr(holder, free):  # of a call in another thread
            free += "_"
        setattr(holder, free, function)
        self.callback(delattr, holder, free)
        return f"{_MODULE}:{free}"


def name_of(function: Callable[..., object]) -> str:
    """Return a name that an entry may have: of letters, digits and underscores."""
    return re.sub(r"\W+", "", str(getattr(function, "__name__", None) or type(function).__name__)) or "function"
