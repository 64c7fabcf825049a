"""Convolutions whose gradient by the input, which carries linear bounds backwards, is a convolution again.

Torch's own takes two to four times as long as the convolution itself on a processor. Here it is one convolution of stride 1: the
position s q + t of the padded input gets the sum over e of g[q - e] w[s e + t], all t < s at once; then they are put in their places.
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
    down, across = pair(stride)
    usual = groups == 1 and pair(dilation) == (1, 1) and x.ndim == 4 and down == across
    if not (fixed and usual) or isinstance(padding, str) or x.device.type != "cpu" or x.dtype != torch.float32:
        return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    # torch has no types for what it makes of a Function.
    found: Tensor = _Convolution.apply(x, weight, bias, down, pair(padding))  # type: ignore[no-untyped-call]
    return found


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: _Pair) -> Tensor:
        ctx.size, ctx.stride, ctx.padding = x.shape[2:], stride, padding
        ctx.taps = _taps(weight, stride)
        return nn.functional.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), stride, taps = gradients, ctx.stride, ctx.taps
        if stride > 1:  # a copy that what follows needs less time for
            g = g.contiguous(memory_format=torch.channels_last)
        sides = list(zip(ctx.size, ctx.padding, g.shape[2:], taps.shape[2:], strict=True))
        # In front and behind of g, so that q goes from that of the first position to that of the last.
        pads = [(reach - 1 - p // stride, (size - 1 + p) // stride - (many - 1)) for size, p, many, reach in sides]
        if all(before == behind >= 0 for before, behind in pads):
            found = nn.functional.conv2d(g, taps, padding=(pads[0][0], pads[1][0]))
        else:
            found = nn.functional.conv2d(nn.functional.pad(g, (*pads[1], *pads[0])), taps)
        if stride > 1:
            found = nn.functional.pixel_shuffle(found, stride)
            for dim, (size, p, *_) in enumerate(sides, 2):
                found = found.narrow(dim, p % stride, size)
        return found, None, None, None, None


def _taps(weight: Tensor, stride: int) -> Tensor:
    """Weights (inputs * stride^2, outputs, ...) of the convolution of the gradient."""
    rows, columns = (-(-size // stride) for size in weight.shape[2:])
    whole = nn.functional.pad(weight, (0, columns * stride - weight.shape[3], 0, rows * stride - weight.shape[2]))
    parts: Tensor = whole.unflatten(3, (columns, stride)).unflatten(2, (rows, stride)).flip(2, 4)  # (o, i, e, t, e, t)
    return parts.permute(1, 3, 5, 0, 2, 4).flatten(0, 2).contiguous()
