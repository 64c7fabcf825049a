"""Forms that differ from one clean image only within a window: convolutions and pooling are computed there alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from windtunnel.assessments.verification.canonical.operators import Affine

OUTSIDE = -1e9  # stands for what is no pixel, in max pooling
_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.BatchNorm2d, nn.Identity)


@dataclass(frozen=True, slots=True)
class Window:
    """Rows and columns of a layer of B images, beyond which each image has the clean values.

    start: int64 (B, 2), the first row and column, which may lie outside of the layer. size: rows and columns. clean: (C, H, W).
    """

    start: Tensor
    size: tuple[int, int]
    clean: Tensor

    def crop(self, values: Tensor, other: Window, fill: float | None) -> Tensor:
        """Return the values in another window of the layer.

        Args:
            values: (B m, C, *self.size), m sets for each image.
            other: the window to return.
            fill: what lies outside of the layer; None for differences from the clean values, which are 0 outside of this window.

        Returns:
            (B m, C, *other.size).
        """
        if other is self:
            return values
        m, size = len(values) // len(self.start), other.size
        is_inside = is_real = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=values.device)
        clean = self.clean.expand(len(self.start), *self.clean.shape)
        for axis in (0, 1):
            at = other.start[:, axis, None] + torch.arange(size[axis], device=values.device)
            shape = [-1, 1, *(size[axis] if k == axis else 1 for k in (0, 1))]
            inner, real = at - self.start[:, axis, None], (at >= 0) & (at < self.clean.shape[1 + axis])
            is_inside = is_inside & ((inner >= 0) & (inner < self.size[axis])).view(shape)
            is_real = is_real & real.view(shape)
            column = inner.clamp(0, self.size[axis] - 1).view(shape).repeat_interleave(m, 0)
            values = values.take_along_dim(column, 2 + axis)
            clean = clean.take_along_dim(at.clamp(0, self.clean.shape[1 + axis] - 1).view(shape), 2 + axis)
        is_inside, is_real = (mask.repeat_interleave(m, 0) for mask in (is_inside, is_real))
        others = 0.0 if fill is None else clean.repeat_interleave(m, 0)
        return torch.where(is_real, torch.where(is_inside, values, others), fill or 0.0)

    def at(self, rows: Tensor) -> Window:
        """Return the window of the images `rows` alone."""
        return replace(self, start=self.start[rows])

    @property
    def whole(self) -> Window:
        """The window of all rows and columns."""
        height, width = self.clean.shape[1:]
        return replace(self, start=torch.zeros_like(self.start), size=(height, width))


@dataclass(frozen=True, slots=True)
class WindowStep:
    """A layer computed in a window: the values in `cropped`, `fill` outside of the layer, through `module`, are those in `result`."""

    source: Window
    cropped: Window
    fill: float
    module: nn.Module
    result: Window

    @classmethod
    def of(cls, module: nn.Module, source: Window, clean: Tensor) -> WindowStep | None:
        """Return the step through a layer whose clean values are `clean` (C, H, W); None for one that needs all the values."""
        is_affine = isinstance(module, Affine) and all(
            t.ndim == 0 or (t.ndim == 3 and t.shape[1:] == (1, 1)) for t in (module.scale, module.shift)
        )
        if is_affine or isinstance(module, _ELEMENTWISE):
            return cls(source, source, 0.0, module, replace(source, clean=clean))
        if not isinstance(module, nn.Conv2d | nn.MaxPool2d) or module.dilation not in (1, (1, 1)):
            return None
        if isinstance(module.padding, str) or (isinstance(module, nn.Conv2d) and module.padding_mode != "zeros"):
            return None
        kernel, stride, padding = (pair_of(value) for value in (module.kernel_size, module.stride, module.padding))
        size = tuple((h + k - 2) // s + 1 for h, k, s in zip(source.size, kernel, stride, strict=True))
        if any(n >= full for n, full in zip(size, clean.shape[1:], strict=True)):
            return None
        k, s, p = (torch.tensor(value, device=source.start.device) for value in (kernel, stride, padding))
        start = (source.start + p - k + s).div(s, rounding_mode="floor")  # of the first output that sees the window
        reach = tuple((n - 1) * s + k for n, k, s in zip(size, kernel, stride, strict=True))
        cropped = Window(start * s - p, (reach[0], reach[1]), source.clean)
        result = Window(start, (size[0], size[1]), clean)
        if isinstance(module, nn.MaxPool2d):
            return cls(source, cropped, OUTSIDE, nn.MaxPool2d(module.kernel_size, module.stride), result)
        inner = nn.Conv2d(
            module.in_channels, module.out_channels, kernel, stride, groups=module.groups, bias=module.bias is not None
        ).requires_grad_(False)
        inner.weight, inner.bias = module.weight, module.bias
        return cls(source, cropped, 0.0, inner, result)


def pair_of(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Return the value for rows and for columns."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])
