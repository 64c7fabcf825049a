"""A model with the same logits bit for bit and another derivative: surrogates for operations that stop or mislead gradients.

Athalye et al. 2018, arXiv 1802.00420 (BPDA); Bengio et al. 2013, arXiv 1308.3432 (straight-through estimator).
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map

from windtunnel.assessments.attacks.adaptive.operations import (
    LEAVING,
    RANDOM,
    CountingMode,
    applied,
    detached,
    is_image,
    is_narrow,
    operation_name,
    resized,
    tensors_in,
)
from windtunnel.assessments.attacks.gradients import MeanOverDraws

_ROUNDING = frozenset({"round", "floor", "ceil", "trunc", "fake_quantize_per_tensor_affine"})
REMAINDERS = frozenset({"remainder", "fmod", "frac"})  # what rounding takes away: no slope
# What is equal to the largest value is not below it.
_COMPARISONS = {"gt": 1.0, "ge": 1.0, "eq": 1.0, "lt": -1.0, "le": -1.0, "ne": -1.0}
_REARRANGING = frozenset(
    "stack cat unsqueeze squeeze expand repeat_interleave __getitem__ T t transpose permute movedim view reshape flatten flip roll "
    "clone contiguous take".split()
)
_CASTS = frozenset(
    "to type type_as float double half bfloat16 long int short byte char bool dequantize _to_copy quantize_per_tensor "
    "quantize_per_channel".split()
)
_LEAVING = LEAVING.union({"__bool__", "__float__", "__int__", "__index__", "__len__", "__repr__"})
SATURATING = frozenset("clamp hardtanh softmax sigmoid tanh erf softsign relu6".split())
STEP_VALUES = 4  # fewer values of a flat operation's result are those of a step
_BITS = frozenset(
    "bitwise_and bitwise_or bitwise_xor bitwise_right_shift bitwise_left_shift __rshift__ __lshift__".split()
)
_PLACING = frozenset({"scatter", "scatter_add", "masked_fill"})
_PRODUCTS = frozenset("matmul mm bmm addmm linear conv1d conv2d einsum __matmul__ __rmatmul__".split())


class _Attach(Function):
    """The first argument forward, the derivative of the second backward."""

    is_internal = True

    @staticmethod
    def forward(ctx: object, value: Tensor, surrogate: Tensor) -> Tensor:
        """Return `value`, bit for bit."""
        return value.detach().clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[None, Tensor]:
        """Hand the gradient to the surrogate."""
        return None, gradient


def attach(value: Tensor, surrogate: Tensor) -> Tensor:
    """Return `value` with the derivative of `surrogate`; both floats of one shape."""
    if not surrogate.requires_grad:
        return value
    with torch._C.DisableTorchFunction():  # a mode would give `detach` a derivative
        # Detached: torch may have no derivative of what computed the value, and would raise.
        return cast(Tensor, _Attach.apply(value.detach(), surrogate.to(value.dtype)))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class GradientRemedy:
    """Changes to the backward pass of a model.

    operations: rounding, sign, comparison, selection, casts and detach get surrogates. width: of the sigmoid and tanh that
    stand in for steps, in mean magnitudes of their argument. custom: custom autograd functions are differentiated through
    their forward pass. identity_at: position of the operation up to which the derivative is that of the identity (BPDA).
    enters_at: positions of operations that take a copy, which torch did not compute, of the input or of what left torch; likewise.
    logits_at: position of the operation whose result is attacked in place of the output. saturated: positions of operations
    that are taken for the identity. finite: gradients that are NaN or infinite count as zero. draws: the mean over so many
    calls (EOT). noise: the mean over draws of the input within so much of it. fresh_calls: the mean over so many calls of a
    fresh copy. scale: factor of the logits. student: "gradient" where the derivative of a distilled student is taken,
    "logits" where the student is attacked in place of the model (transfer). directions: the derivative is measured along so
    many random directions, by calls at `noise` to both sides. widened: the derivative is that of the same operations in float32,
    where the model computes in floats of fewer bits. has_neighbours: the mean over other samples in the batch.
    is_cut: no gradient at all. hidden: the model cannot see that gradients are recorded.
    """

    name: str
    operations: bool = False
    width: float = 1.0
    custom: bool = False
    identity_at: int | None = None
    enters_at: frozenset[int] = frozenset()
    logits_at: int | None = None
    saturated: frozenset[int] = frozenset()
    finite: bool = False
    draws: int = 1
    noise: float = 0.0
    fresh_calls: int = 0
    scale: float = 1.0
    student: str = ""
    directions: int = 0
    has_neighbours: bool = False
    is_cut: bool = False
    hidden: bool = False
    widened: bool = False

    @property
    def calls(self) -> int:
        """Number of calls of the model, forwards and backwards, that one gradient takes."""
        calls = self.directions + 1 if self.directions else self.draws * (1 + self.widened) + (self.noise > 0)
        calls *= max(1, self.fresh_calls)
        return calls * NEIGHBOURHOODS * 3 // 2 if self.has_neighbours else calls

    @property
    def rewrites(self) -> bool:
        """True if calls of the forward pass are intercepted."""
        return (
            self.operations
            or self.custom
            or bool(self.saturated or self.enters_at)
            or self.finite
            or self.widened
            or any(at is not None for at in (self.identity_at, self.logits_at))
        )


class Remedied(nn.Module):
    """A model under a `GradientRemedy`; where the remedy attacks inner logits, these, as long as they name the class of the output."""

    def __init__(self, model: nn.Module, remedy: GradientRemedy, student: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.remedy, self.student = model, remedy, student
        if remedy.fresh_calls:
            self.model = FreshCopies(model, remedy.fresh_calls)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K); their derivative is zero where the graph is cut."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.remedy.is_cut):
            logits = self._logits(x.detach() if self.remedy.is_cut else x)
        if not logits.is_floating_point():  # votes, which have no gradient
            logits = logits.float()
        if torch.is_grad_enabled() and x.requires_grad and not logits.requires_grad:
            return attach(logits, 0 * x.flatten(1).sum(1, keepdim=True).expand_as(logits))
        return logits

    def _logits(self, x: Tensor) -> Tensor:
        if self.student is not None and self.remedy.student == "logits":
            logits: Tensor = self.student(x)
            return logits
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self._scaled(self._once(x))
        if self.remedy.directions:
            return self._scaled(self._measured(x))
        if self.student is not None:
            with torch.no_grad():
                value = self.model(x.detach())
            return self._scaled(attach(value, self.student(x)))
        if not self.remedy.noise:
            return mean_of([self._scaled(self._once(x)) for _ in range(self.remedy.draws)])
        noisy = [self._once(x + self.remedy.noise * (2 * torch.rand_like(x) - 1)) for _ in range(self.remedy.draws)]
        with torch.no_grad():
            value = self._once(x.detach())
        return attach(self._scaled(value), mean_of([self._scaled(logits) for logits in noisy]))

    def _measured(self, x: Tensor) -> Tensor:
        """Return the logits with a derivative from central differences along random orthogonal directions."""
        size = x[0].numel()
        length = self.remedy.noise * math.sqrt(size)
        with torch.no_grad():
            value: Tensor = self.model(x.detach())
            directions = torch.linalg.qr(torch.randn(size, min(self.remedy.directions, size), device=x.device))[0]
            slopes = []  # (n, K) for each direction
            for step in (length * directions.T).view(-1, *x.shape[1:]):
                rise = self.model((x + step).clamp(0, 1)).float() - self.model((x - step).clamp(0, 1)).float()
                slopes.append(rise / (2 * length))
        along = x.flatten(1) @ directions
        return attach(value, torch.einsum("dnk,nd->nk", torch.stack(slopes), along))

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits if self.remedy.scale == 1.0 else logits.float() * self.remedy.scale

    def _once(self, x: Tensor) -> Tensor:
        """Return the logits of one call."""
        model, remedy = self.model, self.remedy
        if not remedy.rewrites or (remedy.logits_at is None and not torch.is_grad_enabled()):
            logits: Tensor = model(x)
            return logits
        if len(x) == 1:  # operations are numbered by what concerns a batch, which is no sample of a loop
            return self._once(torch.cat([x, x]))[:1]
        with _without_obstacles(model, remedy), Surrogates(x, remedy) as mode:
            output: Tensor = model(x)
        assert isinstance(mode, Surrogates)
        output, inner = mode.soft(output), mode.logits
        if remedy.widened:
            with torch.no_grad():
                value = model(x.detach())
            output = attach(value.float(), output)
        if inner is None or inner.shape != output.shape:
            return output
        agree = inner.argmax(1) == output.argmax(1)
        return torch.where(agree[:, None], inner.to(output.dtype), attach(output, inner))


def straight_through(model: nn.Module) -> nn.Module:
    """Return the model with surrogates for operations that stop its gradient, for `adapt` of any gradient attack."""
    return Remedied(model, GradientRemedy("straight-through surrogates", operations=True, custom=True, finite=True))


def mean_of(draws: list[Tensor]) -> Tensor:
    """Return the logarithm of the mean probabilities of draws of logits, (n, K); a single draw as it is.

    Its cross entropy falls as the share of the draws that are right; that of mean logits grows with draws that are wrong by far.
    """
    if len(draws) == 1:
        return draws[0]
    return torch.stack(draws).float().log_softmax(2).logsumexp(0) - math.log(len(draws))


class MeanOfProbabilities(MeanOverDraws):
    """A model that draws at random as it counts: the logarithm of its mean probabilities over `draws` calls."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        return mean_of([self.model(x) for _ in range(self.draws)])


NEIGHBOURHOODS = 4  # batches over which a gradient is averaged, where an answer depends on the batch


class AmongNeighbours(MeanOverDraws):
    """A model whose answer to a sample depends on its batch, as it counts: the logarithm of its mean probabilities.

    The mean is over `draws` batches: the samples in random order, in every second batch among as many of the `clean` ones.
    """

    def __init__(self, model: nn.Module, clean: Tensor, draws: int = NEIGHBOURHOODS) -> None:
        super().__init__(model, draws)
        self.clean = clean

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        return mean_of([self._beside(x, len(x) * (draw % 2)) for draw in range(self.draws)])

    def _beside(self, x: Tensor, count: int) -> Tensor:
        batch = torch.cat([x, self.clean[torch.randperm(len(self.clean))[:count].to(x.device)]])
        order = torch.randperm(len(batch), device=x.device)
        logits: Tensor = self.model(batch[order])
        return logits[order.argsort()[: len(x)]]


class FreshCopies(MeanOfProbabilities):
    """A model that keeps state, as it was: the logarithm of the mean probabilities of the first `draws` calls of a fresh copy."""

    def __init__(self, model: nn.Module, draws: int = 1) -> None:
        super().__init__(copy.deepcopy(model), draws)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        fresh = copy.deepcopy(self.model)
        return mean_of([fresh(x) for _ in range(self.draws)])


@contextmanager
def _without_obstacles(model: nn.Module, remedy: GradientRemedy) -> Iterator[None]:
    """Take away the backward hooks of all modules, which may change a gradient, and the effect of `torch.inference_mode`.

    Where the remedy widens floats, that of `torch.autocast` too.
    """
    names = ("_backward_hooks", "_backward_pre_hooks")
    changes: list[tuple[Any, str, Any]] = [
        (part, name, type(hooks)()) for part in model.modules() for name in names if (hooks := getattr(part, name))
    ]
    # The hooks of saved tensors count the operations of a checkpoint.
    contexts = [torch.inference_mode, saved_tensors_hooks, *([torch.autocast] if remedy.widened else [])]
    changes += [(context, name, lambda *_: None) for context in contexts for name in ("__enter__", "__exit__")]
    changes += [(torch, "is_grad_enabled", lambda: False)] if remedy.hidden else []
    before = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class _Shadow:
    """Differentiable counterpart of an integer or boolean tensor.

    value: float, its shape. choice: float (*shape, m), how much each of m entries is chosen, for an index. selection: float,
    how much each element is among the k largest, for the indices of a top-k.
    """

    value: Tensor | None = None
    choice: Tensor | None = None
    selection: Tensor | None = None


def _choice_of(shadow: _Shadow | None, size: int) -> Tensor | None:
    """Return how much each of `size` entries is chosen, (*shape, size): of a value, its two neighbours by their distance."""
    if shadow is None or shadow.value is None:
        return shadow.choice if shadow else None
    entries = torch.arange(size, device=shadow.value.device)
    return (1 - (shadow.value[..., None] - entries).abs()).clamp(min=0)


def _choice_at(shadow: _Shadow | None, entries: Any, shape: torch.Size) -> Tensor | None:
    """Return how much the given entry is chosen at each place of a comparison's result, float of its shape."""
    if shadow is None:
        return None
    if shadow.value is not None:
        share: Tensor = (1 - (shadow.value - entries).abs()).clamp(min=0)
        return share.expand(shape)
    if shadow.choice is None:
        return None
    choice, at = shadow.choice, torch.as_tensor(entries, device=shadow.choice.device)
    return choice.expand(*shape, choice.shape[-1]).gather(-1, at.expand(shape)[..., None]).squeeze(-1)


class Surrogates(CountingMode):
    """Run a forward pass with the derivatives of a remedy; `logits` is the result of the operation `logits_at`."""

    def __init__(self, inputs: Tensor, remedy: GradientRemedy) -> None:
        super().__init__(inputs)
        self.inputs, self.remedy = inputs, remedy
        self.shadows: dict[int, tuple[Tensor, _Shadow]] = {}  # with its tensor, so that no other takes the identity
        self.logits: Tensor | None = None
        self.before: dict[int, Tensor] = {}  # tensors as they were when a chosen entry of theirs was read

    def handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, and attach a surrogate where the remedy has one."""
        name, own_name = operation_name(func), getattr(func, "__name__", "")
        if self.remedy.identity_at is not None and self.position < self.remedy.identity_at:
            return func(*args, **kwargs)  # its derivative is not used
        if self.remedy.widened:
            func = torch.Tensor.float if name in ("half", "bfloat16") else func
            args, kwargs = tree_map(_widened, args), tree_map(_widened, kwargs)
        if name == "requires_grad" and own_name == "__get__" and self.remedy.hidden:
            return False
        if name == "_set_grad_enabled" and self.remedy.operations and not args[0]:
            return None
        if own_name == "requires_grad_" and self.remedy.operations and args[0].requires_grad:
            args[0].retain_grad()  # a detached copy, which is one no longer, and whose `grad` the model reads
        if own_name in ("grad", "backward"):
            kwargs = {**kwargs, "retain_graph": True}  # the outer gradient passes the same graph again
        if name in _LEAVING:
            return func(*tree_map(detached, args), **tree_map(detached, kwargs))
        is_in_place = own_name.split(".")[0].endswith("_") and not own_name.startswith("_") and bool(args)
        needs_before = name in _PLACING or (name in (*_ROUNDING, "sign", "clamp") and args[0].requires_grad)
        if self.remedy.operations and is_in_place and needs_before:
            changed = self.handle(getattr(torch.Tensor, name), (args[0].clone(), *args[1:]), kwargs)
            return args[0].copy_(changed)
        if self.position in self.remedy.enters_at and self.is_counted and not self.is_nested:
            args = tree_map(self._entered, args)
        choice = self._choice_of_entry(name, args) if self.remedy.operations else None
        result = func(*args, **kwargs)
        if name in ("div", "divide") and kwargs.get("rounding_mode"):
            name = "floor_divide"
        if self.remedy.operations and choice is not None:
            self._write(args[0], args[1], choice)
        elif self.remedy.operations:
            replaced = self._replaced(name, func, args, kwargs, result)
            if is_in_place and replaced is not result and replaced.shape == args[0].shape:
                replaced = args[0].copy_(replaced)
            result = replaced
        return self._at_position(name, args, result)

    def handle_custom(self, function: type[Function], args: tuple[Any, ...]) -> Any:
        """Call a custom function; differentiate its forward pass, or take it for the identity, if the remedy includes it."""
        copies = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, args)
        result = applied(function, *args)
        if function.__module__.startswith("torch."):
            return result
        first = next((t for t in tensors_in(copies) if t.requires_grad and self.remedy.custom), None)
        if first is not None:
            result = tree_map(functools.partial(self._differentiable, first), result, forward_of(function, copies))
        return self._at_position("custom", args, result)

    def _differentiable(self, first: Tensor, value: Any, surrogate: Any) -> Any:
        """Return one result of a custom function with the derivative of its forward pass; where that has none, of `first`."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if not surrogate.requires_grad and first.shape == value.shape:
            surrogate = first
        return attach(value, surrogate)

    def _at_position(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Apply the remedy at this position of the pass."""
        remedy = self.remedy
        if remedy.finite and isinstance(result, Tensor) and result.requires_grad:
            result.register_hook(lambda gradient: None if gradient is None else gradient.nan_to_num(0.0, 0.0, 0.0))
        if (self.is_nested or not self.is_counted) and name != "custom":
            return result
        if self.position in remedy.saturated and isinstance(result, Tensor):
            alike = [t for t in tensors_in(args) if t.requires_grad and t.shape == result.shape]
            is_step = name not in SATURATING | RANDOM and len(result.detach().round(decimals=3).unique()) < STEP_VALUES
            if alike and is_step:
                alike = [torch.tanh(alike[0] / self._width(alike[0]))]
            result = attach(result, alike[0]) if alike else result
        if self.position == remedy.identity_at and is_image(result, self.inputs):
            with torch.enable_grad():
                result = _as_copy(result, self.inputs)
        if self.position == remedy.logits_at and isinstance(result, Tensor):
            self.logits = result
        return result

    def _entered(self, value: Any) -> Any:
        origin = self.origin_of(value)
        return value if origin is None else _as_copy(value, origin)

    def _replaced(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """Return the result with a surrogate's derivative, or remember its shadow."""
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if name in ("detach", "data") and first is not None and first.requires_grad:
            return attach(result, first)
        if name in ("detach", "data", "requires_grad"):
            return result
        if (
            name in ("topk", "kthvalue", "max", "min", "sort", "mode", "median")
            and isinstance(result, tuple)
            and first is not None
        ):
            self._remember_selection(name, first, result, args, kwargs)
            return result
        if name == "unbind" and (shadow := self._shadow(first)):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % args[0].ndim
            parts = (None if v is None else v.unbind(dim) for v in (shadow.value, shadow.choice, shadow.selection))
            for part, *values in zip(result, *(p or [None] * len(result) for p in parts), strict=True):
                self._remember(part, _Shadow(*values))
        if not isinstance(result, Tensor):
            return result
        if first is not None and first.is_floating_point() and first.requires_grad:
            if name in _ROUNDING:
                return attach(result, first)
            if name == "floor_divide":
                return attach(result, first / args[1])
            if name in REMAINDERS:
                return attach(result, 0 * first)
            if name in ("sign", "heaviside"):
                return attach(result, torch.tanh(first / self._width(first)))
            if name in ("argmax", "argmin"):
                self._remember_choice(first if name == "argmax" else -first, result, args, kwargs)
                return result
        if name in _COMPARISONS and len(args) == 2 and any(t.requires_grad for t in tensors_in(args)):
            difference = _COMPARISONS[name] * (args[0] - args[1])
            if name in ("eq", "ne") and bool((_COMPARISONS[name] * difference > 0).any()):  # not with the largest value
                difference = -difference
            self._remember(result, _Shadow(torch.sigmoid(difference / self._width(difference))))
            return result
        if name in ("bucketize", "searchsorted") and tensors_in(args):
            return self._bucketed(name, args, kwargs, result)
        is_cast = name in _CASTS or (name == "view" and isinstance(args[1], torch.dtype))
        if is_cast and first is not None and first.shape == result.shape:
            return self._cast(first, result)
        is_dynamic = any(
            isinstance(argument, torch.ScriptObject) for argument in args
        )  # floats in, floats out, no graph
        if is_dynamic or any(self._shadow(t) for t in tensors_in((args, kwargs))):
            return self._through_shadows(name, func, args, kwargs, result)
        return result

    def _choice_of_entry(self, name: str, args: tuple[Any, ...]) -> Tensor | None:
        """Return how much each entry is chosen, (..., m), by the last index of an assignment; None of other calls."""
        if name not in ("__getitem__", "__setitem__") or not isinstance(args[1], tuple):
            return None
        shadow = self._shadow(args[1][-1])
        if shadow is None or args[1][-1].dtype is torch.bool or len(args[1]) != args[0].ndim:
            return None
        if name == "__getitem__":  # of `votes[i, c] += 1`, whose addition changes `votes` before the assignment does
            self.before[id(args[0])] = args[0].detach().clone().float()
            return None
        self.before.setdefault(id(args[0]), args[0].detach().clone().float())
        return _choice_of(shadow, args[0].shape[-1])

    def _write(self, target: Tensor, index: tuple[Any, ...], choice: Tensor) -> None:
        """Give each entry that an assignment could have chosen its share of the change."""
        written = self.soft(target) if self._shadow(target) else target.to(choice.dtype)
        change = (target.detach().float() - self.before.pop(id(target)))[index]
        shares = torch.zeros_like(written)
        shares[(*index[:-1], slice(choice.shape[-1]))] = change[..., None] * (choice - choice.detach())
        surrogate = attach(written, written + shares)
        if target.is_floating_point():
            target.copy_(surrogate)
        else:
            self._remember(target, _Shadow(surrogate))

    def _remember(self, tensor: Tensor, shadow: _Shadow) -> None:
        self.shadows[id(tensor)] = tensor, shadow

    def _shadow(self, value: object) -> _Shadow | None:
        """Return the shadow of a tensor; None of anything else."""
        return self.shadows.get(id(value), (None, None))[1]

    def _width(self, argument: Tensor) -> Tensor:
        """Return the width of a step's surrogate: a share of the mean magnitude of its argument."""
        return self.remedy.width * argument.detach().abs().mean().clamp(min=1e-8)

    def _cast(self, first: Tensor, result: Tensor) -> Tensor:
        shadow = self._shadow(first)
        if shadow is None:
            if not result.is_floating_point() and first.is_floating_point() and first.requires_grad:
                self._remember(result, _Shadow(first))
            return result
        if not result.is_floating_point():
            self._remember(result, shadow)
            return result
        return attach(result, shadow.value) if shadow.value is not None else result

    def _bucketed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
        value, edges = (args[0], args[1]) if name == "bucketize" else (args[1], args[0])
        if isinstance(value, Tensor) and value.requires_grad and isinstance(edges, Tensor) and edges.ndim == 1:
            gap = (edges[1:] - edges[:-1]).abs().mean().clamp(min=1e-8) if len(edges) > 1 else self._width(value)
            self._remember(result, _Shadow(torch.sigmoid((value[..., None] - edges) / gap).sum(-1)))
        return result

    def _remember_choice(self, scores: Tensor, result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None:
            return
        choice = (scores / self._width(scores)).softmax(dim).movedim(dim, -1)
        if choice.ndim == result.ndim:  # keepdim
            choice = choice.unsqueeze(dim if dim >= 0 else dim - 1)
        self._remember(result, _Shadow(choice=choice))

    def _remember_selection(
        self, name: str, first: Tensor, result: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if name in ("mode", "median") and (shadow := self._shadow(first)) and shadow.choice is not None:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1) % first.ndim
            self._remember(result[0], _Shadow(choice=shadow.choice.mean(dim)))
        if not first.requires_grad or len(result) != 2:
            return
        is_extreme = name in ("max", "min")
        at = 1 if is_extreme else 2
        dim = kwargs.get("dim", args[at] if len(args) > at else -1)
        if is_extreme:
            self._remember_choice(first if name == "max" else -first, result[1], (first, dim), {})
        elif name == "topk":
            is_largest = kwargs.get("largest", args[3] if len(args) > 3 else True)
            chosen = result[0].detach()
            last, best = chosen.amin(dim, keepdim=True), chosen.amax(dim, keepdim=True)
            difference = first - last if is_largest else best - first
            width = self.remedy.width * (best - last) if self.remedy.width < 1 else self._width(difference)
            self._remember(result[1], _Shadow(selection=torch.sigmoid(difference / width.clamp(min=1e-8))))

    def _through_shadows(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> Tensor:
        """Repeat the call on the shadows of its integer and boolean arguments; that is the derivative, or the shadow of the result."""
        try:
            if name in _REARRANGING and (choice := self._rearranged(func, args, kwargs)) is not None:
                self._remember(result, _Shadow(choice=choice))
                return result
            surrogate = self._shadowed_call(name, func, args, kwargs, result)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError):
            return result  # an index, or a call that floats cannot make: no derivative passes
        if not isinstance(surrogate, Tensor) or surrogate.shape != result.shape or not surrogate.is_floating_point():
            return result
        if result.is_floating_point():
            return attach(result, surrogate)
        self._remember(result, _Shadow(surrogate))
        return result

    def _rearranged(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the choices behind a result that rearranges indices, (*shape, m); None where there are none."""
        first = self._shadow(tensors_in(args)[0])
        if first is None:
            return self._looked_up(args)
        if first.choice is None:
            return None

        def entry(value: Any, at: int) -> Any:
            shadow = self._shadow(value)
            return value if shadow is None or shadow.choice is None else shadow.choice[..., at]

        moved = [func(*tree_map(functools.partial(entry, at=k), args), **kwargs) for k in range(first.choice.shape[-1])]
        return torch.stack(moved, -1)

    def _looked_up(self, args: tuple[Any, ...]) -> Tensor | None:
        """Return the choices among the integers of a table (m,) that chosen entries of it lead to, (*shape, k); None of other calls."""
        choice = _choice_of(self._shadow(args[-1]), len(args[0]))
        if choice is None or args[0].ndim > 1 or args[0].is_floating_point():
            return None
        return choice @ nn.functional.one_hot(args[0].long()).to(choice.dtype)

    def _shadowed_call(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> Any:
        shadows = [self._shadow(argument) for argument in args]
        if name == "bincount" and shadows[0] and shadows[0].choice is not None:
            counts = (shadows[0].choice * torch.as_tensor(kwargs.get("weights", 1.0))[..., None]).sum(0)
            return nn.functional.pad(counts, (0, len(result) - len(counts)))
        if name == "take":
            name, args = "__getitem__", (args[0].flatten(), args[1])
        if name in ("eq", "ne") and any(shadows):
            at = 0 if shadows[0] else 1
            share = _choice_at(shadows[at], args[1 - at], result.shape)
            return share if share is None or name == "eq" else 1 - share
        if len(args) > 1 and isinstance(args[1], torch.ScriptObject):
            return unpacked_call(name, self.soft(args[0]), args[1])
        if func.__class__.__module__ == "torch._ops" and result.is_quantized:
            return unquantised_call(name, tree_map(self.soft, tuple(tensors_in(args))), kwargs)
        if name == "one_hot" and (choice := _choice_of(shadows[0], result.shape[-1])) is not None:
            return choice
        if name in ("__getitem__", "embedding", "index_select"):
            at, table = (0, 1) if name == "embedding" else (len(args) - 1, 0)
            shadow = shadows[at]
            is_index = shadow and args[at].dtype is not torch.bool
            if is_index and (choice := _choice_of(shadow, len(args[table]))) is not None:
                return torch.tensordot(choice, args[table].to(choice.dtype), ([-1], [0]))
            if shadow and shadow.selection is not None and shadow.selection.ndim == args[at].ndim == 2:
                # Rows of a table, each chosen by degrees: their sum over the choice has the derivative of the mean's.
                mean = torch.tensordot(shadow.selection, args[table].to(shadow.selection.dtype), ([-1], [0]))
                return mean[:, None].expand(*args[at].shape, *mean.shape[1:]) / args[at].shape[1]
            if at and shadow:
                return None
        if name in ("scatter", "scatter_add") and len(shadows) > 2 and (shadow := shadows[2]):
            source = args[3] if len(args) > 3 else kwargs.get("value", kwargs.get("src"))
            if shadow.selection is not None and isinstance(source, int | float):
                return args[0] * (1 - shadow.selection) + source * shadow.selection
            if shadow.choice is not None and result.ndim == 2 and args[1] in (1, -1):
                source = torch.as_tensor(source)[..., None]
                base = args[0] if name == "scatter_add" else args[0] * (1 - shadow.choice.amax(1))
                return base + (source * shadow.choice).sum(1)
            return None
        soft = [self.soft(argument) for argument in args]
        if name in _PRODUCTS:
            return func(*tree_map(lambda value: value.float() if isinstance(value, Tensor) else value, soft), **kwargs)
        if name == "masked_fill":
            return soft[0] * (1 - soft[1]) + args[2] * soft[1]
        if name in _BITS and result.dtype is not torch.bool:  # some bits of an integer, at another scale perhaps
            return soft[0] if shadows[0] else soft[1]
        if name in ("bitwise_and", "logical_and"):
            return soft[0] * soft[1]
        if name in ("bitwise_or", "logical_or"):
            return soft[0] + soft[1] - soft[0] * soft[1]
        if name in ("bitwise_not", "logical_not"):
            return 1 - soft[0]
        if name == "where" and len(args) == 3:
            hard = args[0].to(soft[0].dtype) if isinstance(args[0], Tensor) else args[0]
            return func(args[0], *soft[1:]) + (soft[0] - hard) * detached(args[1] - args[2])
        return func(*tree_map(self.soft, args), **tree_map(self.soft, kwargs))

    def soft(self, value: object) -> Any:
        """Return the float of a shadowed tensor, with its shadow's derivative; return anything else unchanged."""
        shadow = self._shadow(value)
        if shadow is None or shadow.value is None or not isinstance(value, Tensor):
            return value
        if value.is_quantized:
            value = value.dequantize()
        return attach(value.to(shadow.value.dtype), shadow.value)


def unpacked_call(name: str, inputs: Tensor, packed: Any) -> Tensor:
    """Return the result in floats of an operator of torch's `quantized` library: linear, conv1d to conv3d, with ReLU or without.

    Args:
        name: Of the operator.
        inputs: float (n, ...).
        packed: Its weights, as torch packs them.
    """
    weight, bias = packed.unpack()
    weight = weight.dequantize() if weight.is_quantized else weight
    if name.startswith("conv"):
        settings = packed.stride(), packed.padding(), packed.dilation(), packed.groups()
        result: Tensor = getattr(nn.functional, name.split("_")[0])(inputs, weight, bias, *settings)
    else:
        result = nn.functional.linear(inputs, weight, bias)
    return result.relu() if "_relu" in name else result


def unquantised_call(name: str, inputs: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result in floats of another operator of that library, such as add, add_relu or cat."""
    plain = name.removesuffix("_relu")
    result = torch.cat(inputs, kwargs.get("dim", 0)) if plain == "cat" else getattr(torch, plain)(*inputs)
    return result.relu() if name.endswith("_relu") else result


def _widened(value: Any) -> Any:
    """Return float32 for a tensor, or a type, of floats of fewer bits."""
    return value if not is_narrow(value) else value.float() if isinstance(value, Tensor) else torch.float32


def _as_copy(value: Tensor, origin: Tensor) -> Tensor:
    """Return a copy of `origin`, of another size perhaps, with the derivative of `origin`."""
    origin = resized(origin, value)
    return attach(value, origin * channel_slopes(origin.detach(), value.detach()))


# Methods of a custom function's context while its forward pass is differentiated.
_CONTEXT = dict.fromkeys(
    ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads"),
    lambda *_: None,
)


def forward_of(function: type[Function], args: tuple[object, ...]) -> object:
    """Return the result of a custom function's forward pass as plain operations, which have derivatives of their own."""
    has_own_context = function.setup_context is not Function.setup_context
    context = SimpleNamespace(**_CONTEXT, needs_input_grad=(True,) * len(args))
    with torch.enable_grad():
        return function.forward(*args) if has_own_context else function.forward(context, *args)


def channel_slopes(inputs: Tensor, copied: Tensor) -> Tensor:
    """Return the slope of `copied` over `inputs` (n, C, ...), a regression for each channel; (1, C, 1, ...)."""
    axes = [axis for axis in range(inputs.ndim) if axis != 1] if inputs.ndim > 2 else [0, 1]
    centred = inputs - inputs.mean(axes, keepdim=True)
    covariance = (centred * (copied - copied.mean(axes, keepdim=True))).mean(axes, keepdim=True)
    return torch.nan_to_num(covariance / centred.square().mean(axes, keepdim=True), 1.0, 1.0, 1.0)
