"""A module as a graph of our own: exported from a copy, in float64, of the kinds of layer that verifiers know."""

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from windtunnel.assessments.verification.canonical import operators
from windtunnel.assessments.verification.canonical.fold import argument
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.references import quiet_library


class UntraceableError(Exception):
    """The module cannot be exported as a graph; the text says why."""


@cache
def load_tracer() -> None:
    """Import what the exporter imports at its first use: two seconds, which are no part of any model's time budget."""
    trace(nn.Linear(1, 1), torch.zeros(1, 1), "a layer")


@dataclass(slots=True)
class Trace:
    """A copy of a module as a graph, float64. ending: the operator at its end that was left out, empty for none."""

    graph: fx.GraphModule
    ending: str = ""


def trace(module: nn.Module, sample: Tensor, source: str) -> Trace:
    """Return `module`, of `source`, on a batch like `sample` (1, ...) as a graph of torch modules; the module itself is not touched.

    Dropout is left out, arithmetic with constants becomes `Affine`, and a softmax at the end is taken off: it changes no
    decision. Raises UntraceableError, and IncompatibleError for a module of which a graph is one branch, or of one size of batch.
    """
    copied = copy.deepcopy(module).cpu().eval()
    two = sample.cpu().expand(2, *sample.shape[1:]).contiguous()
    with _quiet():
        try:
            program = torch.export.export(copied, (two,), dynamic_shapes=({0: torch.export.Dim("n")},))
            return _Copier(program.module(check_guards=False)).copy()
        except GuardOnDataDependentSymNode as error:
            raise IncompatibleError(
                f"{source} chooses by the values of its input what it computes (an if on a tensor): a verifier "
                f"would follow one branch alone; write it without, with torch.where, or use windtunnel's smoothing"
            ) from error
        except Exception as error:  # the exporter raises many kinds for what it cannot trace
            if "specialized it to be a constant" in str(error):
                raise IncompatibleError(
                    f"{source} fixes the size of the batch when it is traced, as len(x) does; write x.shape[0], or "
                    f"use windtunnel's smoothing"
                ) from error
            raise UntraceableError(" ".join(str(error).split())[:160]) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of the exporter's, and a transformer's layers as the operators that they are made of."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with quiet_library(), torch.no_grad(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass(slots=True)
class _Copier:
    """Copies an exported graph node by node; `values` holds what each became: a node, or a constant."""

    source: fx.GraphModule
    root: nn.Module = field(default_factory=nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    ending: str = ""

    def copy(self) -> Trace:
        for node in self.source.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self.graph.placeholder("x")
            elif node.op == "get_attr":
                self.values[node] = _doubled(operator.attrgetter(node.target)(self.source))
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                self.graph.output(self._result(node))
        module = fx.GraphModule(self.root, self.graph)
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()
        return Trace(module.eval().requires_grad_(False), self.ending)

    def _result(self, node: fx.Node) -> fx.Node:
        (result,) = node.all_input_nodes
        while result.target in operators.ENDINGS and _along_classes(result):
            self.ending = _name(result.target)
            result = argument(result)
        return self._made(result)

    def _call(self, node: fx.Node) -> object:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            # What changes its argument becomes what gives a new value, and stands for the argument from here on.
            packet = getattr(operators.aten, target.__name__.split(".")[0].removesuffix("_"))
            node.target = getattr(packet, target._overloadname)
            self.values[argument(node)] = value = self._call(node)
            return value
        if target is operator.getitem and node.args[1] == 0 and argument(node).target in operators.WITH_INDICES:
            pooled = self.values[argument(node)]
            if isinstance(pooled, fx.Node) and pooled.op == "call_module":
                return pooled
        # A copied node's arguments are nodes of the new graph and constants, which fx's own types do not foresee.
        args = cast("tuple[Any, ...]", fx.map_arg(node.args, self.values.__getitem__))
        kwargs = cast("dict[str, Any]", fx.map_arg(node.kwargs, self.values.__getitem__))
        inputs = [n for n in node.all_input_nodes if isinstance(self.values[n], fx.Node)]
        if not inputs:
            return _doubled(cast(Callable[..., object], target)(*args, **kwargs))
        layer = self._layer(node, inputs, args, kwargs)
        source = self._made(inputs[0])
        if isinstance(layer, nn.Identity):
            return source
        if layer is not None:
            value = source
            for number, part in enumerate(layer if isinstance(layer, nn.Sequential) else (layer,)):
                self.root.add_module(f"{node.name}_{number}", part)
                value = self.graph.call_module(f"{node.name}_{number}", (value,))
        elif target is operators.aten.add.Tensor and len(inputs) == 2 and len(args) == 2 and not kwargs:
            value = self.graph.call_function(torch.add, args)
        else:
            constants = self._registered(node.name, args), self._registered(node.name, kwargs)
            # Copies are left out, and with them the order in memory that a view relies on.
            function = operators.aten.reshape.default if target is operators.aten.view.default else target
            value = self.graph.call_function(cast(Callable[..., object], function), *constants)
        value.meta["operator"] = _described(node)
        value.meta["shape"] = _shape(node)
        value.meta["value"] = isinstance(node.meta.get("val"), Tensor)
        return value

    def _layer(
        self, node: fx.Node, inputs: list[fx.Node], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> nn.Module | None:
        """Return the torch module that does what `node` does; None where no row knows one."""
        target = node.target
        if target in operators.WITH_INDICES and any(user.users and user.args[1:] != (0,) for user in node.users):
            return None
        row = operators.MODULES.get(target) or (operators.ARITHMETIC.get(target) if len(inputs) == 1 else None)
        if row is None or not isinstance(target, torch._ops.OpOverload):
            return None
        arguments = target._schema.arguments
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        defaults |= dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        try:
            return row(operators.Call(defaults, _shape(inputs[0]), _shape(node)))
        except (KeyError, NotImplementedError):
            return None

    def _made(self, node: fx.Node) -> fx.Node:
        """Return the value that a node depending on the input became."""
        value = self.values[node]
        assert isinstance(value, fx.Node)
        return value

    def _registered(self, name: str, value: Any) -> Any:
        """Arguments with constants as buffers of the graph."""
        if isinstance(value, Tensor):
            key = f"{name}_{len(dict(self.root.named_buffers()))}"
            self.root.register_buffer(key, value)
            return self.graph.get_attr(key)
        if isinstance(value, (list, tuple)):
            return type(value)(self._registered(name, item) for item in value)
        if isinstance(value, dict):
            return {key: self._registered(name, item) for key, item in value.items()}
        return value


def _doubled(value: object) -> object:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of one sample; None where the first dimension, and it alone, is not the batch."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    batch, *rest = value.shape or (0,)
    return None if isinstance(batch, int) or not all(isinstance(size, int) for size in rest) else tuple(rest)


def _along_classes(node: fx.Node) -> bool:
    shape = _shape(node)
    return shape is not None and len(shape) == 1 and node.args[1] in (1, -1)


def _name(target: object) -> str:
    """`log_softmax` of `aten.log_softmax.int`."""
    text = str(getattr(target, "__name__", target))
    return text.split(".")[0].strip("_")


def _described(node: fx.Node) -> str:
    """Return an operator and where it stands in the user's module, for messages: `gelu (encoder.layers.0)`."""
    stack = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path_to_layer = next((path for path in reversed(stack) if not path.startswith("_")), "")
    return f"{_name(node.target)} ({path_to_layer})" if path_to_layer else _name(node.target)
