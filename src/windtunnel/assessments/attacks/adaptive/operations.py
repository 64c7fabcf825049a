"""The operations of one forward pass, in order, with those that the output depends on: a trace of torch's own calls.

Works on every torch module whose forward pass is Python or an fx graph (torch.export, our ONNX reader); a TorchScript
program and a session of another runtime show no operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace, TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._functorch.vmap import _process_batched_inputs
from torch.autograd.function import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

CUSTOM = "custom function"
OUTSIDE = "outside"  # a copy of the input, or of what left torch, that no recorded operation computed
FINISHED_OUTSIDE = "finished_outside"  # logits that no recorded operation computed, from logits that one did
LEAVING = frozenset({"numpy", "__array__", "item", "tolist"})
NEAR_COPY = 0.5  # correlation with the input above which a tensor of its shape is a copy of it
# The class whose `apply` every custom function ends in, also one that a model has bound to a name.
_CALLED: Any = Function.__mro__[1]
# Calls `vmap_impl`, also from a `torch.vmap` that a model has bound to a name.
_VMAP: Any = import_module("torch._functorch.apis")
# A function that torch.jit.script made; it keeps its source, whose calls a mode sees.
_SCRIPTED: Any = torch.jit.ScriptFunction
_ALIASES = {
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__invert__": "bitwise_not",
    "__floordiv__": "floor_divide",
    "__mod__": "remainder",
    "clip": "clamp",
    "fix": "trunc",
    **{f"__{name}__": name for name in ("eq", "ne", "gt", "ge", "lt", "le")},
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


def is_image(value: object, inputs: Tensor) -> bool:
    """Return True for a float tensor of the inputs' shape, or images of as many channels and at least half of their sides."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim != inputs.ndim:
        return False
    is_large = value.ndim == 4 and all(
        2 * side >= of for side, of in zip(value.shape[2:], inputs.shape[2:], strict=True)
    )
    return value.shape == inputs.shape or (is_large and value.shape[:2] == inputs.shape[:2])


def resized(inputs: Tensor, image: Tensor) -> Tensor:
    """Return the inputs in the size of an image that `is_image` accepts."""
    if inputs.shape == image.shape:
        return inputs
    return nn.functional.interpolate(inputs, image.shape[2:], mode="bilinear", align_corners=False)


def is_near_copy(tensor: Tensor, inputs: Tensor) -> bool:
    """Return True for a float tensor that looks like the inputs (n, ...), of another size perhaps."""
    if not is_image(tensor, inputs):
        return False
    images = (tensor.detach().float(), resized(inputs.detach().float(), tensor))
    first, second = (value - value.mean() for value in images)
    return float((first * second).sum() / (first.norm() * second.norm()).clamp(min=1e-12)) > NEAR_COPY


def is_narrow(value: object) -> bool:
    """Return True for a tensor, or a type, of floats of fewer than 32 bits."""
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize < 4


def names_classes_of(output: Tensor, logits: Tensor) -> bool:
    """Return True if floats of the output's shape (n, K) have the largest at its class, of nearly all samples."""
    if logits.shape != output.shape or output.ndim != 2 or not logits.is_floating_point():
        return False
    return float((logits.argmax(1) == output.argmax(1)).float().mean()) > 0.95


def tensors_in(values: object) -> list[Tensor]:
    """Return the tensors in nested arguments or results, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def detached(value: Any) -> Any:
    """Return a tensor without its graph; return anything else unchanged."""
    return value.detach() if isinstance(value, Tensor) else value


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call of the forward pass: its name, the qualified name of the innermost module (empty for the model itself), its class."""

    name: str
    layer: str
    layer_class: str

    @property
    def place(self) -> str:
        """The layer it is in, in words."""
        return place(self.layer, self.layer_class)


def place(layer: str, layer_class: str) -> str:
    """Return a module by its qualified name and its class, in words."""
    return f"layer {layer} ({layer_class})" if layer else f"the forward pass of {layer_class}"


@dataclass(frozen=True, slots=True)
class Operation(TracedCall):
    """One call that depends on the input.

    position: its index among the calls of the pass that concern the whole batch. sources, results: positions in
    `ForwardTrace.tensors`. function: class of a custom autograd function, else None. arguments: those of the call.
    """

    position: int
    sources: tuple[int, ...]
    results: tuple[int, ...]
    function: type[Function] | None
    arguments: tuple[object, ...]


@dataclass
class ForwardTrace:
    """Operations of a pass that depend on the input and that the output depends on.

    events: the calls that draw at random, register a hook on a gradient, take gradients at inference, leave torch, or normalise by
    the batch.
    """

    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    events: list[TracedCall] = field(default_factory=list)
    output: Tensor | None = None

    def first(self, names: frozenset[str]) -> TracedCall | None:
        """Return the first of the events with one of these names."""
        return next((event for event in self.events if event.name in names), None)

    def values(self, operation: Operation) -> tuple[list[Tensor], list[Tensor]]:
        """Return the input-dependent arguments and the results of an operation."""
        return [self.tensors[i] for i in operation.sources], [self.tensors[i] for i in operation.results]


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node of torch's graph that takes no hooks; `hooked` is called in their place."""

    node: Any
    hooked: Callable[..., object]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the node."""
        return self.hooked if name in ("register_hook", "register_prehook") else getattr(self.node, name)


class CountingMode(TorchFunctionMode):
    """Number the calls of a forward pass on the whole batch; calls in a loop over samples get no number.

    Calls inside the forward pass of a custom function count as that one call.
    """

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.batch_size = len(inputs)
        self.outgoing = [inputs]  # the inputs, and tensors that left torch
        self.position = -1
        self.is_counted = False
        self.is_nested = False
        self.uncompiled = ExitStack()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count the call and hand it to `handle`."""
        name = operation_name(func)
        if name in HOOKS:
            return self.hooked()
        if name == "grad_fn":
            return None if (node := func(*args)) is None else WatchedNode(node, self.hooked)
        if not self.is_nested:
            tensors = tensors_in((args, kwargs))
            self.is_counted = len(tensors) == self.batch_size or any(
                t.ndim and len(t) == self.batch_size for t in tensors
            )
            self.position += self.is_counted
        if args and name in LEAVING:  # numpy takes no tensor that has a gradient
            self.outgoing += [args[0]] if self.is_counted else []
            args = tree_map(detached, args)
        return self.handle(func, args, kwargs or {})

    def mapped(self, function: Callable[..., Any], in_dims: Any, out_dims: Any, *arguments: Any, **kwargs: Any) -> Any:
        """Return the result of `torch.vmap` from a loop, whose calls the mode sees, if it has one tensor or one dimension for all."""
        if not isinstance(out_dims, int):
            return self.vectorised(function, in_dims, out_dims, *arguments, **kwargs)
        inputs = arguments[2:]  # randomness and chunks come first
        size, dims, leaves, spec = _process_batched_inputs(in_dims, inputs, function)
        entries = zip(
            *([v] * size if d is None else v.unbind(d) for v, d in zip(leaves, dims, strict=True)), strict=True
        )
        results = [function(*tree_unflatten(list(entry), spec), **kwargs) for entry in entries]
        return tree_map(lambda *parts: torch.stack(parts, out_dims), *results)

    def hooked(self, *_: object) -> object:
        """Return the handle of a hook on a gradient, which is not registered."""
        return SimpleNamespace(remove=lambda: None)

    def origin_of(self, value: object) -> Tensor | None:
        """Return what left torch, or the inputs, if a tensor is a copy of it that torch did not compute."""
        if not isinstance(value, Tensor) or any(value is tensor for tensor in self.outgoing):
            return None
        return next((tensor for tensor in self.outgoing if is_near_copy(value, tensor)), None)

    def handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of one call of a torch function."""
        raise NotImplementedError

    def handle_custom(self, function: type[Function], args: tuple[Any, ...]) -> Any:
        """Return the result of one call of a custom autograd function."""
        raise NotImplementedError

    @contextmanager
    def _in_custom_function(self) -> Iterator[None]:
        """Count what runs inside as one call."""
        outer, self.is_nested = (self.is_nested, self.is_counted), True
        try:
            yield
        finally:
            self.is_nested, self.is_counted = outer

    def __enter__(self) -> CountingMode:
        """Start the numbering, and take the calls of custom autograd functions, which torch hands to no mode."""
        mode = self

        def apply(function: type[Function], *args: object, **kwargs: object) -> object:
            if mode.is_nested or getattr(function, "is_internal", False) or kwargs:
                return applied(function, *args, **kwargs)
            if function is CheckpointFunction:  # runs without a graph, and cannot be differentiated by `grad`
                return cast(Callable[..., object], args[0])(*args[2:])
            with mode._in_custom_function():
                mode.is_counted = not function.__module__.startswith("torch.")
                mode.position += mode.is_counted  # torch's own serve the hooks of modules
                return mode.handle_custom(function, args)

        if "torch._dynamo" in sys.modules:  # what torch compiled makes no calls that a mode could see
            self.uncompiled.enter_context(torch.compiler.set_stance("force_eager"))
        _CALLED.apply = classmethod(apply)  # type: ignore[arg-type]
        self.vectorised, _VMAP.vmap_impl = _VMAP.vmap_impl, self.mapped
        self.scripted = scripted = _SCRIPTED.__call__
        _SCRIPTED.__call__ = lambda function, *args, **kwargs: getattr(
            function, "_torchdynamo_inline", partial(scripted, function)
        )(*args, **kwargs)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the numbering."""
        self.uncompiled.close()
        del _CALLED.apply  # its base class has it
        _VMAP.vmap_impl, _SCRIPTED.__call__ = self.vectorised, self.scripted
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]


def applied(function: type[Function], *args: object, **kwargs: object) -> object:
    """Return the result of a custom function, past the mode that is on."""
    return super(_CALLED, function).apply(*args, **kwargs)


class _Recorder(CountingMode):
    """Writes every call down that depends on the input."""

    def __init__(self, inputs: Tensor, layers: list[tuple[str, str]], stored: set[int]) -> None:
        super().__init__(inputs)
        self.stored = stored  # identities of parameters and buffers
        self.trace = ForwardTrace([inputs])
        self.layers = layers
        self.places = {id(inputs): 0}

    def handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call and record."""
        result = func(*args, **kwargs)
        name = operation_name(func)
        if name in ("div", "divide") and kwargs.get("rounding_mode"):
            name = "floor_divide"
        is_training = name in BATCH_NORM and (bool(kwargs.get("training")) or args[5:6] == (True,))
        if name in RANDOM | STEPS | LEAVING or is_training:
            self.trace.events.append(TracedCall(name, *self.layers[-1]))
        if not self.is_nested and name not in LEAVING:
            changed = args[0] if result is None and args else result  # an assignment to a part of a tensor
            self._record(name, (args, kwargs), changed, None, args)
        return result

    def hooked(self, *_: object) -> object:
        """Record a hook on a gradient."""
        self.trace.events.append(TracedCall("register_hook", *self.layers[-1]))
        return super().hooked()

    def handle_custom(self, function: type[Function], args: tuple[Any, ...]) -> Any:
        """Call and record as one operation."""
        result = applied(function, *args)
        users = None if function.__module__.startswith("torch.") else function
        self._record(CUSTOM, args, result, users, args)
        return result

    def _record(
        self, name: str, inputs: object, result: object, function: type[Function] | None, arguments: tuple[object, ...]
    ) -> None:
        for tensor in tensors_in(inputs):
            is_known = id(tensor) in self.places or id(tensor) in self.stored
            if not is_known and (origin := self.places.get(id(self.origin_of(tensor)))) is not None:
                self._add(OUTSIDE, (origin,), tensor, None, ())
        if sources := tuple(self.places[id(t)] for t in tensors_in(inputs) if id(t) in self.places):
            self._add(name, sources, result, function, arguments)

    def finish(self, output: Tensor) -> None:
        """Record that the output comes from outside of torch, if recorded logits name its classes."""
        for operation in reversed(self.trace.operations):
            if any(names_classes_of(output, result) for result in self.trace.values(operation)[1]):
                self._add(FINISHED_OUTSIDE, operation.results, output, None, ())
                return

    def _place(self, tensor: Tensor) -> int:
        """Return the position of a tensor in the trace."""
        if id(tensor) not in self.places:
            self.places[id(tensor)] = len(self.trace.tensors)
            self.trace.tensors.append(tensor)
        return self.places[id(tensor)]

    def _add(
        self,
        name: str,
        sources: tuple[int, ...],
        result: object,
        function: type[Function] | None,
        arguments: tuple[object, ...],
    ) -> None:
        results = tuple(map(self._place, tensors_in(result)))
        operation = Operation(name, *self.layers[-1], self.position, sources, results, function, arguments)
        self.trace.operations.append(operation)


HOOKS, STEPS, BATCH_NORM = frozenset({"register_hook"}), frozenset({"grad", "backward"}), frozenset({"batch_norm"})
RANDOM = frozenset(
    "randn rand randint randperm randn_like rand_like randint_like bernoulli normal uniform multinomial poisson exponential dropout "
    "feature_dropout alpha_dropout gumbel_softmax random rrelu dropout2d dropout3d native_dropout".split()
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
    recorder = _Recorder(point, layers, {id(t) for t in (*module.parameters(), *module.buffers())})
    hooks = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    enter_saving = saved_tensors_hooks.__enter__

    def enter_hooks(context: saved_tensors_hooks) -> None:
        if type(context) is saved_tensors_hooks:  # torch's own are classes derived from it
            recorder.hooked()
        enter_saving(context)

    try:
        saved_tensors_hooks.__enter__ = enter_hooks  # type: ignore[method-assign]
        with torch.enable_grad(), recorder:
            output = module(point)
    finally:
        saved_tensors_hooks.__enter__ = enter_saving  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()
    if id(output) not in recorder.places:
        recorder.finish(output)
    return _between(recorder.trace, output, recorder.places)


def _between(trace: ForwardTrace, output: Tensor, places: dict[int, int]) -> ForwardTrace:
    """Return the trace without the operations that the output does not depend on."""
    needed = {places[id(output)]} if id(output) in places else set()
    contributing = []
    for operation in reversed(trace.operations):
        if needed.intersection(operation.results):
            needed.update(operation.sources)
            contributing.append(operation)
    return replace(trace, operations=contributing[::-1], output=output)
