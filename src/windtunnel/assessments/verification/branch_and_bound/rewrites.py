"""Torch's operators written with the activations that linear bounds are known for, and affine maps.

Max pooling, clamps, absolute values and maxima are sums of kinks and affine maps: max(a, b) = a + relu(b - a). Products of two
results are differences of squares, softmax is exp and softplus, layer normalisation squares, an inverse root and products.
What is raised as NotImplementedError names a use of an operator that has no bounds; `Network` says it in one line.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.convolution import pair
from windtunnel.assessments.verification.branch_and_bound.activations import (
    Activation,
    Convex,
    Jump,
    Kink,
    Observed,
    Smooth,
    Staircase,
)

Apply = Callable[[Activation, Tensor], Tensor]

RELU, STEP = Kink(torch.zeros((), dtype=torch.float64)), Jump()
# Of windows of four, see `maxpool_bounds`: ReLUs that decide between the winners of their pairs, and the differences across pairs.
# Where a ReLU of the largest number follows, that ReLU, and the numbers themselves.
LAST_OF_WINDOW, ACROSS_PAIRS = Kink(torch.zeros((), dtype=torch.float64)), Observed()
OF_LARGEST, NUMBERS = Kink(torch.zeros((), dtype=torch.float64)), Observed()


# The largest size of the second derivative, rounded up: sigmoid 1/(6 sqrt 3), tanh 4/(3 sqrt 3), erf 4 phi(1), GELU 2 phi(0) (its tanh
# approximation stays below 0.82), SiLU 1/2, softplus 1/4, ELU 1, Mish 0.6443, SELU 1.7581 (below 0), hardswish 1/3 (from -3 to 3), sine and
# cosine 1.
SIGMOID = Smooth("sigmoid", torch.sigmoid, 0.0963)
ERF = Smooth("erf", torch.erf, 0.968)
TANH = Smooth("tanh", torch.tanh, 0.7699)
GELU = Smooth("gelu", F.gelu, 0.7979)
GELU_TANH = Smooth("gelu, tanh approximation", partial(F.gelu, approximate="tanh"), 0.82)
SILU = Smooth("silu", F.silu, 0.5001)
SOFTPLUS = Smooth("softplus", lambda z: torch.logaddexp(z, torch.zeros_like(z)), 0.2501)
ELU = Smooth("elu", F.elu, 1.0)
MISH = Smooth("mish", F.mish, 0.6443)
SELU = Smooth("selu", F.selu, 1.7582, bend=0.7075, steepest=1.7582)
HARDSWISH = Smooth("hardswish", F.hardswish, 0.3334, bend=1.0, steepest=1.5)
SINE, COSINE = Smooth("sin", torch.sin, 1.0001), Smooth("cos", torch.cos, 1.0001)
SQUARE = Convex("square", torch.square, math.inf, lambda z: 2 * z)
EXP_TO_ONE = Convex("exp of at most 0", torch.exp, math.inf, torch.exp, (-math.inf, 0.0))
ROUND, FLOOR = Staircase("round", torch.round, math.inf, 0.5), Staircase("floor", torch.floor, math.inf, 0.0)


def _prelu(apply: Apply, z: Tensor, weight: Tensor) -> Tensor:
    slope = weight.detach().double()
    return _kink(apply, z, slope.view(-1, *[1] * (z.ndim - 2)) if slope.numel() > 1 else slope.view(()))


def _kink(apply: Apply, z: Tensor, slope: Tensor) -> Tensor:
    if bool((slope >= 1).any()):  # below 0 it is steeper than above: concave
        return z + (1 - slope).to(z) * apply(RELU, -z)
    return apply(Kink(slope), z)


def _clamp(apply: Apply, z: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    if min is not None:
        z = apply(RELU, z - min) + min
    return z if max is None else max - apply(RELU, max - z)


def _maximum(apply: Apply, a: Tensor, b: Tensor, activation: Kink | Smooth = RELU) -> Tensor:
    return a + apply(activation, b - a)


class ValuesAndIndices(NamedTuple):
    """Values over a dimension; indices: of these inputs, which nothing may follow."""

    values: Tensor
    indices: Tensor


def _max(apply: Apply, a: Tensor, *others: Any, **more: Any) -> Tensor | ValuesAndIndices:
    if not (others or more):
        raise NotImplementedError("max over the samples of a batch")
    if others and isinstance(others[0], Tensor):
        return _maximum(apply, a, others[0])
    return ValuesAndIndices(_amax(apply, a, *others, **more), a.max(*others, **more).indices)


def _min(apply: Apply, a: Tensor, *others: Any, **more: Any) -> Tensor | ValuesAndIndices:
    result = _max(apply, -a, *(-value if isinstance(value, Tensor) else value for value in others), **more)
    return -result if isinstance(result, Tensor) else result._replace(values=-result.values)


def _amax(
    apply: Apply,
    z: Tensor,
    dim: int | tuple[int, ...] = (),
    keepdim: bool = False,
    activation: Kink | Smooth | None = None,
) -> Tensor:
    """Return the largest over some dimensions; with softplus as the activation the log-sum-exp."""
    dims = sorted(d % z.ndim for d in ((dim,) if isinstance(dim, int) else dim)) or list(range(1, z.ndim))
    if 0 in dims:
        raise NotImplementedError("amax over the samples of a batch")
    flat = z.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
    result = _knockout(apply, flat, activation=activation or RELU)
    for d in dims if keepdim else ():
        result = result.unsqueeze(d)
    return result


def _knockout(apply: Apply, values: Tensor, dim: int = -1, activation: Kink | Smooth = RELU) -> Tensor:
    """Return the largest of dimension `dim`, counted from the end, by rounds of pairs; with softplus the log-sum-exp."""
    while (n := values.shape[dim]) > 1:
        first, second = _first(values, dim, n - n % 2).unflatten(dim, (-1, 2)).unbind(dim)
        winners = _maximum(apply, first, second, activation)
        values = torch.cat([winners, values.narrow(dim, n - 1, 1)], dim) if n % 2 else winners
    return values.squeeze(dim)


def _max_pool2d(apply: Apply, z: Tensor, *args: Any, **more: Any) -> Tensor:
    rows, columns = _windows_of(z, *args, **more)
    # Now (N, C, H, 2, W), where images without a batch are (C, H, 2, W): their channels are in the place of samples.
    z = _cut(z, -2, rows)
    if z.ndim == 5 and rows.shape[1] == 2 and _pairs(columns):
        return _largest_of_four(apply, z.select(-2, 0), z.select(-2, 1), len(columns))
    return _knockout(apply, _cut(_knockout(apply, z, -2), -1, columns), -1)


def of_four_apart(z: Tensor, *args: Any, **more: Any) -> bool:
    """Return whether max pooling of z, with these arguments after it, is over windows of 2 x 2 side by side in both directions."""
    return z.ndim == 4 and all(map(_pairs, _windows_of(z, *args, **more)))


def relu_of_largest(apply: Apply, z: Tensor, *args: Any, **more: Any) -> Tensor:
    """Return the ReLU of max pooling that is `of_four_apart`, or max pooling of the ReLU."""
    apply(NUMBERS, z)
    return apply(OF_LARGEST, _max_pool2d(apply, z, *args, **more))


def _windows_of(
    z: Tensor,
    kernel_size: int | tuple[int, ...],
    stride: int | tuple[int, ...] | None = None,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the indices of max pooling: (height, kernel) of the rows that its windows take, and what they take of columns."""
    if return_indices:
        raise NotImplementedError("max_pool2d that returns indices")
    kernel, pad, spread = (pair(v) for v in (kernel_size, padding, dilation))
    step = pair(stride) if stride else kernel
    shape = F.max_pool2d(z.detach()[:1], kernel, step, pad, spread, ceil_mode).shape[-2:]
    sides = zip(z.shape[-2:], shape, kernel, step, pad, spread, strict=True)
    rows, columns = (_windows(*side) for side in sides)
    return rows, columns


def _pairs(windows: Tensor) -> bool:
    """Return whether windows (count, kernel) along one side are pairs, side by side."""
    return windows.shape[1] == 2 and torch.equal(windows.flatten(), torch.arange(windows.numel()))


def _largest_of_four(apply: Apply, upper: Tensor, lower: Tensor, count: int) -> Tensor:
    """Return the maxima of windows side by side, `count` of them, in two rows (N, C, H, W).

    Pairs are of one column each, as `windows` takes them.
    """
    first_pair, second_pair = ([z[..., side : 2 * count : 2] for z in (upper, lower)] for side in (0, 1))
    apply(ACROSS_PAIRS, torch.cat([second - first for first in first_pair for second in second_pair], -3))
    winners = _maximum(apply, upper, lower)
    return _maximum(apply, winners[..., 0 : 2 * count : 2], winners[..., 1 : 2 * count : 2], LAST_OF_WINDOW)


def _windows(size: int, count: int, kernel: int, step: int, pad: int, spread: int) -> Tensor:
    """(count, kernel) indices along one side; one that falls outside becomes another of its window, which changes no maximum."""
    at = torch.arange(count)[:, None] * step - pad + torch.arange(kernel) * spread
    inside = (at >= 0) & (at < size)
    first = at.gather(1, inside.int().argmax(1, keepdim=True))
    return torch.where(inside, at, first)


def _cut(z: Tensor, dim: int, windows: Tensor) -> Tensor:
    """`windows` (count, kernel) in the place of dimension `dim` of z, counted from the end.

    Windows side by side are a view, whose gradient costs nothing; that of an index takes half of the time of a network that pools.
    """
    at = windows.flatten()
    beside = len(at) <= z.shape[dim] and torch.equal(at, torch.arange(len(at)))
    chosen = _first(z, dim, len(at)) if beside else z.index_select(dim, at.to(z.device))
    result: Tensor = chosen.unflatten(dim, windows.shape)
    return result


def _first(z: Tensor, dim: int, count: int) -> Tensor:
    """Return the first `count` of dimension `dim`; of all of them nothing is recorded."""
    return z if count == z.shape[dim] else z.narrow(dim, 0, count)


def _adaptive_max_pool2d(apply: Apply, z: Tensor, output_size: object, return_indices: bool = False) -> Tensor:
    sizes = output_size if isinstance(output_size, tuple | list) else (output_size, output_size)
    counts = [size if count is None else int(count) for size, count in zip(z.shape[-2:], sizes, strict=True)]
    if any(size % count for size, count in zip(z.shape[-2:], counts, strict=True)) or return_indices:
        raise NotImplementedError("adaptive_max_pool2d of windows of unequal size")
    return _max_pool2d(apply, z, tuple(size // count for size, count in zip(z.shape[-2:], counts, strict=True)))


def _smooth(activation: Smooth) -> Callable[..., Tensor]:
    def rewritten(apply: Apply, z: Tensor, *_: object, **__: object) -> Tensor:
        return apply(activation, z)

    return rewritten


def _where(apply: Apply, condition: Tensor, a: Any, b: Any, *, several: bool) -> Tensor:
    """Return a where `condition`, 0 or 1, says so, else b. several: True if a or b varies with the input too."""
    if condition.dtype is torch.bool:
        return torch.where(condition, a, b)
    result: Tensor = b + (_product(apply, condition, a - b) if several else condition * (a - b))
    return result


def _round(apply: Apply, z: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        raise NotImplementedError("round to decimals")
    return apply(ROUND, z)


def sum_of_jumps(apply: Apply, staircase: Staircase, z: Tensor, first: Tensor, count: int) -> Tensor:
    """Return a staircase of z (m, *shape) as its value `first` (*shape) below `count` jumps, and these; equal where z passes no other."""
    bottom = first.view(z.shape[1:]).to(z) + 0 * z
    if not count:
        return bottom
    heights = torch.arange(1, count + 1, device=z.device).view(-1, *[1] * (z.ndim - 1)) - staircase.offset
    jumps = apply(STEP, (z.unsqueeze(1) - (first.view(z.shape[1:]) + heights).to(z)).flatten(1, 2))
    heights_reached: Tensor = jumps.unflatten(1, (count, -1))
    return bottom + heights_reached.sum(1)


def _elu(apply: Apply, z: Tensor, alpha: float = 1.0, *scales: float, **others: object) -> Tensor:
    if any(not math.isclose(scale, 1.0) for scale in scales):
        raise NotImplementedError("elu with another scale than 1")
    return apply(ELU if alpha == 1 else _elu_of(alpha), z)


@cache
def _elu_of(alpha: float) -> Smooth:
    size = abs(alpha)
    return Smooth("elu", partial(F.elu, alpha=alpha), size, bend=abs(1 - alpha), steepest=max(size, 1.13))


def _softplus(apply: Apply, z: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if threshold < 20:  # from there on torch takes z itself, which is another function where the difference can be seen
        raise NotImplementedError("softplus with a threshold below 20")
    return apply(SOFTPLUS, z * beta) / beta


def _glu(apply: Apply, z: Tensor, dim: int = -1) -> Tensor:
    value, gate = z.chunk(2, dim)
    return _product(apply, value, apply(SIGMOID, gate))


def _product(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    """Return a b, elementwise, as a difference of squares."""
    return apply(SQUARE, (a + b) / 2) - apply(SQUARE, (a - b) / 2)


def _matmul(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    if min(a.ndim, b.ndim) < 3:
        raise NotImplementedError("matmul of two results that vary with the input, one of which is a vector")
    return _product(apply, a.unsqueeze(-1), b.unsqueeze(-3)).sum(-2)


def _baddbmm(apply: Apply, addend: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * addend + alpha * _matmul(apply, a, b)


def _einsum(apply: Apply, equation: str, *operands: Any, **_: object) -> Tensor:
    values = operands if isinstance(operands[0], Tensor) else operands[0]
    sides, _arrow, result = equation.replace(" ", "").partition("->")
    letters = sides.split(",")
    if len(values) != 2 or not result or "." in sides or any(len(set(side)) < len(side) for side in letters):
        raise NotImplementedError(f"einsum {equation} of results that vary with the input")
    every = result + "".join(sorted(set(sides) - {",", *result}))
    a, b = (
        value.permute([side.index(letter) for letter in every if letter in side])[
            tuple(slice(None) if letter in side else None for letter in every)
        ]
        for value, side in zip(values, letters, strict=True)
    )
    return _product(apply, a, b).flatten(len(result)).sum(-1) if len(every) > len(result) else _product(apply, a, b)


def _softmax(apply: Apply, z: Tensor, dim: int | None = None, *_: object, **__: object) -> Tensor:
    """Return softmax as exp(z - log-sum-exp), the latter by rounds of pairs: log(e^a + e^b) = a + softplus(b - a)."""
    return apply(EXP_TO_ONE, _log_softmax(apply, z, dim))


def _log_softmax(apply: Apply, z: Tensor, dim: int | None = None, *_: object, **__: object) -> Tensor:
    if dim is None:
        raise NotImplementedError("softmax without a dimension")
    return z - _amax(apply, z, dim, True, SOFTPLUS)


def _attention(
    apply: Apply,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    is_added = attn_mask is None or (attn_mask.is_floating_point() and bool(attn_mask.isfinite().all()))
    if not is_added or dropout_p or is_causal or enable_gqa:
        raise NotImplementedError("scaled_dot_product_attention that leaves keys out, with dropout or grouped queries")
    scores = _matmul(apply, query * (query.shape[-1] ** -0.5 if scale is None else scale), key.transpose(-2, -1))
    return _matmul(apply, _softmax(apply, scores if attn_mask is None else scores + attn_mask, -1), value)


def _layer_norm(apply: Apply, z: Tensor, normalized_shape: Sequence[int], *affine: Any, **named: Any) -> Tensor:
    return _scaled_and_shifted(apply, z, len(normalized_shape), normalized_shape, *affine, **named)


def _group_norm(apply: Apply, z: Tensor, num_groups: int, *affine: Any, **named: Any) -> Tensor:
    groups, shape = z.unflatten(1, (num_groups, -1)), (num_groups, -1, *[1] * (z.ndim - 2))
    return _scaled_and_shifted(apply, groups, z.ndim - 1, shape, *affine, **named).flatten(1, 2)


def _instance_norm(
    apply: Apply,
    z: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    *rest: Any,
) -> Tensor:
    uses_input, momentum, eps, *more = rest
    if not uses_input:
        return torch.instance_norm(z, weight, bias, mean, var, False, momentum, eps, *more)
    return _group_norm(apply, z, z.shape[1], weight, bias, eps)


def _rms_norm(
    apply: Apply, z: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if eps is None:
        raise NotImplementedError("rms_norm without eps, which is another for each type of numbers")
    dims = tuple(range(-len(normalized_shape), 0))
    result = _product(apply, z, _inverse_root(apply, apply(SQUARE, z).mean(dims, keepdim=True), eps))
    return result if weight is None else result * weight


def _inverse_root(apply: Apply, variance: Tensor, eps: float) -> Tensor:
    inverse_root = Convex("rsqrt", torch.rsqrt, math.inf, lambda v: -(v**-1.5) / 2, (eps, math.inf))
    return apply(inverse_root, variance + eps)


def _scaled_and_shifted(
    apply: Apply,
    z: Tensor,
    count: int,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: object,
    **__: object,
) -> Tensor:
    """Return z standardised over its last `count` dimensions, times weight plus bias, which are brought to `shape`."""
    dims = tuple(range(-count, 0))
    centred = z - z.mean(dims, keepdim=True)
    variance = apply(SQUARE, centred).mean(dims, keepdim=True)
    result = _product(apply, centred, _inverse_root(apply, variance, eps))
    result = result if weight is None else result * weight.view(*shape)
    return result if bias is None else result + bias.view(*shape)


def _pow(apply: Apply, z: Tensor, exponent: object) -> Tensor:
    if isinstance(exponent, Tensor) and exponent.numel() == 1:  # a constant: what varies has a number for each sample
        exponent = float(exponent)
    if not isinstance(exponent, int | float) or exponent not in (2, 3):
        named = exponent if isinstance(exponent, int | float) else "of another result"
        raise NotImplementedError(f"pow with the exponent {named}")
    return apply(SQUARE, z) if exponent == 2 else _product(apply, z, apply(SQUARE, z))


# By torch's name of the function, without the underscore of those that work in place. Those of PRODUCTS are affine where only one
# of their arguments varies with the input.
PRODUCTS = frozenset({"mul", "matmul", "bmm", "baddbmm", "einsum"})
WITH_INDICES = frozenset({"max", "min"})  # give them beside the values
SELECTIONS = frozenset({"where", "masked_fill"})  # take `several`: whether more than one of their arguments varies
REWRITES: dict[str, Callable[..., Tensor | ValuesAndIndices]] = {
    "relu": lambda apply, z, inplace=False: apply(RELU, z),
    "leaky_relu": lambda apply, z, negative_slope=0.01, inplace=False: _kink(
        apply, z, torch.as_tensor(negative_slope, dtype=torch.float64)
    ),
    "prelu": _prelu,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda apply, z, min: _clamp(apply, z, min),
    "clamp_max": lambda apply, z, max: _clamp(apply, z, None, max),
    "hardtanh": lambda apply, z, min_val=-1.0, max_val=1.0, inplace=False: _clamp(apply, z, min_val, max_val),
    "relu6": lambda apply, z, inplace=False: _clamp(apply, z, 0.0, 6.0),
    "hardsigmoid": lambda apply, z, inplace=False: _clamp(apply, z / 6 + 0.5, 0.0, 1.0),
    "abs": lambda apply, z: 2 * apply(RELU, z) - z,
    "maximum": _maximum,
    "minimum": lambda apply, a, b: a - apply(RELU, a - b),
    "max": _max,
    "amax": _amax,
    "min": _min,
    "amin": lambda apply, z, *dims, **more: -_amax(apply, -z, *dims, **more),
    "logsumexp": lambda apply, z, dim, keepdim=False: _amax(apply, z, dim, keepdim, SOFTPLUS),
    "max_pool2d": _max_pool2d,
    "adaptive_max_pool2d": _adaptive_max_pool2d,
    "sign": lambda apply, z: apply(STEP, z) - apply(STEP, -z),  # 0 where both are 1
    "round": _round,
    "straight_through": lambda apply, rounded, z: rounded,  # the ONNX reader's, for attacks
    "floor": lambda apply, z: apply(FLOOR, z),
    "ceil": lambda apply, z: -apply(FLOOR, -z),
    "trunc": lambda apply, z: apply(FLOOR, apply(RELU, z)) - apply(FLOOR, apply(RELU, -z)),
    "ge": lambda apply, a, b: apply(STEP, a - b),
    "gt": lambda apply, a, b: 1 - apply(STEP, b - a),
    "le": lambda apply, a, b: apply(STEP, b - a),
    "lt": lambda apply, a, b: 1 - apply(STEP, a - b),
    "softshrink": lambda apply, z, lambd=0.5: apply(RELU, z - lambd) - apply(RELU, -z - lambd),
    "where": _where,
    "masked_fill": lambda apply, z, mask, value, *, several: _where(apply, mask, value, z, several=several),
    "logical_not": lambda apply, z: 1 - z,
    "sigmoid": _smooth(SIGMOID),
    "tanh": _smooth(TANH),
    "erf": _smooth(ERF),
    "sin": _smooth(SINE),
    "cos": _smooth(COSINE),
    "silu": _smooth(SILU),
    "gelu": lambda apply, z, *, approximate="none": apply(GELU if approximate == "none" else GELU_TANH, z),
    "softplus": _softplus,
    "elu": _elu,
    "celu": lambda apply, z, alpha=1.0, inplace=False: alpha * apply(ELU, z / alpha),
    "selu": lambda apply, z, inplace=False: apply(SELU, z),
    "mish": lambda apply, z, inplace=False: apply(MISH, z),
    "hardswish": lambda apply, z, inplace=False: apply(HARDSWISH, z),
    "log_sigmoid": lambda apply, z: -apply(SOFTPLUS, -z),
    "glu": _glu,
    "mul": _product,
    "matmul": _matmul,
    "bmm": _matmul,
    "baddbmm": _baddbmm,
    "einsum": _einsum,
    "square": _smooth(SQUARE),
    "pow": _pow,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "rms_norm": _rms_norm,
}
