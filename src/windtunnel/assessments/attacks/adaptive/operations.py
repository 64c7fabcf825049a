"""The operations of one forward pass, in order, with those that the output depends on: a trace of torch's own calls.

Works on every torch module whose forward pass is Python or an fx graph (torch.export, our ONNX reader); a TorchScript
program and a session of another runtime show no operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

CUSTOM = "custom function"
_CLASS_APPLY = Function.__dict__["apply"]
_ALIASES = {
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__invert__": "bitwise_not",
    "clip": "clamp",
    "fix": "trunc",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "sgn": "sign",
    "index": "__getitem__",
}


def operation_name(function: Callable[..., object]) -> str:
    """Return the name of a torch function without overload and underscore: `round` of `Tensor.round_` and `aten.round.default`."""
    name = getattr(function, "__name__", type(function).__name__).split(".")[0]
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    if not name.startswith("_"):
        name = name.rstrip("_")
    return _ALIASES.get(name, name)


def tensors_in(values: object) -> list[Tensor]:
    """Return the tensors in nested arguments or results, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the forward pass.

    position: its index among all calls of the pass. layer: qualified name of the innermost module, empty for the model
    itself; layer_class: its class. sources, results: positions in `ForwardTrace.tensors`. function: class of a custom autograd
    function, else None. arguments: those of the call.
    """

    position: int
    name: str
    layer: str
    layer_class: str
    sources: tuple[int, ...]
    results: tuple[int, ...]
    function: type[Function] | None
    arguments: tuple[object, ...]


@dataclass
class ForwardTrace:
    """Operations of a pass that depend on the input and that the output depends on; `draws`: names of those that draw at random."""

    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    draws: list[tuple[str, str, str]] = field(default_factory=list)
    output: Tensor | None = None

    def values(self, operation: Operation) -> tuple[list[Tensor], list[Tensor]]:
        """Return the input-dependent arguments and the results of an operation."""
        return [self.tensors[i] for i in operation.sources], [self.tensors[i] for i in operation.results]


class CountingMode(TorchFunctionMode):
    """Numbers the calls of a forward pass; calls inside the forward pass of a custom function count as that one call."""

    def __init__(self) -> None:
        super().__init__()
        self.position = -1
        self.is_nested = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count the call and hand it to `handle`."""
        if not self.is_nested:
            self.position += 1
        return self.handle(func, args, kwargs or {})

    def handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of one call of a torch function."""
        raise NotImplementedError

    def handle_custom(self, function: type[Function], args: tuple[Any, ...]) -> Any:
        """Return the result of one call of a custom autograd function."""
        raise NotImplementedError

    @contextmanager
    def _in_custom_function(self) -> Iterator[None]:
        """Count what runs inside as one call."""
        outer, self.is_nested = self.is_nested, True
        try:
            yield
        finally:
            self.is_nested = outer

    def __enter__(self) -> CountingMode:
        """Start the numbering, and take the calls of custom autograd functions, which torch hands to no mode."""
        mode = self

        def apply(function: type[Function], *args: object, **kwargs: object) -> object:
            if mode.is_nested or getattr(function, "is_internal", False) or kwargs:
                return _CLASS_APPLY.__func__(function, *args, **kwargs)
            mode.position += not function.__module__.startswith("torch.")  # torch's own serve the hooks of modules
            with mode._in_custom_function():
                return mode.handle_custom(function, args)

        Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign,arg-type]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the numbering."""
        Function.apply = _CLASS_APPLY  # type: ignore[method-assign]
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]


class _Recorder(CountingMode):
    """Writes every call down that depends on the input."""

    def __init__(self, inputs: Tensor, layers: list[tuple[str, str]]) -> None:
        super().__init__()
        self.trace = ForwardTrace([inputs])
        self.layers = layers
        self.places = {id(inputs): 0}

    def handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call and record."""
        result = func(*args, **kwargs)
        name = operation_name(func)
        if name in RANDOM:
            self.trace.draws.append((name, *self.layers[-1]))
        if not self.is_nested:
            changed = args[0] if result is None and args else result  # an assignment to a part of a tensor
            self._record(name, (args, kwargs), changed, None, args)
        return result

    def handle_custom(self, function: type[Function], args: tuple[Any, ...]) -> Any:
        """Call and record as one operation."""
        result = _CLASS_APPLY.__func__(function, *args)
        users = None if function.__module__.startswith("torch.") else function
        self._record(CUSTOM, args, result, users, args)
        return result

    def _record(
        self, name: str, inputs: object, result: object, function: type[Function] | None, arguments: tuple[object, ...]
    ) -> None:
        sources = [self.places[id(t)] for t in tensors_in(inputs) if id(t) in self.places]
        if not sources:
            return
        results = []
        for tensor in tensors_in(result):
            if id(tensor) not in self.places:
                self.places[id(tensor)] = len(self.trace.tensors)
                self.trace.tensors.append(tensor)
            results.append(self.places[id(tensor)])
        self.trace.operations.append(
            Operation(self.position, name, *self.layers[-1], tuple(sources), tuple(results), function, arguments)
        )


RANDOM = frozenset(
    {
        "randn",
        "rand",
        "randint",
        "randperm",
        "randn_like",
        "rand_like",
        "randint_like",
        "bernoulli",
        "normal",
        "uniform",
        "multinomial",
        "poisson",
        "exponential",
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "gumbel_softmax",
        "random",
        "rrelu",
        "dropout2d",
        "dropout3d",
        "native_dropout",
    }
)


def trace_of(module: nn.Module, inputs: Tensor) -> ForwardTrace:
    """Return the operations of one forward pass at `inputs` (n, ...) that lie between input and output.

    Raises whatever the module raises.
    """
    names = {id(part): name for name, part in module.named_modules()}
    layers = [("", type(module).__name__)]

    def enter(part: nn.Module, _: object) -> None:
        layers.append((names.get(id(part), layers[-1][0]), type(part).__name__))

    def leave(*_: object) -> None:
        if len(layers) > 1:
            layers.pop()

    point = inputs.detach().clone().requires_grad_()
    recorder = _Recorder(point, layers)
    hooks = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        with torch.enable_grad(), recorder:
            output = module(point)
    finally:
        for hook in hooks:
            hook.remove()
    return _between(recorder.trace, output, recorder.places)


def _between(trace: ForwardTrace, output: Tensor, places: dict[int, int]) -> ForwardTrace:
    """Return the trace without the operations that the output does not depend on."""
    needed = {places[id(output)]} if id(output) in places else set()
    contributing = []
    for operation in reversed(trace.operations):
        if needed.intersection(operation.results):
            needed.update(operation.sources)
            contributing.append(operation)
    return ForwardTrace(trace.tensors, contributing[::-1], trace.draws, output)
