"""Convolutions whose gradient by the input, which carries linear bounds backwards, is a convolution again.

Torch's own takes two to four times as long as the convolution itself on a processor. Here it is one convolution of stride 1 for all
positions of the input modulo the stride: of position s a + r the sum over d of g[a + d] w[r + p - s d]; then they are put in their places.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from windtunnel.assessments.verification.branch_and_bound.activations import pair

_Pair = tuple[int, int]


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | _Pair = 1,
    padding: str | int | _Pair = 0,
    dilation: int | _Pair = 1,
    groups: int = 1,
) -> Tensor:
    """As torch.conv2d, whose gradients it has; torch's own where the ones of here are not for it."""
    fixed = not weight.requires_grad and (bias is None or not bias.requires_grad)
    usual = groups == 1 and pair(dilation) == (1, 1) and x.ndim == 4
    if not (fixed and usual) or isinstance(padding, str) or x.device.type != "cpu" or x.dtype != torch.float32:
        return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    # torch has no types for what it makes of a Function.
    found: Tensor = _Convolution.apply(x, weight, bias, pair(stride), pair(padding))  # type: ignore[no-untyped-call]
    return found


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: _Pair, padding: _Pair) -> Tensor:
        ctx.size, ctx.stride = tuple(x.shape[2:]), stride
        ctx.taps, ctx.least = _taps(weight, stride, padding)
        return nn.functional.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        pads: list[int] = []
        for axis in (1, 0):  # the last comes first
            many = -(-ctx.size[axis] // ctx.stride[axis])
            left = -ctx.least[axis]
            pads += [left, many + ctx.taps.shape[2 + axis] - 1 - left - g.shape[2 + axis]]
        if pads[0] == pads[1] >= 0 and pads[2] == pads[3] >= 0:
            found = nn.functional.conv2d(g, ctx.taps, padding=(pads[2], pads[0]))
        else:
            found = nn.functional.conv2d(nn.functional.pad(g, pads), ctx.taps)
        if ctx.stride != (1, 1):
            n, _, rows, columns = found.shape
            found = found.view(n, -1, *ctx.stride, rows, columns).permute(0, 1, 4, 2, 5, 3)
            found = found.reshape(n, -1, rows * ctx.stride[0], columns * ctx.stride[1])
            found = found[:, :, : ctx.size[0], : ctx.size[1]]
        return found, None, None, None, None


def _taps(weight: Tensor, stride: _Pair, padding: _Pair) -> tuple[Tensor, _Pair]:
    """(weights (inputs * stride * stride, outputs, ...) of the convolution of the gradient, the least d of each axis)."""
    (rows, top), (columns, left) = (
        _places(size, s, p) for size, s, p in zip(weight.shape[2:], stride, padding, strict=True)
    )
    taps = torch.einsum("oikl,kra,lsb->irsoab", weight, rows.to(weight), columns.to(weight))
    return taps.flatten(0, 2).contiguous(), (top, left)


def _places(size: int, stride: int, padding: int) -> tuple[Tensor, int]:
    """Along one axis: (bool (size, stride, D): the place in the kernel of a position modulo the stride and a d; the least d)."""
    least, most = -((size - 1 - padding) // stride), (stride - 1 + padding) // stride
    place = torch.arange(stride)[:, None] + padding - stride * torch.arange(least, most + 1)
    return torch.arange(size)[:, None, None] == place, least
