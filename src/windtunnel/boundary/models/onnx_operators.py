"""ONNX operators as plain torch operations: one row for each operator of image classifiers, at every opset.

A row takes the attributes of a node and its inputs, and returns its output, or a tuple of them. Inputs that a row names as
static (shapes, axes, pads, bounds) come as lists of numbers, all others as tensors. Quantised values that depend on the input are
integers in tensors of floats, so that gradients pass straight through their rounding (Bengio et al. 2013, arXiv 1308.3432).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

Attributes = dict[str, Any]
_DTYPES = {1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64}
_DTYPES |= {9: torch.bool, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
_EXACT = 2**24  # integers below are exact in float32


class Unsupported(ValueError):
    """A node that cannot be computed by torch as it stands; the text goes after the operator's name."""


class Static(list[Any]):
    """The numbers of a static input, row by row. shape: of the tensor that held them."""

    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table. static: positions of the static inputs; -1 stands for all."""

    function: Callable[..., Any]
    static: frozenset[int] = frozenset()


OPERATORS: dict[str, Operator] = {}


def _row(*names: str, static: Sequence[int] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(names, Operator(function, frozenset(static))))
        return function

    return add


def _elementwise(**functions: Callable[..., Tensor]) -> None:
    for name, function in functions.items():
        _row(name)(lambda attributes, *values, function=function: function(*values))


_elementwise(
    Abs=torch.abs, Neg=torch.neg, Exp=torch.exp, Log=torch.log, Sqrt=torch.sqrt, Reciprocal=torch.reciprocal, Erf=torch.erf,
    Sin=torch.sin, Cos=torch.cos, Tan=torch.tan, Atan=torch.atan, Sigmoid=torch.sigmoid, Tanh=torch.tanh, Relu=torch.relu,
    Not=torch.logical_not, Softplus=F.softplus,
    Softsign=F.softsign, HardSwish=F.hardswish, Mish=F.mish, IsNaN=torch.isnan, Add=torch.add, Sub=torch.sub, Mul=torch.mul,
    Pow=torch.pow, Equal=torch.eq, Less=torch.lt, Greater=torch.gt, LessOrEqual=torch.le, GreaterOrEqual=torch.ge,
    And=torch.logical_and, Or=torch.logical_or, Xor=torch.logical_xor, Where=torch.where, PRelu=lambda x, slope: _prelu(x, slope),
)  # fmt: skip
_row("Identity", "Dropout", static=(1, 2))(lambda attributes, x, *_: x)


@_row("Sign", "Binarise", "Round", "Floor", "Ceil")
def _jump(attributes: Attributes, x: Tensor) -> Tensor:
    """Jumps have no gradient: attacks pass straight through them."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "Sign": torch.sign,
        "Round": torch.round,
        "Floor": torch.floor,
        "Ceil": torch.ceil,
        "Binarise": lambda z: torch.where(z >= 0, torch.ones_like(z), -torch.ones_like(z)),
    }
    result = functions[attributes["operator"]](x)
    return _straight_through(result, x) if x.requires_grad and not has_torch_function((x,)) else result


@_row("Div")
def _div(_: Attributes, x: Tensor, y: Tensor) -> Tensor:
    integers = not x.is_floating_point() and not y.is_floating_point()
    return torch.div(x, y, rounding_mode="trunc") if integers else x / y


@_row("Mod")
def _mod(attributes: Attributes, x: Tensor, y: Tensor) -> Tensor:
    return torch.fmod(x, y) if attributes.get("fmod") else torch.remainder(x, y)


@_row("Min", "Max", "Sum", "Mean")
def _variadic(attributes: Attributes, *values: Tensor) -> Tensor:
    combine = {"Min": torch.minimum, "Max": torch.maximum}.get(attributes["operator"], torch.add)
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result / len(values) if attributes["operator"] == "Mean" else result


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    channels = x.shape[1] if x.ndim > 1 else 1
    if slope.numel() in {1, channels} and slope.numel() == max(slope.shape[-x.ndim + 1 :][:1] or (1,)):
        return F.prelu(x, slope.flatten())
    return x.clamp_min(0) + slope * x.clamp_max(0)


@_row("LeakyRelu", "QLinearLeakyRelu")
def _leaky_relu(attributes: Attributes, x: Tensor, *quantisation: Tensor) -> Tensor:
    slope = attributes.get("alpha", 0.01)
    return _requantised(lambda y: F.leaky_relu(y, slope), x, *quantisation) if quantisation else F.leaky_relu(x, slope)


@_row("Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "Shrink")
def _activation(attributes: Attributes, x: Tensor) -> Tensor:
    alpha = attributes.get("alpha")
    match attributes["operator"]:
        case "Elu":
            return F.elu(x, 1.0 if alpha is None else alpha)
        case "Celu":
            return F.celu(x, 1.0 if alpha is None else alpha)
        case "Selu":
            alpha, gamma = alpha or 1.6732632423543772, attributes.get("gamma", 1.0507009873554805)
            negative: Tensor = alpha * (x.clamp_max(0).exp() - 1)
            return torch.mul(x.clamp_min(0) + negative, gamma)
        case "ThresholdedRelu":
            return F.threshold(x, 1.0 if alpha is None else alpha, 0.0)
        case "HardSigmoid":
            return torch.add(x * (0.2 if alpha is None else alpha), attributes.get("beta", 0.5)).clamp(0, 1)
    bias, limit = attributes.get("bias", 0.0), attributes.get("lambd", 0.5)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))


@_row("Gelu")
def _gelu(attributes: Attributes, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=attributes.get("approximate", "none"))


@_row("Clip", static=(1, 2))
def _clip(attributes: Attributes, x: Tensor, low: Static | None = None, high: Static | None = None) -> Tensor:
    ends = [bound[0] if bound else attributes.get(key) for bound, key in ((low, "min"), (high, "max"))]
    return x if ends == [None, None] else x.clamp(*ends)


@_row("Softmax", "LogSoftmax")
def _softmax(attributes: Attributes, x: Tensor) -> Tensor:
    function: Callable[..., Tensor] = F.softmax if attributes["operator"] == "Softmax" else F.log_softmax
    if attributes["opset"] >= 13:
        return function(x, dim=attributes.get("axis", -1))
    axis = attributes.get("axis", 1) % x.ndim  # before 13 over all dimensions from the axis on
    return function(x, dim=-1) if axis == x.ndim - 1 else function(x.flatten(axis), dim=-1).reshape(x.shape)


# Linear layers


@_row("Gemm")
def _gemm(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x = x.T if attributes.get("transA") else x
    weight = weight if attributes.get("transB") else weight.T
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    weight = weight if alpha == 1 else weight * alpha
    bias = bias if bias is None or beta == 1 else bias * beta
    if bias is None or (bias.ndim == 1 and bias.shape[0] == weight.shape[0]):
        return F.linear(x, weight, bias)
    return F.linear(x, weight) + bias


@_row("MatMul")
def _matmul(_: Attributes, x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.T) if weight.ndim == 2 and 2 <= x.ndim <= 3 else x @ weight


@_row("Einsum")
def _einsum(attributes: Attributes, *values: Tensor) -> Tensor:
    return torch.einsum(attributes["equation"].replace(" ", ""), *values)


def _pads(attributes: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return the pads of a sliding window, [begin ..., end ...]."""
    spatial, auto = len(kernel), attributes.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return [0] * 2 * spatial
    if auto == "NOTSET":
        return list(attributes.get("pads") or [0] * 2 * spatial)
    strides, dilations = (attributes.get(key) or [1] * spatial for key in ("strides", "dilations"))
    total = [
        max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return less + more if auto == "SAME_UPPER" else more + less


def _torch_order(pads: Sequence[int]) -> list[int]:
    """Order [begin ..., end ...] as F.pad takes it: the last dimension first, begin beside end."""
    half = len(pads) // 2
    return [p for i in reversed(range(half)) for p in (pads[i], pads[half + i])]


@_row("Conv")
def _conv(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = weight.ndim - 2
    dilations = attributes.get("dilations") or [1] * spatial
    pads = _pads(attributes, x.shape[2:], weight.shape[2:])
    begin, end = pads[:spatial], pads[spatial:]
    if begin != end:
        if set(dilations) == {1} and min(pads) >= 0:
            # A kernel with zeros at one side takes the same pads on both: verifiers have plain convolutions only.
            grown = [max(e - b, 0) for b, e in zip(begin, end, strict=True)]
            grown += [max(b - e, 0) for b, e in zip(begin, end, strict=True)]
            weight = F.pad(weight, _torch_order(grown))
            begin = [max(b, e) for b, e in zip(begin, end, strict=True)]
        else:
            x, begin = F.pad(x, _torch_order(pads)), [0] * spatial
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    strides = attributes.get("strides") or [1] * spatial
    return convolve(x, weight, bias, tuple(strides), tuple(begin), tuple(dilations), attributes.get("group", 1))


@_row("ConvTranspose")
def _conv_transpose(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = weight.ndim - 2
    strides, dilations = (attributes.get(key) or [1] * spatial for key in ("strides", "dilations"))
    more = attributes.get("output_padding") or [0] * spatial
    pads = attributes.get("pads") or [0] * 2 * spatial
    full = [
        (n - 1) * s + (k - 1) * d + 1 + o
        for n, s, k, d, o in zip(x.shape[2:], strides, weight.shape[2:], dilations, more, strict=True)
    ]
    if attributes.get("output_shape") or attributes.get("auto_pad", "NOTSET") not in {"NOTSET", "VALID"}:
        sizes = attributes.get("output_shape") or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        total = [f - n for f, n in zip(full, sizes[-spatial:], strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = large + small if attributes.get("auto_pad") == "SAME_LOWER" else small + large
    convolve: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
    begin, end = pads[:spatial], pads[spatial:]
    if begin == end:
        return convolve(x, weight, bias, strides, begin, more, attributes.get("group", 1), dilations)
    result = convolve(x, weight, bias, strides, 0, more, attributes.get("group", 1), dilations)
    return F.pad(result, [-p for p in _torch_order(pads)])


@_row("MaxPool")
def _max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    kernel = attributes["kernel_shape"]
    spatial, pads = len(kernel), _pads(attributes, x.shape[2:], kernel)
    strides, dilations = (attributes.get(key) or [1] * spatial for key in ("strides", "dilations"))
    begin = pads[:spatial]
    if begin != pads[spatial:] or any(2 * b > k for b, k in zip(begin, kernel, strict=True)):
        x, begin = F.pad(x, _torch_order(pads), value=-math.inf), [0] * spatial
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[spatial - 1]
    ceil = bool(attributes.get("ceil_mode", 0))
    return pool(x, tuple(kernel), tuple(strides), tuple(begin), tuple(dilations), ceil_mode=ceil)


@_row("AveragePool")
def _average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    kernel = attributes["kernel_shape"]
    spatial, pads = len(kernel), _pads(attributes, x.shape[2:], kernel)
    if set(attributes.get("dilations") or [1]) != {1}:
        raise Unsupported("with dilations is not read; export it without")
    strides, ceil = attributes.get("strides") or [1] * spatial, bool(attributes.get("ceil_mode", 0))
    pool: Callable[..., Tensor] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[spatial - 1]
    counted, begin = bool(attributes.get("count_include_pad", 0)), pads[:spatial]
    if begin == pads[spatial:] and not any(2 * b > k for b, k in zip(begin, kernel, strict=True)):
        return pool(x, tuple(kernel), tuple(strides), tuple(begin), ceil, counted)
    padded = pool(F.pad(x, _torch_order(pads)), tuple(kernel), tuple(strides), 0, ceil)
    if counted:
        return padded
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    return padded / pool(F.pad(ones, _torch_order(pads)), tuple(kernel), tuple(strides), 0, ceil)


@_row("GlobalAveragePool")
def _global_average_pool(_: Attributes, x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@_row("GlobalMaxPool")
def _global_max_pool(_: Attributes, x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@_row("LRN")
def _lrn(attributes: Attributes, x: Tensor) -> Tensor:
    return F.local_response_norm(
        x, attributes["size"], attributes.get("alpha", 1e-4), attributes.get("beta", 0.75), attributes.get("bias", 1.0)
    )


# Normalisation


@_row("BatchNormalization")
def _batch_norm(
    attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    if attributes.get("training_mode"):
        raise Unsupported("was exported in training mode: a sample's answer depends on the others; export model.eval()")
    return F.batch_norm(x, mean, variance, scale, bias, eps=attributes.get("epsilon", 1e-5))


@_row("InstanceNormalization")
def _instance_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=attributes.get("epsilon", 1e-5))


@_row("LayerNormalization")
def _layer_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shape = [int(size) for size in x.shape[attributes.get("axis", -1) % x.ndim :]]
    return F.layer_norm(
        x, shape, scale.expand(shape), bias if bias is None else bias.expand(shape), attributes.get("epsilon", 1e-5)
    )


@_row("RMSNormalization")
def _rms_norm(attributes: Attributes, x: Tensor, scale: Tensor) -> Tensor:
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    mean = x.square().mean(axes, keepdim=True)
    return x * torch.rsqrt(mean + attributes.get("epsilon", 1e-5)) * scale


@_row("GroupNormalization")
def _group_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, channels = attributes["num_groups"], x.shape[1]
    if attributes["opset"] < 21:  # a value for each group
        scale, bias = (value.repeat_interleave(channels // groups) for value in (scale, bias))
    return F.group_norm(x, groups, scale, bias, attributes.get("epsilon", 1e-5))


@_row("LpNormalization")
def _lp_norm(attributes: Attributes, x: Tensor) -> Tensor:
    return F.normalize(x, attributes.get("p", 2), attributes.get("axis", -1))


@_row("Attention", static=(4, 5))
def _attention(attributes: Attributes, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    if attributes.get("is_causal") or attributes.get("softcap") or query.ndim == 3:
        raise Unsupported(
            "with is_causal, softcap or inputs of three dimensions is not read; export it as MatMul and Softmax"
        )
    scale = attributes.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-1, -2) * scale
    return (scores if mask is None else scores + mask).softmax(-1) @ value


# Shapes


@_row("Reshape", static=(1,))
def _reshape(attributes: Attributes, x: Tensor, shape: Static) -> Tensor:
    keeps = not attributes.get("allowzero")
    return x.reshape([x.shape[i] if isinstance(n, int) and n == 0 and keeps else n for i, n in enumerate(shape)])


@_row("Flatten")
def _flatten(attributes: Attributes, x: Tensor) -> Tensor:
    axis = attributes.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.flatten(1) if axis == 1 and x.ndim > 1 else x.reshape(math.prod(x.shape[:axis]), -1)


@_row("Transpose")
def _transpose(attributes: Attributes, x: Tensor) -> Tensor:
    return x.permute(*(attributes.get("perm") or reversed(range(x.ndim))))


@_row("Squeeze", static=(1,))
def _squeeze(attributes: Attributes, x: Tensor, axes: Static | None = None) -> Tensor:
    return x.squeeze(tuple(attributes.get("axes", ()) if axes is None else axes))


@_row("Unsqueeze", static=(1,))
def _unsqueeze(attributes: Attributes, x: Tensor, axes: Static | None = None) -> Tensor:
    places = attributes.get("axes", ()) if axes is None else axes
    for axis in sorted(position % (x.ndim + len(places)) for position in places):
        x = x.unsqueeze(axis)
    return x


@_row("Concat")
def _concat(attributes: Attributes, *values: Tensor) -> Tensor:
    axis = attributes["axis"] % values[0].ndim
    if axis and any(value.shape[0] != values[0].shape[0] for value in values):  # a constant for each sample
        size = next((value.shape[0] for value in values if value.shape[0] != 1), 1)
        values = tuple(value.expand(size, *value.shape[1:]) for value in values)
    return torch.cat(values, axis)


@_row("Split", static=(1,))
def _split(attributes: Attributes, x: Tensor, sizes: Static | None = None) -> tuple[Tensor, ...]:
    axis, lengths = attributes.get("axis", 0), sizes or attributes.get("split")
    parts: tuple[Tensor, ...] = x.split(
        list(lengths) if lengths else -(-int(x.shape[axis]) // attributes["outputs"]), axis
    )
    return parts


@_row("Slice", static=(1, 2, 3, 4))
def _slice(
    attributes: Attributes, x: Tensor, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Tensor:
    starts, ends, axes = (
        attributes.get(key) if values is None else values
        for values, key in ((starts, "starts"), (ends, "ends"), (axes, "axes"))
    )
    for i, axis in enumerate(axes or range(len(starts))):
        step, dimension = (steps[i] if steps else 1), axis % x.ndim
        if step > 0:
            x = x[(slice(None),) * dimension + (slice(starts[i], ends[i] if ends[i] < 2**31 else None, step),)]
        else:
            size = int(x.shape[dimension])
            chosen = range(size)[slice(starts[i], ends[i] if ends[i] >= -size else None, step)]
            x = x.index_select(dimension, torch.tensor(list(chosen), device=x.device))
    return x


@_row("Gather", static=(1,))
def _gather(attributes: Attributes, x: Tensor, indices: Static) -> Tensor:
    axis = attributes.get("axis", 0) % x.ndim
    if not indices.shape:
        return x.select(axis, indices[0])
    positive = [index + int(x.shape[axis]) if index < 0 else index for index in indices]
    if len(positive) > 1 and positive == list(range(positive[0], positive[0] + len(positive))):
        chosen = x.narrow(axis, positive[0], len(positive))
    else:
        chosen = x.index_select(axis, torch.tensor(positive, dtype=torch.int64, device=x.device))
    return chosen if len(indices.shape) == 1 else chosen.unflatten(axis, indices.shape)


@_row("Pad", static=(1, 2, 3))
def _pad(attributes: Attributes, x: Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    pads = attributes["pads"] if pads is None else pads
    fill = value[0] if value else attributes.get("value", 0.0)
    all_pads = [0] * 2 * x.ndim
    for i, axis in enumerate(range(x.ndim) if axes is None else axes):
        all_pads[axis % x.ndim], all_pads[axis % x.ndim + x.ndim] = pads[i], pads[i + len(pads) // 2]
    order = _torch_order(all_pads)
    while order and order[-2:] == [0, 0]:
        order = order[:-2]
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[
        attributes.get("mode", "constant")
    ]
    if not order:
        return x
    return F.pad(x, order, value=fill) if mode == "constant" else F.pad(x, order, mode=mode)


@_row("Expand", static=(1,))
def _expand(_: Attributes, x: Tensor, shape: Static) -> Tensor:
    rank = max(x.ndim, len(shape))
    sizes = [1] * (rank - x.ndim) + list(x.shape)
    target = [1] * (rank - len(shape)) + list(shape)
    return x.expand(
        [size if isinstance(new, int) and new == 1 else new for size, new in zip(sizes, target, strict=True)]
    )


@_row("Tile", static=(1,))
def _tile(_: Attributes, x: Tensor, repeats: Static) -> Tensor:
    return x.repeat(list(repeats))


@_row("ConstantOfShape", static=(0,))
def _constant_of_shape(attributes: Attributes, shape: Static) -> Tensor:
    value = attributes.get("value", torch.zeros(1))
    return torch.full(list(shape), value.item(), dtype=value.dtype)


@_row("Range", static=(0, 1, 2))
def _range(_: Attributes, start: Static, limit: Static, delta: Static) -> Tensor:
    return torch.arange(start[0], limit[0], delta[0])


@_row("Shape")
def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    return torch.tensor(x.shape[attributes.get("start", 0) : attributes.get("end")], dtype=torch.int64)


@_row("Size")
def _size(_: Attributes, x: Tensor) -> Tensor:
    return torch.tensor(x.numel())


@_row("Cast", "CastLike")
def _cast(attributes: Attributes, x: Tensor, like: Tensor | None = None) -> Tensor:
    to = like.dtype if like is not None else _DTYPES.get(attributes["to"])
    if to is None:
        raise Unsupported(f"to type {attributes['to']} is not read; export it in float32")
    if x.is_floating_point() and not to.is_floating_point and to is not torch.bool and x.requires_grad:
        return x + (x.trunc() - x).detach()
    # One module runs in float32 and in float64: between the two a cast changes nothing.
    return x if to is x.dtype or {to, x.dtype} == {torch.float32, torch.float64} else x.to(to)


@_row("Trilu", static=(1,))
def _trilu(attributes: Attributes, x: Tensor, k: Static | None = None) -> Tensor:
    return (torch.triu if attributes.get("upper", 1) else torch.tril)(x, k[0] if k else 0)


@_row("DepthToSpace")
def _depth_to_space(attributes: Attributes, x: Tensor) -> Tensor:
    size, (n, c, h, w) = attributes["blocksize"], x.shape
    if attributes.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    x = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // size**2, h * size, w * size)


@_row("SpaceToDepth")
def _space_to_depth(attributes: Attributes, x: Tensor) -> Tensor:
    size, (n, c, h, w) = attributes["blocksize"], x.shape
    x = x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * size**2, h // size, w // size)


@_row("Resize", "Upsample", static=(1, 2, 3))
def _resize(attributes: Attributes, x: Tensor, *constants: Any) -> Tensor:
    mode, coordinates = (
        attributes.get("mode", "nearest"),
        attributes.get("coordinate_transformation_mode", "half_pixel"),
    )
    scales = constants[1] if len(constants) > 1 else constants[0] if constants else attributes.get("scales")
    sizes = constants[2] if len(constants) > 2 and constants[2] else None
    if sizes is None:
        assert scales is not None
        sizes = [math.floor(n * s) for n, s in zip(x.shape[2:], scales[2:], strict=True)]
    target = [int(size) for size in sizes[-(x.ndim - 2) :]]
    old = attributes["operator"] == "Upsample" or attributes["opset"] < 11
    if mode == "nearest":
        exact = coordinates == "half_pixel" and attributes.get("nearest_mode", "round_prefer_floor").startswith("round")
        if (
            old
            or (coordinates == "asymmetric" and attributes.get("nearest_mode") == "floor")
            or all(w % int(n) == 0 for w, n in zip(target, x.shape[2:], strict=True))
        ):  # for whole factors both give the same
            return F.interpolate(x, target, mode="nearest")
        if exact:
            return F.interpolate(x, target, mode="nearest-exact")
    elif (
        mode in {"linear", "cubic"} and coordinates in {"half_pixel", "pytorch_half_pixel", "align_corners"} and not old
    ):
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
    "ReduceProd": lambda x, axes, keep: _product(x, axes, keep),
}


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


@_row(*_REDUCE, static=(1,))
def _reduce(attributes: Attributes, x: Tensor, axes: Static | None = None) -> Tensor:
    chosen = attributes.get("axes") if axes is None else axes
    if not chosen and attributes.get("noop_with_empty_axes"):
        return x
    dimensions = tuple(chosen) if chosen else tuple(range(x.ndim))
    return _REDUCE[attributes["operator"]](x, dimensions, bool(attributes.get("keepdims", 1)))


@_row("ArgMax", "ArgMin")
def _arg(attributes: Attributes, x: Tensor) -> Tensor:
    function = torch.argmax if attributes["operator"] == "ArgMax" else torch.argmin
    return function(x, attributes.get("axis", 0), keepdim=bool(attributes.get("keepdims", 1)))


# Quantised graphs: the arithmetic of onnxruntime, integers exact


def _straight_through(rounded: Tensor, x: Tensor) -> Tensor:
    """Return `rounded`, exactly, with the gradient of `x`."""
    return rounded.detach() + (x - x.detach())


def _along(value: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return a scale or zero point for each index of an axis in a shape that fits x."""
    if value.numel() == 1:
        return value.reshape(())
    return value.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _range_of(zero: Tensor | None, attributes: Attributes) -> tuple[int, int]:
    kind = zero.dtype if zero is not None else _DTYPES.get(attributes.get("output_dtype", 2), torch.uint8)
    if kind.is_floating_point:
        raise Unsupported("to float8 is not read; export it in int8 or uint8")
    return torch.iinfo(kind).min, torch.iinfo(kind).max


def _quantised(x: Tensor, scale: Tensor | None, zero: Tensor | None, attributes: Attributes) -> Tensor:
    """Return clamp(round(x / scale) + zero) as floats; x itself is in units of the scale where that is None."""
    low, high = _range_of(zero, attributes)
    units = x if scale is None else x / _along(scale, x, attributes.get("axis", 1))
    offset = 0.0 if zero is None else _along(zero, x, attributes.get("axis", 1)).to(x.dtype)
    return (_straight_through(units.round(), units) + offset).clamp(low, high)


@_row("QuantizeLinear")
def _quantize(attributes: Attributes, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    if attributes.get("block_size"):
        raise Unsupported("in blocks is not read; quantise per tensor or per channel")
    return _quantised(x.to(scale.dtype), scale, zero, attributes)


@_row("DequantizeLinear")
def _dequantize(attributes: Attributes, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    if attributes.get("block_size"):
        raise Unsupported("in blocks is not read; quantise per tensor or per channel")
    axis = attributes.get("axis", 1)
    x = x.to(scale.dtype)
    return (x if zero is None else x - _along(zero, x, axis).to(x.dtype)) * _along(scale, x, axis)


def _requantised(function: Callable[[Tensor], Tensor], x: Tensor, *quantisation: Tensor | None) -> Tensor:
    scale, zero, out_scale, out_zero = quantisation
    assert scale is not None
    assert out_scale is not None
    return _quantised(function(_dequantize({}, x, scale, zero)), out_scale, out_zero, {})


def _integers(x: Tensor, zero: Tensor | None, axis: int, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if zero is None else x.to(dtype) - _along(zero, x, axis).to(dtype)


def _wide(x: Tensor, terms: int) -> torch.dtype:
    """Return the type in which sums of so many products of bytes are exact."""
    return torch.float64 if x.dtype is torch.float64 or terms * 255 * 255 >= _EXACT else torch.float32


@_row("QLinearConv")
def _q_conv(
    attributes: Attributes,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    exact = _wide(x, math.prod(w.shape[1:]))
    weight = _integers(w, w_zero, 0, exact)
    total = _conv(attributes, _integers(x, x_zero, 1, exact), weight, None if bias is None else bias.to(exact))
    scale = x_scale * w_scale / y_scale
    return _quantised(total.to(x.dtype) * _along(scale, total, 1), None, y_zero, {})


@_row("QLinearMatMul")
def _q_matmul(
    _: Attributes,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    exact = _wide(a, int(a.shape[-1]))
    total = _integers(a, a_zero, -2, exact) @ _integers(b, b_zero, -1, exact)
    scale = _along(a_scale * b_scale / y_scale, total, -1)
    return _quantised(total.to(a.dtype) * scale, None, y_zero, {})


@_row("QGemm")
def _q_gemm(
    attributes: Attributes,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero: Tensor | None = None,
) -> Tensor:
    exact = _wide(a, int(a.shape[-1]))
    first, right = _integers(a, a_zero, -2, exact), _integers(b, b_zero, 0 if attributes.get("transB") else 1, exact)
    total = (first.T if attributes.get("transA") else first) @ (right.T if attributes.get("transB") else right)
    total = (total * attributes.get("alpha", 1.0) if c is None else total + c.to(exact)).to(a.dtype)
    real = total * _along(a_scale * b_scale, total, 1)
    return (
        real if y_scale is None else _quantised(total * _along(a_scale * b_scale / y_scale, total, 1), None, y_zero, {})
    )


@_row("QLinearAdd", "QLinearMul")
def _q_binary(
    attributes: Attributes,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
) -> Tensor:
    first, right = _dequantize({}, a, a_scale, a_zero), _dequantize({}, b, b_scale, b_zero)
    return _quantised(first + right if attributes["operator"] == "QLinearAdd" else first * right, y_scale, y_zero, {})


@_row("QLinearConcat")
def _q_concat(attributes: Attributes, y_scale: Tensor, y_zero: Tensor, *parts: Tensor) -> Tensor:
    values = [_dequantize({}, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _quantised(_concat(attributes, *values), y_scale, y_zero, {})


@_row("QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearSigmoid", "QLinearSoftmax")
def _q_unary(attributes: Attributes, x: Tensor, *quantisation: Tensor | None) -> Tensor:
    if attributes.get("channels_last"):
        raise Unsupported("with channels last is not read; quantise the graph with channels first")
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "QLinearGlobalAveragePool": lambda y: _global_average_pool({}, y),
        "QLinearAveragePool": lambda y: _average_pool(attributes, y),
        "QLinearSigmoid": torch.sigmoid,
        "QLinearSoftmax": lambda y: y.softmax(attributes.get("axis", -1)),
    }
    return _requantised(functions[attributes["operator"]], x, *quantisation)
