"""Convolutions carried backwards, as linear bounds are: transposed convolutions in less time than torch's own on a processor.

Where a convolution has more than a few inputs, one convolution of stride 1: the position s q + t of the padded input gets the sum
over e of g[q - e] w[s e + t], all t < s at once; then they are put in their places (torch's takes one to four times as long). Where it
has few, as the first of a network: a product of matrices whose results are added up in their places (torch's takes two to five times).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FEW = 3  # the channels of a picture
_Pair = tuple[int, int]


def pair(value: int | tuple[int, ...]) -> _Pair:
    """(rows, columns) of a setting of torch's two-dimensional layers: one number for both, or one each."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return (int(values[0]), int(values[-1]))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | _Pair = 1,
    padding: str | int | _Pair = 0,
    dilation: int | _Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Compute torch.conv2d with the same gradients; torch's own where the ones of here are not for it."""
    fixed = not weight.requires_grad and (bias is None or not bias.requires_grad)
    if not fixed or isinstance(padding, str) or not _is_usual(x, stride, dilation, groups):
        return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    # torch has no types for what it makes of a Function.
    result: Tensor = _Convolution.apply(x, weight, bias, pair(stride)[0], pair(padding))  # type: ignore[no-untyped-call]
    return result


class QuickTransposes(TorchFunctionMode):
    """Within it torch.conv_transpose2d is the one of here, for somebody else's code; weights get no gradient of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's own types
        function = _conv_transpose2d if func is torch.conv_transpose2d else func
        return function(*args, **(kwargs or {}))


def _conv_transpose2d(
    g: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | _Pair = 1,
    padding: int | _Pair = 0,
    output_padding: int | _Pair = 0,
    groups: int = 1,
    dilation: int | _Pair = 1,
) -> Tensor:
    if bias is not None or not _is_usual(g, stride, dilation, groups):
        return nn.functional.conv_transpose2d(g, weight, bias, stride, padding, output_padding, groups, dilation)
    step, pads = pair(stride)[0], pair(padding)
    sides = zip(g.shape[2:], pads, weight.shape[2:], pair(output_padding), strict=True)
    rows, columns = ((many - 1) * step - 2 * p + reach + more for many, p, reach, more in sides)
    result: Tensor = _Transposed.apply(g, weight, (rows, columns), step, pads)  # type: ignore[no-untyped-call]
    return result


def _is_usual(x: Tensor, stride: int | _Pair, dilation: int | _Pair, groups: int) -> bool:
    down, across = pair(stride)
    plain = groups == 1 and pair(dilation) == (1, 1) and down == across
    return plain and x.ndim == 4 and x.device.type == "cpu" and x.dtype == torch.float32


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: _Pair) -> Tensor:
        ctx.back = _transposed(weight, (x.shape[2], x.shape[3]), stride, padding)
        return nn.functional.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(gradients[0]), None, None, None, None


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, weight: Tensor, size: _Pair, stride: int, padding: _Pair) -> Tensor:
        ctx.back = partial(nn.functional.conv2d, weight=weight, stride=stride, padding=padding)
        return _transposed(weight, size, stride, padding)(g)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(gradients[0]), None, None, None, None


def _transposed(weight: Tensor, size: _Pair, stride: int, padding: _Pair) -> Callable[[Tensor], Tensor]:
    """Return the matrices that take the gradient by its output of a convolution to that by its input, of (rows, columns) `size`."""
    if weight.shape[1] <= _FEW:
        return partial(_by_matrices, weight=weight, size=size, stride=stride, padding=padding)
    return partial(_by_convolution, taps=_taps(weight, stride), size=size, stride=stride, padding=padding)


def _by_matrices(g: Tensor, weight: Tensor, size: _Pair, stride: int, padding: _Pair) -> Tensor:
    sides = zip(g.shape[2:], weight.shape[2:], padding, size, strict=True)
    ends = [((many - 1) * stride + reach, p + side) for many, reach, p, side in sides]
    reached = (ends[0][0], ends[1][0])
    summed = nn.functional.fold(weight.flatten(1).T @ g.flatten(2), reached, weight.shape[2:], stride=stride)
    behind = [max(0, needed - end) for end, needed in ends]  # the last positions give to nobody
    if any(behind):
        summed = nn.functional.pad(summed, (0, behind[1], 0, behind[0]))
    return summed[:, :, padding[0] : ends[0][1], padding[1] : ends[1][1]]


def _by_convolution(g: Tensor, taps: Tensor, size: _Pair, stride: int, padding: _Pair) -> Tensor:
    if stride > 1:  # a copy that what follows needs less time for
        g = g.contiguous(memory_format=torch.channels_last)
    sides = list(zip(size, padding, g.shape[2:], taps.shape[2:], strict=True))
    # In front and behind of g, so that q goes from that of the first position to that of the last.
    pads = [(reach - 1 - p // stride, (side - 1 + p) // stride - (many - 1)) for side, p, many, reach in sides]
    if all(before == behind >= 0 for before, behind in pads):
        result = nn.functional.conv2d(g, taps, padding=(pads[0][0], pads[1][0]))
    else:
        result = nn.functional.conv2d(nn.functional.pad(g, (*pads[1], *pads[0])), taps)
    if stride > 1:
        result = nn.functional.pixel_shuffle(result, stride)
        for dim, (side, p, *_) in enumerate(sides, 2):
            result = result.narrow(dim, p % stride, side)
    return result


def _taps(weight: Tensor, stride: int) -> Tensor:
    """Weights (inputs * stride^2, outputs, ...) of the convolution of the gradient."""
    rows, columns = (-(-size // stride) for size in weight.shape[2:])
    padded = nn.functional.pad(weight, (0, columns * stride - weight.shape[3], 0, rows * stride - weight.shape[2]))
    parts: Tensor = padded.unflatten(3, (columns, stride)).unflatten(2, (rows, stride)).flip(2, 4)  # (o, i, e, t, e, t)
    return parts.permute(1, 3, 5, 0, 2, 4).flatten(0, 2).contiguous()
