"""A network as affine segments between activations: torch's autograd carries linear bounds through each of them.

The module runs under a mode that sees every torch function. Where one is an activation (see `rewrites`) its output is
replaced by a fresh leaf; what lies between two leaves is affine, so that a gradient is its transposed matrix, whatever the
operators are: linear, convolution, normalisation, average pooling, residual sums, concatenation.

Two more modes look at the module: one finds the ReLUs that `maxpool_bounds` bounds together with max pooling (the ReLU of the largest
number is the largest ReLU, so that it may stand on either side, where nothing else takes what is in between); one bounds float32
rounding, which near a jump decides the value that a network takes. Source of the latter: Higham 2002, Accuracy and Stability of
Numerical Algorithms, chapter 3: a sum of k products in any order is off by at most k u / (1 - k u) of the sum of their absolute values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from windtunnel.assessments.verification.bound_propagation.convolution import conv2d
from windtunnel.assessments.verification.branch_and_bound.activations import (
    Activation,
    Convex,
    Jump,
    Kink,
    Smooth,
    Staircase,
)
from windtunnel.assessments.verification.branch_and_bound.rewrites import (
    LAST_OF_WINDOW,
    OF_LARGEST,
    PRODUCTS,
    REWRITES,
    SELECTIONS,
    WITH_INDICES,
    of_four_apart,
    relu_of_largest,
    sum_of_jumps,
)
from windtunnel.core.batches import out_of_memory
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.references import first_line

# The calls that are left out (ReLUs, and a softmax at the end, which changes no order), and the poolings that stand for a ReLU too;
# calls are known by their number among those of functions that are rewritten.
Joined = tuple[frozenset[int], frozenset[int]]
NOTHING: Joined = (frozenset(), frozenset())

# At these checks of exported programs, the copy in float64 would fail for being one.
SKIPPED = {"_assert_tensor_metadata", "_assert"}


@torch.no_grad()
def fused_calls(module: nn.Module, x: Tensor) -> tuple[Joined, Callable[[Tensor], Tensor]]:
    """Return which calls of a module are fused or left out, by a run on x (m, *input_shape), and the function of a softmax at its end."""
    mode = _Looking()
    with mode:
        out = module(x)
    mode.take(out, -1)
    left_out, poolings = mode.joined()
    call, last, softmax = mode.softmax or (-1, None, None)
    if softmax is None or last is not out:
        return (left_out, poolings), lambda logits: logits
    return (left_out | {call}, poolings), softmax


# Functions of torch.nn.functional that modes are to see the parts of, not the whole.
_IN_PARTS = {"multi_head_attention_forward", "instance_norm", "softmin", "tanhshrink"}


@cache
def parts_of(func: Any) -> Callable[..., Any] | None:
    """Return a function of `_IN_PARTS` such that modes see what it calls in its place; None for any other."""
    if not isinstance(func, FunctionType) or name_of(func) not in _IN_PARTS:
        return None
    kinds = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    unseen = func.__globals__ | dict.fromkeys(kinds, lambda *_: False)
    parts = FunctionType(func.__code__, unseen, func.__name__, func.__defaults__, func.__closure__)
    parts.__kwdefaults__ = func.__kwdefaults__
    return parts


def name_of(func: Any) -> str:
    """Return the name of a torch function, without the underscore of those that work in place."""
    name = str(getattr(func, "__name__", "")).split(".")[0]
    return name if name.startswith("_") else name.rstrip("_")


class _NamedCalls(TorchFunctionMode):
    """Gives each call of a torch function with its name to `_called`; checks are skipped, and of `_IN_PARTS` the parts are given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's own types
        name, kwargs = name_of(func), kwargs or {}
        if name in SKIPPED:
            return None
        if parts := parts_of(func):
            with self:
                return parts(*args, **kwargs)
        return self._called(func, name, args, kwargs)

    def _called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return the result of one call."""
        raise NotImplementedError  # of the class that each mode derives from this one


class _Looking(_NamedCalls):
    """Finds max pooling over windows of four, side by side, that takes a ReLU's values which nothing else does, or gives its own to one.

    A call is known by its number among those of functions that are rewritten.
    """

    def __init__(self) -> None:
        super().__init__()
        # The last softmax: its call, its result and its function.
        self.softmax: tuple[int, Tensor, Callable[[Tensor], Tensor]] | None = None
        self._calls = 0
        self._made: dict[int, Tensor] = {}  # what each ReLU and each pooling gave; kept, so that its identity is
        self._relus = set[int]()
        self._users: dict[int, list[int]] = {}  # the calls that take it, -1 where they are none of these

    def _called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        call = -1
        if name in REWRITES:
            call, self._calls = self._calls, self._calls + 1
        is_candidate = bool(args) and (name == "relu" or (name == "max_pool2d" and of_four_apart(*args, **kwargs)))
        self.take((args, kwargs), call if is_candidate else -1)
        result = func(*args, **kwargs)
        if is_candidate:
            self._made[call], self._users[call] = result, []
            if name == "relu":
                self._relus.add(call)
        if name in _FINAL:
            self.softmax = self._calls - 1, result, lambda logits: func(logits, *args[1:], **kwargs)
        return result

    def take(self, values: Any, call: int) -> None:
        """Write down that a call takes these values, -1 for what is none of these calls."""
        for value in tree_leaves(values):
            for maker in reversed(self._made):
                if self._made[maker] is value:
                    self._users[maker].append(call)
                    break  # what works in place gives what it took

    def joined(self) -> Joined:
        """Return (the ReLUs, the poolings) that are taken together."""
        calls = set[int]()
        for source, users in self._users.items():
            both = {source, *users}
            if len(users) == 1 and min(both) >= 0 and len(both & self._relus) == 1 and not both & calls:
                calls |= both
        return frozenset(calls & self._relus), frozenset(calls - self._relus)


_UNIT = 2.0**-24  # of float32
# Weights are rounded too where verifiers fold normalisation into them, and what cancels inside of it is seen no more.
_FOLDED = 4.0
_SUMS = {"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d"}
_ARITHMETIC: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.add,
    "rsub": torch.add,
    "__rsub__": torch.add,
    "mul": torch.mul,
    "div": torch.div,
}


class RoundingErrors(_NamedCalls):
    """Runs a network on three rows (magnitude, error, 0): sums of absolute values, and how far off float32 may be."""

    def _called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(_absolute, (args, kwargs))
        if name in _ARITHMETIC:
            args = tuple(abs(value) if isinstance(value, float | int) else value for value in args)
            result = _ARITHMETIC[name](*args)
        else:
            if name == "batch_norm":  # whose mean is added
                args = (args[0], -args[1], *args[2:])
            result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point() or result.ndim < 2 or len(result) != 3:
            return result
        magnitude, error, constant = result.abs()
        terms = _terms(name, args, result)
        return torch.stack([magnitude, error - constant + terms * _UNIT * magnitude, torch.zeros_like(magnitude)])


def _absolute(value: object) -> object:
    return value.abs() if isinstance(value, Tensor) and value.is_floating_point() else value


def _terms(name: str, args: tuple[Any, ...], result: Tensor) -> int:
    """Return how many roundings a number of the result is behind."""
    if name in _SUMS:
        return int(args[0].shape[-1] if name[0] in "lmab" else math.prod(args[1].shape[1:])) + 1
    if name.startswith("conv_transpose"):
        return int(math.prod(args[1].shape[:1] + args[1].shape[2:])) + 1
    if isinstance(args[0] if args else None, Tensor) and args[0].numel() > result.numel():
        return int(args[0].numel()) // result.numel() + 1  # means, sums and pooling
    return 6 if name == "batch_norm" else 1


_KEPT = 2 * 8 * 256  # rows that are kept recorded, times the bytes of a number
_TRIED = 13  # points at which a network is tried for being affine: a number that no other dimension is likely to have
_CASTS, _FLOATS = {"to", "float", "double", "type", "type_as"}, {torch.float32, torch.float64}
_REMEDY = (
    "; use ReLU and its kin, sigmoid, tanh, GELU, SiLU, softplus, ELU, layers, normalisation, pooling, softmax, attention or "
    "products there, or windtunnel's smoothing, which needs forward passes alone"
)
_FINAL = {"softmax", "log_softmax"}  # at the end of a network they change no order: the logits before them are bounded


@dataclass(frozen=True, slots=True)
class PreactivationLayer:
    """The inputs of one activation: their shape without the batch, how many they are."""

    activation: Activation
    shape: tuple[int, ...]
    size: int
    direct: bool  # an affine map of the network's input, no activation in between

    @property
    def decides_windows(self) -> bool:
        """Return whether these are the last kinks of windows of four; before it come their pairs, and what is observed across these."""
        return self.activation is LAST_OF_WINDOW

    @property
    def follows_windows(self) -> bool:
        """Return whether these are the largest of windows of four, before it come the last kinks; first of all the numbers are observed."""
        return self.activation is OF_LARGEST


@dataclass(frozen=True, slots=True)
class Tape:
    """One recorded run: leaves[0] the input, leaves[j + 1] the output of activation j; pre[j] its input; out (m, K)."""

    leaves: list[Tensor]
    pre: list[Tensor]
    out: Tensor

    def node(self, index: int) -> Tensor:
        """Return the input of activation `index`, or the output of the network where that is their number."""
        return self.out if index == len(self.pre) else self.pre[index]

    def gradients(self, index: int, weights: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of <weights, node(index)> by every leaf; None where it does not depend on the leaf.

        At most as many rows as were recorded.
        """
        node, m = self.node(index), len(weights)
        if not node.requires_grad:
            return (None,) * len(self.leaves)
        weights = weights.reshape(m, *node.shape[1:])
        if m < len(node):
            weights = torch.cat([weights, weights.new_zeros(len(node) - m, *node.shape[1:])])
        with torch.enable_grad():
            product = _InnerProduct.apply(node, weights)  # type: ignore[no-untyped-call]
        gradients = torch.autograd.grad(product, self.leaves[: index + 1], allow_unused=True, retain_graph=True)
        return tuple(gradient if gradient is None else gradient[:m] for gradient in gradients)


class _InnerProduct(torch.autograd.Function):
    """A number whose gradient by the first tensor is the second. Its value is not computed.

    torch imports sympy where it is given the gradients of a tensor, not of a number.
    """

    @staticmethod
    def forward(ctx: Any, node: Tensor, weights: Tensor) -> Tensor:
        ctx.weights = weights
        return node.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.weights, None


def gather(accumulated: list[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """Add to what each leaf has, (m, size), its gradients."""
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            flat, total = gradient.flatten(1), accumulated[i]
            accumulated[i] = flat if total is None else total + flat


class _Reached(Exception):
    """The part of the network that was asked for has been run."""


# Values (size,) of a staircase below the jumps that its inputs pass, and how many these are at most.
Stairs = tuple[Tensor, int]
_MOST_JUMPS, _MOST_COLUMNS = 16, 2**14  # of a neuron, and of a layer: staircases of more are only bounded


def _requires_grad(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _batch_of(shape: Sequence[int], rows: int) -> tuple[int, int]:
    """Return the dimension of a result for `rows` samples that holds the batch, and how many of its indices are one sample's."""
    exact = [(axis, 1) for axis, size in enumerate(shape) if size == rows]
    parts = [(axis, size // rows) for axis, size in enumerate(shape) if size and size % rows == 0]
    if not parts:
        raise NotImplementedError("what mixes the samples of a batch")
    return (exact or parts)[0]


@dataclass(slots=True)
class RewrittenCalls:
    """Findings of a first run about the calls of functions that are rewritten; later runs record no gradients.

    Attributes:
        rows: Samples of the first run, a number that no other dimension is likely to have.
        varying: Of each call how many of its arguments depend on the input.
        batches: Of each activation where the batch is in its input, see `_batch_of`.
    """

    rows: int
    varying: list[int] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)


class _Replacing(_NamedCalls):
    """Activations are answered by `apply`; everything else runs as it is, and `watch` may look at it.

    calls: empty for the first run, which fills it. joined: ReLUs that are left to the max pooling before or after them, and these
    poolings, see `fused_calls`. stairs: see `Network.with_jumps`. The inputs of activations begin with the batch.
    """

    def __init__(
        self,
        apply: Callable[[Activation, Tensor], Tensor],
        calls: RewrittenCalls,
        joined: Joined,
        dtype: torch.dtype,
        watch: Callable[[str, object], None] | None = None,
        stairs: Sequence[Stairs | None] = (),
    ) -> None:
        super().__init__()
        self._apply, self._stairs = apply, iter(stairs)
        self._dtype, self._watch, (self._left, self._taken) = dtype, watch, joined
        self._calls, self._first = calls, not calls.varying
        self._call = self._answered = 0

    def _called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        try:
            return self._result(func, name, args, kwargs)
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            if not (self._first or self._watch) or isinstance(error, NotImplementedError) or out_of_memory(error):
                raise
            raise NotImplementedError(f"{name} ({type(error).__name__}: {first_line(error)})") from error

    def _result(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in REWRITES and (varying := self._varying((args, kwargs))) > (name in PRODUCTS):
            is_single = not isinstance(func, torch._ops.OpOverload) or len(func._schema.returns) == 1
            if not is_single and name not in WITH_INDICES:
                raise NotImplementedError(f"{name} with its indices")
            if self._call - 1 in self._left:
                return args[0]
            if name in SELECTIONS:
                kwargs = {**kwargs, "several": varying > 1}
            rewrite = relu_of_largest if self._call - 1 in self._taken else REWRITES[name]
            return rewrite(self._answer, *args, **kwargs)
        recorded = name == "conv2d" and torch.is_grad_enabled() and any(map(_requires_grad, args[:1]))
        result = conv2d(*args, **kwargs) if recorded else func(*args, **kwargs)
        if name in _CASTS and isinstance(result, Tensor) and {result.dtype, args[0].dtype} == _FLOATS:
            result = args[0].to(self._dtype)  # a module that casts runs in one type here
        if self._watch is not None:
            for value in tree_leaves(result):
                self._watch(name, value)
        return result

    def _answer(self, activation: Activation, z: Tensor) -> Tensor:
        """Answer an activation; a staircase by a sum of jumps where the next of `stairs` says which."""
        if self._first:
            self._calls.batches.append(_batch_of(z.shape, self._calls.rows))
        axis, parts = self._calls.batches[self._answered]
        self._answered += 1
        is_first = (axis, parts) == (0, 1)
        z = z if is_first else z.unflatten(axis, (-1, parts)).movedim(axis, 0)
        if isinstance(activation, Staircase) and (stairs := next(self._stairs, None)):
            result = sum_of_jumps(self._apply, activation, z, *stairs)
        else:
            result = self._apply(activation, z)
        return result if is_first else result.movedim(0, axis).flatten(axis, axis + 1)

    def _varying(self, values: object) -> int:
        """Return how many of the arguments of the next call depend on the input."""
        if self._first:
            self._calls.varying.append(sum(map(_requires_grad, tree_leaves(values))))
        self._call += 1
        return self._calls.varying[self._call - 1]


class Network:
    """A classifier taken apart. layers: its activations in the order they run. num_outputs: K. fields: kept for `grouped_crown`.

    Raises IncompatibleError, naming the operator, for a module that is not affine between known activations.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], device: torch.device) -> None:
        single = copy.deepcopy(module).eval().requires_grad_(False).to(device).float()
        self.input_shape, self.device = input_shape, device
        self._modules = {torch.float32: single, torch.float64: copy.deepcopy(single).double()}
        self._calls = RewrittenCalls(_TRIED)
        self._tapes: dict[tuple[int, torch.dtype], Tape] = {}
        self._activations: list[Activation] = []
        self.fields: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self._joined, self._stairs = NOTHING, list[Stairs | None]()
        try:
            self._joined, self._ending = fused_calls(self._modules[torch.float64], self._zeros(2, torch.float64))
            tape = self._record(_TRIED, torch.float64, first=True)
            self._refuse_what_is_not_affine(tape)
            self._refuse_another_function()
        except NotImplementedError as error:
            raise IncompatibleError(f"branch-and-bound has no linear bounds for {error}{_REMEDY}") from error
        self._describe(tape)

    def _describe(self, tape: Tape) -> None:
        """Enter the layers of a recorded run."""
        self.sizes = [z[0].numel() for z in tape.pre]
        self.layers = []
        for j, (activation, z) in enumerate(zip(self._activations, tape.pre, strict=True)):
            of_activations = tape.gradients(j, torch.ones_like(z))[1:]
            is_direct = all(gradient is None for gradient in of_activations)
            self.layers.append(PreactivationLayer(activation, tuple(z.shape[1:]), z[0].numel(), direct=is_direct))
        self.num_outputs = tape.out.shape[1]
        self.inputs = tape.leaves[0][0].numel()
        self.width = self.inputs + sum(self.sizes)

    @property
    def piecewise_linear(self) -> bool:
        """Return whether splitting every unit leaves nothing but affine maps."""
        return not any(isinstance(layer.activation, Smooth) for layer in self.layers)

    def with_jumps(self, low: Sequence[Tensor], up: Sequence[Tensor]) -> Network:
        """Return the network with staircases as sums of jumps, whose splits are exact; itself where none has few enough.

        Args:
            low: Of each layer float64 (n, size), lower bounds of its inputs in the regions where the new network is to hold.
            up: Of each layer float64 (n, size), upper bounds.
        """
        stairs = list[Stairs | None]()
        for layer, least, most in zip(self.layers, low, up, strict=True):
            if isinstance(layer.activation, Staircase):
                first, last = ((end + layer.activation.offset).floor() for end in (least.amin(0), most.amax(0)))
                count = int((last - first).amax())
                is_small = count <= _MOST_JUMPS and count * layer.size <= _MOST_COLUMNS
                stairs.append((first, count) if is_small else None)
        if not any(stairs):
            return self
        network = copy.copy(self)
        network._stairs, network._activations, network._tapes, network.fields = stairs, [], {}, {}
        network._describe(network._record(2, torch.float64, first=True))
        return network

    @property
    def has_windows(self) -> bool:
        """Return whether windows of four are bounded as one somewhere, see `maxpool_bounds`."""
        return any(layer.decides_windows for layer in self.layers)

    def tape(self, rows: int, dtype: torch.dtype) -> Tape:
        """Return a run on at least `rows` zeros, with zeros for the outputs of the activations.

        Recording takes as long as using: sizes are rounded up by a quarter at most, and the last two are kept, or more small ones.
        """
        step = 2 ** max(0, rows.bit_length() - 3)
        key = (-(-rows // step) * step, dtype)
        tape = self._tapes.pop(key, None)
        if tape is None:
            while len(self._tapes) > 1 and sum(n * kind.itemsize for n, kind in [*self._tapes, key]) > _KEPT:
                self._tapes.pop(next(iter(self._tapes)))
            tape = self._record(*key)
        self._tapes[key] = tape  # now the last
        return tape

    def maps(self, j: int, units: Tensor) -> tuple[Tensor, Tensor] | None:
        """(w float64 (U, d), b (U,)): some units' inputs in layer j, which is direct, are w x + b of the network's input x.

        None where they do not depend on it.
        """
        spec = torch.zeros(len(units), self.layers[j].size, dtype=torch.float64, device=self.device)
        spec[torch.arange(len(units)), units] = 1.0
        tape = self.tape(len(units), torch.float64)
        w = tape.gradients(j, spec)[0]
        return None if w is None else (w.flatten(1), tape.node(j)[0].detach().flatten()[units])

    @torch.no_grad()
    def run(self, x: Tensor, apply: Callable[[int, Tensor], Tensor], upto: int | None = None) -> Tensor | None:
        """Return the logits of x (m, *input_shape), activation j being answered by apply(j, its input).

        Ends, with None, before activation `upto`'s output is needed.
        """
        index = 0

        def answer(_: Activation, z: Tensor) -> Tensor:
            nonlocal index
            value = apply(index, z)
            index += 1
            if index == upto:
                raise _Reached
            return value

        if upto == 0:
            return None
        mode = _Replacing(answer, self._calls, self._joined, x.dtype, stairs=self._stairs)
        try:
            with mode:
                out = self._modules[x.dtype](x)
        except _Reached:
            return None
        logits: Tensor = out.flatten(1)
        return logits

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of x (m, *input_shape), in its dtype; a softmax at the end is left out."""
        result = self.run(x, lambda j, z: self._activations[j](z))
        assert result is not None
        return result

    @torch.no_grad()
    def jump_errors(self, largest: Tensor) -> dict[int, Tensor]:
        """Return by how much float32 may be off before each layer that jumps or rounds, float64 (size,); largest: of the input, (d,)."""
        errors, index = dict[int, Tensor](), 0
        if not any(isinstance(layer.activation, Jump | Staircase) for layer in self.layers):
            return errors

        def follow(activation: Activation, z: Tensor) -> Tensor:
            nonlocal index
            index += 1
            if isinstance(activation, Jump | Staircase):
                errors[index - 1] = _FOLDED * z[1].flatten()
                largest_value = torch.ones_like(z[0]) if isinstance(activation, Jump) else z[0] + 1
                return torch.stack([largest_value, *torch.zeros_like(z[1:])])
            if isinstance(activation, Convex):
                ends = torch.stack([-z[0] - z[1], z[0] + z[1]]).clamp(*activation.domain)
                steepest = activation.derivative(ends).abs().amax(0)
                return torch.stack([activation(ends).abs().amax(0), steepest * z[1], torch.zeros_like(z[0])])
            if isinstance(activation, Kink):
                return z * activation.slope.to(z).abs().clamp(min=1)
            at_zero = torch.zeros_like(z)
            at_zero[0] = activation(at_zero[0]).abs()
            return at_zero + z * (activation.steepest if isinstance(activation, Smooth) else 1.0)

        x = largest.new_zeros(3, len(largest))
        x[0] = largest
        x[1] = 2.0**-24 * largest
        with RoundingErrors(), _Replacing(follow, self._calls, self._joined, torch.float64, stairs=self._stairs):
            self._modules[torch.float64](x.view(3, *self.input_shape))
        return errors

    def _zeros(self, rows: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, *self.input_shape, dtype=dtype, device=self.device)

    def _record(self, rows: int, dtype: torch.dtype, *, first: bool = False) -> Tape:
        x = self._zeros(rows, dtype).requires_grad_()
        leaves, pre = [x], list[Tensor]()

        def cut(activation: Activation, z: Tensor) -> Tensor:
            pre.append(z.clone())  # which may be changed in place afterwards
            leaves.append(torch.zeros_like(z, requires_grad=True))
            if first:
                self._activations.append(activation)
            return leaves[-1]

        mode = _Replacing(cut, self._calls, self._joined, dtype, stairs=self._stairs)
        with torch.enable_grad(), mode:
            out = self._modules[dtype](x)
        return Tape(leaves, pre, out.flatten(1))

    def _refuse_another_function(self) -> None:
        """Raise NotImplementedError where the activations as they are written here do not make up the module."""
        x = torch.rand(3, *self.input_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        x, module = x.to(self.device), self._modules[torch.float64]
        with torch.no_grad():
            expected = module(x)
            with _Replacing(lambda activation, z: activation(z), self._calls, self._joined, torch.float64):
                logits = module(x)
            actual = self._ending(logits)
        if not torch.allclose(actual, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().amax())):
            raise NotImplementedError("an activation that changes its argument in place, where that is used again")

    def _refuse_what_is_not_affine(self, tape: Tape) -> None:
        """Raise NotImplementedError, naming the first operator that does not map a midpoint to the midpoint.

        Random points stand for the input and the outputs of the activations, so that everything in between is tried; then
        the gradients of the recorded run `tape` must explain another run, which an operator without gradients would not.
        """
        generator = torch.Generator().manual_seed(0)

        def points(shape: tuple[int, ...]) -> Tensor:
            ends = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
            return torch.cat([ends, ends.mean(0, keepdim=True).expand(_TRIED - 2, *shape)]).to(self.device)

        def watch(name: str, value: object) -> None:
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1 and _TRIED in value.shape:
                value = value.movedim(value.shape.index(_TRIED), 0)
                straight = value[:2].mean(0)
                scale = 1 + float(value.abs().amax()) if value.numel() else 1.0
                if not float((value[2] - straight).abs().amax() if value.numel() else 0.0) <= 1e-8 * scale:
                    raise NotImplementedError(f"{name}: it is not affine in what varies with the input")

        outputs, inputs = list[Tensor](), list[Tensor]()

        def replace(_: Activation, z: Tensor) -> Tensor:
            inputs.append(z.clone())
            outputs.append(points(tuple(z.shape[1:])))
            return outputs[-1]

        mode = _Replacing(replace, self._calls, self._joined, torch.float64, watch)
        x = points(self.input_shape)
        with torch.no_grad(), mode:
            out = self._modules[torch.float64](x)
        for index, value in enumerate([*inputs, out.flatten(1)]):
            weights = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(self.device)
            explained = (weights * tape.node(index)).flatten(1).sum(1).detach()
            for gradient, point in zip(tape.gradients(index, weights), [x, *outputs], strict=False):
                if gradient is not None:
                    explained = explained + (gradient * point).flatten(1).sum(1)
            actual = (weights * value).flatten(1).sum(1)
            if not torch.allclose(explained, actual, rtol=1e-6, atol=1e-6 * (1 + float(actual.abs().amax()))):
                raise NotImplementedError("an operator without gradients, or one that mixes the samples of a batch")
