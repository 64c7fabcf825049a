"""ONNX operators as plain torch operations: one row for each operator of image classifiers, at every opset.

A row takes the tensors of a node, and by keyword those of its attributes that it names, with the defaults of ONNX; it returns the
output, or a tuple of them. Its static inputs (shapes, axes, pads, bounds), attributes in older opsets, come by keyword too, as lists
of numbers. Quantised values that depend on the input are integers in tensors of floats, so that gradients pass straight through their
rounding (Bengio et al. 2013, arXiv 1308.3432).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

Attributes = dict[str, Any]
_DTYPES = {1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64}
_DTYPES |= {9: torch.bool, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
# Attributes that rows need not take: with these values, or with any.
_WITHOUT_EFFECT = {"spatial": 1, "stash_type": 1, "cubic_coeff_a": -0.75, "keep_aspect_ratio_policy": "stretch"}
_WITHOUT_EFFECT |= dict.fromkeys(("consumed_inputs", "is_test", "momentum", "num_outputs", "saturate", "seed"))
_Ints = Sequence[int]
_EXACT = 2**24  # integers below are exact in float32


class Unsupported(ValueError):
    """A node that cannot be computed by torch as it stands; the text goes after the operator's name."""


class Sized(NamedTuple):
    """A size that grows with the batch: constant + factor * n."""

    constant: int
    factor: int

    def at(self, n: int) -> int:
        """Return the size for a batch of n; without what would change nothing, which torch.export would keep."""
        grown = n if self.factor == 1 else self.factor * n
        return grown + self.constant if self.constant else grown


class Static(list[Any]):
    """The numbers of a static input, row by row, each a number or a `Sized`. shape: of the tensor that held them."""

    def __init__(self, numbers: Iterable[Any], shape: Sequence[int] = ()) -> None:
        super().__init__(numbers)
        self.shape = tuple(shape)

    def at(self, n: int) -> Static:
        """Return the numbers for a batch of n."""
        return Static((number.at(n) if isinstance(number, Sized) else number for number in self), self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table, called with the attributes of a node and its inputs.

    Attributes:
        name: The operator, an attribute `operator` to rows that serve several.
        function: Takes tensors, and attributes by keyword.
        static: Positions of the static inputs, and the keywords that they come by.
        keywords: The attributes that the function takes; None for all of them.
    """

    name: str
    function: Callable[..., Any]
    static: Mapping[int, str]
    keywords: frozenset[str] | None

    def takes(self, attribute: str, value: object) -> bool:
        """Return True if the row takes an attribute, or if the value alters nothing."""
        is_taken = self.keywords is None or attribute in self.keywords
        return is_taken or _WITHOUT_EFFECT.get(attribute, 0) in (None, value)

    def __call__(self, attributes: Attributes, *inputs: Any) -> Any:
        """Return the output of a node, or a tuple of them."""
        keywords = {**attributes, "operator": self.name}
        if self.keywords is not None:
            keywords = {key: value for key, value in keywords.items() if key in self.keywords}
        static = {key: inputs[i] for i, key in self.static.items() if i < len(inputs) and inputs[i] is not None}
        tensors = [value for i, value in enumerate(inputs) if i not in self.static]
        return self.function(*tensors, **{**keywords, **static})


OPERATORS: dict[str, Operator] = {}


def _row(*names: str, **static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function for these operators; static: the keyword of each static input with its position."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(function).parameters.values() if isinstance(function, FunctionType) else ()
        takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
        keywords = frozenset(parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY)
        positions = {position: keyword for keyword, position in static.items()}
        for name in names:
            OPERATORS[name] = Operator(name, function, positions, None if takes_all else keywords)
        return function

    return add


def _rows(**functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        _row(name)(function)


_rows(
    Abs=torch.abs, Neg=torch.neg, Exp=torch.exp, Log=torch.log, Sqrt=torch.sqrt, Reciprocal=torch.reciprocal, Erf=torch.erf,
    Sin=torch.sin, Cos=torch.cos, Tan=torch.tan, Atan=torch.atan, Sigmoid=torch.sigmoid, Tanh=torch.tanh, Relu=torch.relu,
    Not=torch.logical_not, Softplus=F.softplus,
    Softsign=F.softsign, HardSwish=F.hardswish, Mish=F.mish, IsNaN=torch.isnan, Add=torch.add, Sub=torch.sub, Mul=torch.mul,
    Pow=torch.pow, Equal=torch.eq, Less=torch.lt, Greater=torch.gt, LessOrEqual=torch.le, GreaterOrEqual=torch.ge,
    And=torch.logical_and, Or=torch.logical_or, Xor=torch.logical_xor, Where=torch.where,
)  # fmt: skip
_rows(
    Gelu=lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    TwiceGelu=lambda x: 2 * F.gelu(x),
    Elu=lambda x, *, alpha=1.0: F.elu(x, alpha),
    Celu=lambda x, *, alpha=1.0: F.celu(x, alpha),
    ThresholdedRelu=lambda x, *, alpha=1.0: F.threshold(x, alpha, 0.0),
    Selu=lambda x, *, alpha=1.6732632423543772, gamma=1.0507009873554805: torch.mul(
        x.clamp_min(0) + alpha * (x.clamp_max(0).exp() - 1), gamma
    ),
    Shrink=lambda x, *, bias=0.0, lambd=0.5: torch.where(
        x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x))
    ),
    HardSigmoid=lambda x, *, alpha=0.2, beta=0.5: torch.add(x * alpha, beta).clamp(0, 1),
    Div=lambda x, y: (
        x / y if x.is_floating_point() or y.is_floating_point() else torch.div(x, y, rounding_mode="trunc")
    ),
    Mod=lambda x, y, *, fmod=0: torch.fmod(x, y) if fmod else torch.remainder(x, y),
    Einsum=lambda *values, equation: torch.einsum(equation.replace(" ", ""), *values),
    MatMul=lambda x, y: F.linear(x, y.T) if y.ndim == 2 and 2 <= x.ndim <= 3 else x @ y,
    GlobalAveragePool=lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
    GlobalMaxPool=lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
    LRN=lambda x, *, size, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(x, size, alpha, beta, bias),
    LpNormalization=lambda x, *, p=2, axis=-1: F.normalize(x, p, axis),
    InstanceNormalization=lambda x, scale, bias, *, epsilon=1e-5: F.instance_norm(
        x, weight=scale, bias=bias, eps=epsilon
    ),
    Transpose=lambda x, *, perm=(): x.permute(*(perm or reversed(range(x.ndim)))),
    Shape=lambda x, *, start=0, end=None: torch.tensor(x.shape[start:end], dtype=torch.int64),
    Size=lambda x: torch.tensor(x.numel()),
    ArgMax=lambda x, *, axis=0, keepdims=1: torch.argmax(x, axis, keepdim=bool(keepdims)),
    ArgMin=lambda x, *, axis=0, keepdims=1: torch.argmin(x, axis, keepdim=bool(keepdims)),
)
_row("Identity", "Dropout", ratio=1, training_mode=2)(lambda x, **_: x)
_row("Squeeze", axes=1)(lambda x, *, axes=(): x.squeeze(tuple(axes)))
_row("Tile", repeats=1)(lambda x, *, repeats: x.repeat(list(repeats)))
_row("Range", start=0, limit=1, delta=2)(lambda *, start, limit, delta: torch.arange(start[0], limit[0], delta[0]))
_row("Trilu", k=1)(lambda x, *, k=(0,), upper=1: (torch.triu if upper else torch.tril)(x, k[0]))


@_row("Sign", "Binarise", "Round", "Floor", "Ceil")
def _jump(x: Tensor, *, operator: str) -> Tensor:
    """Jumps have no gradient: attacks pass straight through them."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "Sign": torch.sign,
        "Round": torch.round,
        "Floor": torch.floor,
        "Ceil": torch.ceil,
        "Binarise": lambda z: torch.where(z >= 0, torch.ones_like(z), -torch.ones_like(z)),
    }
    return straight_through(functions[operator](x), x)


@_row("Min", "Max", "Sum", "Mean")
def _variadic(*values: Tensor, operator: str) -> Tensor:
    combine = {"Min": torch.minimum, "Max": torch.maximum}.get(operator, torch.add)
    result = functools.reduce(combine, values)
    return result / len(values) if operator == "Mean" else result


@_row("PRelu")
def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    channels = x.shape[1] if x.ndim > 1 else 1
    if slope.numel() in {1, channels} and slope.numel() == max(slope.shape[-x.ndim + 1 :][:1] or (1,)):
        return F.prelu(x, slope.flatten())
    return x.clamp_min(0) + slope * x.clamp_max(0)


@_row("LeakyRelu", "QLinearLeakyRelu")
def _leaky_relu(x: Tensor, *quantisation: Tensor, alpha: float = 0.01) -> Tensor:
    return _requantised(lambda y: F.leaky_relu(y, alpha), x, *quantisation) if quantisation else F.leaky_relu(x, alpha)


def _number(value: Static | float | None) -> float | None:
    """Return the number of a static input that holds one, or of an attribute; None for an empty input."""
    return (value[0] if value else None) if isinstance(value, Static) else value


@_row("Clip", min=1, max=2)
def _clip(x: Tensor, *, min: Static | float | None = None, max: Static | float | None = None) -> Tensor:
    ends = _number(min), _number(max)
    return x if ends == (None, None) else x.clamp(*ends)


@_row("Softmax", "LogSoftmax")
def _softmax(x: Tensor, *, operator: str, opset: int, axis: int | None = None) -> Tensor:
    function: Callable[..., Tensor] = F.softmax if operator == "Softmax" else F.log_softmax
    if opset >= 13:
        return function(x, dim=-1 if axis is None else axis)
    axis = (1 if axis is None else axis) % x.ndim  # before 13 over all dimensions from the axis on
    return function(x, dim=-1) if axis == x.ndim - 1 else function(x.flatten(axis), dim=-1).reshape(x.shape)


# Linear layers


@_row("Gemm")
def _gemm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, **flags: int
) -> Tensor:
    x, weight = x.T if flags.get("transA") else x, weight if flags.get("transB") else weight.T
    weight = weight if alpha == 1 else weight * alpha
    bias = bias if bias is None or beta == 1 else bias * beta
    if bias is None or (bias.ndim == 1 and bias.shape[0] == weight.shape[0]):
        return F.linear(x, weight, bias)
    return F.linear(x, weight) + bias


def _window(attributes: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], ...]:
    """Return strides, dilations, and pads at begin and end, of a sliding window over `sizes`, a number for each dimension."""
    spatial, auto = len(kernel), attributes.get("auto_pad", "NOTSET")
    strides, dilations = (attributes.get(key) or [1] * spatial for key in ("strides", "dilations"))
    if auto in {"NOTSET", "VALID"}:
        pads = list((auto == "NOTSET" and attributes.get("pads")) or [0] * 2 * spatial)
        return strides, dilations, pads[:spatial], pads[spatial:]
    total = [
        max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return strides, dilations, *((less, more) if auto == "SAME_UPPER" else (more, less))


def _torch_order(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """Order pads as F.pad takes them: the last dimension first, begin beside end."""
    return [pad for pair in zip(reversed(begin), reversed(end), strict=True) for pad in pair]


@_row("Conv")
def _conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, group: int = 1, **window: Any) -> Tensor:
    spatial = weight.ndim - 2
    strides, dilations, begin, end = _window(window, x.shape[2:], weight.shape[2:])
    if begin != end:
        if set(dilations) == {1} and min(*begin, *end) >= 0:
            # A kernel with zeros at one side takes the same pads on both: verifiers have plain convolutions only.
            both = list(map(max, begin, end))
            weight = F.pad(
                weight, _torch_order(*([b - s for b, s in zip(both, side, strict=True)] for side in (begin, end)))
            )
            begin = both
        else:
            x, begin = F.pad(x, _torch_order(begin, end)), [0] * spatial
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    return convolve(x, weight, bias, tuple(strides), tuple(begin), tuple(dilations), group)


@_row("ConvTranspose")
def _conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, group: int = 1, **window: Any) -> Tensor:
    spatial = weight.ndim - 2
    auto, output_shape = window.pop("auto_pad", "NOTSET"), window.get("output_shape")
    strides, dilations, begin, end = _window(window, x.shape[2:], weight.shape[2:])
    more = window.get("output_padding") or [0] * spatial
    if output_shape or auto not in {"NOTSET", "VALID"}:
        sizes = output_shape or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        total = [
            (n - 1) * s + (k - 1) * d + 1 + o - size
            for n, s, k, d, o, size in zip(
                x.shape[2:], strides, weight.shape[2:], dilations, more, sizes[-spatial:], strict=True
            )
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    convolve: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
    if begin == end:
        return convolve(x, weight, bias, strides, begin, more, group, dilations)
    result = convolve(x, weight, bias, strides, 0, more, group, dilations)
    return F.pad(result, [-pad for pad in _torch_order(begin, end)])


def _needs_own_pads(begin: Sequence[int], end: Sequence[int], kernel: Sequence[int]) -> bool:
    """Return True for pads that torch's pooling refuses: one-sided, or more than half of the kernel."""
    return begin != end or any(2 * b > k for b, k in zip(begin, kernel, strict=True))


@_row("MaxPool")
def _max_pool(x: Tensor, *, kernel_shape: Sequence[int], ceil_mode: int = 0, **window: Any) -> Tensor:
    strides, dilations, begin, end = _window(window, x.shape[2:], kernel_shape)
    if _needs_own_pads(begin, end, kernel_shape):
        x, begin = F.pad(x, _torch_order(begin, end), value=-math.inf), [0] * len(begin)
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel_shape) - 1]
    return pool(x, tuple(kernel_shape), tuple(strides), tuple(begin), tuple(dilations), ceil_mode=bool(ceil_mode))


@_row("AveragePool")
def _average_pool(
    x: Tensor, *, kernel_shape: Sequence[int], ceil_mode: int = 0, count_include_pad: int = 0, **window: Any
) -> Tensor:
    strides, dilations, begin, end = _window(window, x.shape[2:], kernel_shape)
    if set(dilations) != {1}:
        raise Unsupported("with dilations is not read; export it without")
    average: Callable[..., Tensor] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel_shape) - 1]
    pool = functools.partial(average, kernel_size=tuple(kernel_shape), stride=tuple(strides), ceil_mode=bool(ceil_mode))
    if not _needs_own_pads(begin, end, kernel_shape):
        return pool(x, padding=tuple(begin), count_include_pad=bool(count_include_pad))
    order = _torch_order(begin, end)
    padded = pool(F.pad(x, order))
    if count_include_pad:
        return padded
    return padded / pool(F.pad(torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device), order))


# Normalisation


@_row("BatchNormalization")
def _batch_norm(x: Tensor, *parameters: Tensor, epsilon: float = 1e-5, training_mode: int = 0) -> Tensor:
    if training_mode:
        raise Unsupported("was exported in training mode: a sample's answer depends on the others; export model.eval()")
    scale, bias, mean, variance = parameters
    return F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


@_row("LayerNormalization", "Standardise")
def _layer_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> Tensor:
    shape = [int(size) for size in x.shape[axis % x.ndim :]]
    weight, offset = (value if value is None else value.expand(shape) for value in (scale, bias))
    return F.layer_norm(x, shape, weight, offset, epsilon)


@_row("RMSNormalization")
def _rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Tensor:
    mean = x.square().mean(tuple(range(axis % x.ndim, x.ndim)), keepdim=True)
    return x * torch.rsqrt(mean + epsilon) * scale


@_row("GroupNormalization")
def _group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, *, opset: int, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    if opset < 21:  # a value for each group
        scale, bias = (value.repeat_interleave(x.shape[1] // num_groups) for value in (scale, bias))
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@_row("Attention")
def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, scale: float = 0.0) -> Tensor:
    scores = query @ key.transpose(-1, -2) * (scale or 1 / math.sqrt(query.shape[-1]))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return scores.softmax(-1) @ value


# Shapes


@_row("Reshape", shape=1)
def _reshape(x: Tensor, *, shape: Static, allowzero: int = 0) -> Tensor:
    return x.reshape(
        [x.shape[i] if isinstance(n, int) and n == 0 and not allowzero else n for i, n in enumerate(shape)]
    )


@_row("Flatten")
def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    return x.flatten(1) if axis == 1 and x.ndim > 1 else x.reshape(math.prod(x.shape[:axis]), -1)


@_row("Unsqueeze", axes=1)
def _unsqueeze(x: Tensor, *, axes: Sequence[int] = ()) -> Tensor:
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


@_row("Concat")
def _concat(*values: Tensor, axis: int) -> Tensor:
    axis = axis % values[0].ndim
    if axis and any(value.shape[0] != values[0].shape[0] for value in values):  # a constant for each sample
        size = next((value.shape[0] for value in values if value.shape[0] != 1), 1)
        values = tuple(value.expand(size, *value.shape[1:]) for value in values)
    return torch.cat(values, axis)


@_row("Split", split=1)
def _split(x: Tensor, *, axis: int = 0, split: Sequence[int] = (), outputs: int) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = x.split(list(split) if split else -(-int(x.shape[axis]) // outputs), axis)
    return parts


@_row("Slice", starts=1, ends=2, axes=3, steps=4)
def _slice(x: Tensor, *, starts: _Ints, ends: _Ints, axes: _Ints = (), steps: _Ints = ()) -> Tensor:
    for i, axis in enumerate(axes or range(len(starts))):
        step, dimension = (steps[i] if steps else 1), axis % x.ndim
        if step > 0:
            x = x[(slice(None),) * dimension + (slice(starts[i], ends[i] if ends[i] < 2**31 else None, step),)]
        else:
            size = int(x.shape[dimension])
            chosen = range(size)[slice(starts[i], ends[i] if ends[i] >= -size else None, step)]
            x = x.index_select(dimension, torch.tensor(list(chosen), device=x.device))
    return x


@_row("Gather", indices=1)
def _gather(x: Tensor, *, indices: Static, axis: int = 0) -> Tensor:
    axis = axis % x.ndim
    if not indices.shape:
        return x.select(axis, indices[0])
    positive = [index + int(x.shape[axis]) if index < 0 else index for index in indices]
    if len(positive) > 1 and positive == list(range(positive[0], positive[0] + len(positive))):
        chosen = x.narrow(axis, positive[0], len(positive))
    else:
        chosen = x.index_select(axis, torch.tensor(positive, dtype=torch.int64, device=x.device))
    return chosen if len(indices.shape) == 1 else chosen.unflatten(axis, indices.shape)


@_row("Pad", pads=1, value=2, axes=3)
def _pad(
    x: Tensor, *, pads: Sequence[int], value: Any = 0.0, axes: Sequence[int] | None = None, mode: str = "constant"
) -> Tensor:
    begin, end = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(range(x.ndim) if axes is None else axes):
        begin[axis % x.ndim], end[axis % x.ndim] = pads[i], pads[i + len(pads) // 2]
    order = _torch_order(begin, end)
    while order and order[-2:] == [0, 0]:
        order = order[:-2]
    torch_mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    if not order:
        return x
    return F.pad(x, order, mode=torch_mode, value=(_number(value) or 0.0) if mode == "constant" else None)


@_row("Expand", shape=1)
def _expand(x: Tensor, *, shape: Static) -> Tensor:
    rank = max(x.ndim, len(shape))
    sizes = [1] * (rank - x.ndim) + list(x.shape)
    target = [1] * (rank - len(shape)) + list(shape)
    return x.expand(
        [size if isinstance(new, int) and new == 1 else new for size, new in zip(sizes, target, strict=True)]
    )


@_row("ConstantOfShape", shape=0)
def _constant_of_shape(*, shape: Static, value: Tensor | None = None) -> Tensor:
    value = torch.zeros(1) if value is None else value
    return torch.full(list(shape), value.item(), dtype=value.dtype)


@_row("Cast", "CastLike")
def _cast(x: Tensor, like: Tensor | None = None, *, to: int = 0) -> Tensor:
    dtype = like.dtype if like is not None else _DTYPES.get(to)
    if dtype is None:
        raise Unsupported(f"to type {to} is not read; export it in float32")
    if x.is_floating_point() and not dtype.is_floating_point and dtype is not torch.bool and x.requires_grad:
        return x + (x.trunc() - x).detach()
    # One module runs in float32 and in float64: between the two a cast changes nothing.
    return x if dtype is x.dtype or {dtype, x.dtype} == {torch.float32, torch.float64} else x.to(dtype)


@_row("DepthToSpace")
def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    size, (n, c, h, w) = blocksize, x.shape
    if mode == "CRD":
        return F.pixel_shuffle(x, size)
    x = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // size**2, h * size, w * size)


@_row("SpaceToDepth")
def _space_to_depth(x: Tensor, *, blocksize: int) -> Tensor:
    size, (n, c, h, w) = blocksize, x.shape
    x = x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * size**2, h // size, w // size)


@_row("Resize", "Upsample", roi=1, scales=2, sizes=3)
def _resize(
    x: Tensor, *, operator: str, opset: int, mode: str = "nearest", coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor", axes: _Ints = (), sizes: _Ints = (), scales: Any = (), roi: Any = (),
) -> Tensor:  # fmt: skip
    coordinates, old = coordinate_transformation_mode, operator == "Upsample" or opset < 11  # then scales come first
    factors = dict(zip((i % x.ndim for i in axes or range(x.ndim)), sizes or scales or roi, strict=True))
    sides = [(int(n), factors.get(i, n if sizes else 1)) for i, n in enumerate(x.shape[2:], 2)]
    target = [int(size if sizes else n * size) for n, size in sides]
    is_exact = bool(sizes) or target == [n * size for n, size in sides]
    pairs = [(n, t) for (n, _), t in zip(sides, target, strict=True)]
    is_tied = any((2 * i + 1) * n % (2 * t) == 0 for n, t in pairs for i in range(t))  # between two pixels
    is_half = not old and coordinates in {"half_pixel", "pytorch_half_pixel"} and min(target) > 1
    floors = all(n <= t for n, t in pairs) if old else (coordinates, nearest_mode) == ("asymmetric", "floor")
    rounds = is_half and nearest_mode in (
        {"round_prefer_ceil"} if is_tied else {"round_prefer_ceil", "round_prefer_floor"}
    )
    if mode == "nearest" and is_exact and (floors or rounds):
        is_plain = floors or all(t % n == 0 for n, t in pairs)  # both give the same
        return F.interpolate(x, target, mode="nearest" if is_plain else "nearest-exact")
    if mode in {"linear", "cubic"} and is_exact and (is_half or (coordinates == "align_corners" and not old)):
        kind = "bicubic" if mode == "cubic" else {1: "linear", 2: "bilinear", 3: "trilinear"}[x.ndim - 2]
        return F.interpolate(x, target, mode=kind, align_corners=coordinates == "align_corners")
    raise Unsupported(
        f"with mode {mode} and coordinates {coordinates} is not read; export nearest, linear or cubic of half pixels"
    )


_REDUCE: dict[str, Callable[[Tensor, tuple[int, ...], bool], Tensor]] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keepdim=keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keepdim=keep),
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keepdim=keep),
    "ReduceProd": lambda x, axes, keep: functools.reduce(
        lambda product, axis: product.prod(axis, keepdim=keep),
        sorted((axis % x.ndim for axis in axes), reverse=True),
        x,
    ),
}


@_row(*_REDUCE, axes=1)
def _reduce(
    x: Tensor, *, operator: str, axes: Sequence[int] = (), keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    if not axes and noop_with_empty_axes:
        return x
    return _REDUCE[operator](x, tuple(axes or range(x.ndim)), bool(keepdims))


# Quantised graphs: the arithmetic of onnxruntime, integers exact


def straight_through(rounded: Tensor, x: Tensor) -> Tensor:
    """Return `rounded`, exactly, with the gradient of `x`; one call to a torch function mode, as a verifier's, which bounds the jump."""
    if has_torch_function((x,)):
        result: Tensor = handle_torch_function(straight_through, (x,), rounded, x)
        return result
    return rounded.detach() + (x - x.detach()) if x.requires_grad else rounded


def _along(value: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return a scale or zero point for each index of an axis in a shape that fits x."""
    if value.numel() == 1:
        return value.reshape(())
    return value.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _quantised(
    x: Tensor, scale: Tensor | None, zero: Tensor | None, axis: int = 1, dtype: torch.dtype = torch.uint8
) -> Tensor:
    """Return clamp(round(x / scale) + zero) as floats, in the range of `zero`, else of `dtype`; without a scale x is in its units."""
    dtype = dtype if zero is None else zero.dtype
    if dtype.is_floating_point:
        raise Unsupported("to float8 is not read; export it in int8 or uint8")
    units = x if scale is None else x / _along(scale, x, axis)
    offset = 0.0 if zero is None else _along(zero, x, axis).to(x.dtype)
    limits = torch.iinfo(dtype)
    return (straight_through(units.round(), units) + offset).clamp(limits.min, limits.max)


@_row("QuantizeLinear")
def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, output_dtype: int = 2, block_size: int = 0
) -> Tensor:
    if block_size:
        raise Unsupported("in blocks is not read; quantise per tensor or per channel")
    return _quantised(x.to(scale.dtype), scale, zero, axis, _DTYPES.get(output_dtype, torch.uint8))


@_row("DequantizeLinear")
def _dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0) -> Tensor:
    if block_size:
        raise Unsupported("in blocks is not read; quantise per tensor or per channel")
    return _integers(x, zero, axis, scale.dtype) * _along(scale, x, axis)


def _requantised(function: Callable[[Tensor], Tensor], x: Tensor, *quantisation: Tensor | None) -> Tensor:
    scale, zero, out_scale, out_zero = quantisation
    assert scale is not None
    assert out_scale is not None
    return _quantised(function(_dequantize(x, scale, zero)), out_scale, out_zero)


def _integers(x: Tensor, zero: Tensor | None, axis: int, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if zero is None else x.to(dtype) - _along(zero, x, axis).to(dtype)


def _wide(x: Tensor, terms: int) -> torch.dtype:
    """Return the type in which sums of so many products of bytes are exact."""
    return torch.float64 if x.dtype is torch.float64 or terms * 255 * 255 >= _EXACT else torch.float32


@_row("QLinearConv")
def _q_conv(x: Tensor, *values: Any, **attributes: Any) -> Tensor:
    x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*values, None)[:8]
    exact = _wide(x, math.prod(w.shape[1:]))
    weight, bias = _integers(w, w_zero, 0, exact), None if bias is None else bias.to(exact)
    total = _conv(_integers(x, x_zero, 1, exact), weight, bias, **attributes)
    return _quantised(total.to(x.dtype) * _along(x_scale * w_scale / y_scale, total, 1), None, y_zero)


@_row("QLinearMatMul")
def _q_matmul(a: Tensor, *values: Tensor) -> Tensor:
    a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = values
    exact = _wide(a, int(a.shape[-1]))
    total = _integers(a, a_zero, -2, exact) @ _integers(b, b_zero, -1, exact)
    return _quantised(total.to(a.dtype) * _along(a_scale * b_scale / y_scale, total, -1), None, y_zero)


@_row("QGemm")
def _q_gemm(a: Tensor, *values: Any, alpha: float = 1.0, **flags: int) -> Tensor:
    a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*values, None, None, None)[:8]
    exact = _wide(a, int(a.shape[-1]))
    is_transposed = flags.get("transB")
    first, right = _integers(a, a_zero, -2, exact), _integers(b, b_zero, 0 if is_transposed else 1, exact)
    total = (first.T if flags.get("transA") else first) @ (right.T if is_transposed else right)
    total = (total * alpha if c is None else total + c.to(exact)).to(a.dtype)
    if y_scale is None:
        return total * _along(a_scale * b_scale, total, 1)
    return _quantised(total * _along(a_scale * b_scale / y_scale, total, 1), None, y_zero)


@_row("QLinearAdd", "QLinearMul")
def _q_binary(*values: Tensor, operator: str) -> Tensor:
    first, right = _dequantize(*values[:3]), _dequantize(*values[3:6])
    return _quantised(first + right if operator == "QLinearAdd" else first * right, values[6], (*values[7:], None)[0])


@_row("QLinearConcat")
def _q_concat(y_scale: Tensor, y_zero: Tensor, *parts: Tensor, axis: int) -> Tensor:
    values = [_dequantize(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _quantised(_concat(*values, axis=axis), y_scale, y_zero)


@_row("QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearSigmoid", "QLinearSoftmax")
def _q_unary(
    x: Tensor, *quantisation: Tensor | None, operator: str, channels_last: int = 0, **attributes: Any
) -> Tensor:
    if channels_last:
        raise Unsupported("with channels last is not read; quantise the graph with channels first")
    plain = OPERATORS[operator.removeprefix("QLinear")]
    return _requantised(functools.partial(plain, {**attributes, "opset": 13}), x, *quantisation)  # of Softmax
