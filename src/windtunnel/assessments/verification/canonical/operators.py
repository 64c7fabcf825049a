"""ATen operators of an exported program as torch modules: one row for each kind that verifiers know."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, fx, nn

aten = torch.ops.aten
_DENSE = 4_000_000  # the most weights of a convolution that is written out in full


class Affine(nn.Module):
    """x * scale + shift, each broadcastable to one sample; float64. Folded into a neighbour wherever that is exact."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale.double())
        self.register_buffer("shift", shift.double())

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape as `x` (n, ...)."""
        return x * self.scale + self.shift


@dataclass(frozen=True, slots=True)
class Call:
    """One operator of the exported graph: its arguments by the names of its schema, and its shapes without the batch.

    given: Node for what depends on the input, Tensor for constants, or plain values.
    shape_in, shape_out: of one sample; None where the batch is not the first dimension.
    """

    given: Mapping[str, object]
    shape_in: tuple[int, ...] | None
    shape_out: tuple[int, ...] | None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return the shape (channels, height, width) of a sample. Raises NotImplementedError where it has another one."""
        if self.shape_in is None or len(self.shape_in) != 3:
            raise NotImplementedError
        channels, height, width = self.shape_in
        return channels, height, width

    def tensor(self, key: str) -> Tensor:
        """Return a constant tensor. Raises KeyError where the argument is none."""
        value = self.given.get(key)
        if not isinstance(value, Tensor):
            raise KeyError(key)
        return value

    def pair(self, key: str) -> tuple[int, int]:
        """Return an argument of one or two integers as two."""
        value = self.integers(key)
        return (value[0], value[-1])

    def integers(self, key: str) -> list[int]:
        """Return an argument of integers. Raises KeyError where it is something else."""
        value = self.given[key]
        if not isinstance(value, list | tuple):
            raise KeyError(key)
        return [*value]

    def number(self, key: str) -> float:
        """Return an argument that is one number. Raises KeyError where it is something else."""
        value = self.given[key]
        if not isinstance(value, int | float):
            raise KeyError(key)
        return value


Weighted = TypeVar("Weighted", nn.Conv2d, nn.Linear, nn.Conv2d | nn.BatchNorm2d | nn.BatchNorm1d)
# A row gives the module, and KeyError or NotImplementedError where the call is not what the module does.
Row = Callable[[Call], nn.Module]


def _conv(call: Call) -> nn.Module:
    weight, bias, padding = call.tensor("weight"), call.given["bias"], call.given["padding"]
    if _is_per_channel(call, weight):
        offset = bias if isinstance(bias, Tensor) else torch.zeros(len(weight))
        return Affine(weight.sum(1), offset.view(-1, 1, 1))
    groups = int(call.number("groups"))
    if groups > 1 and weight.numel() * groups <= _DENSE:  # Marabou overlooks groups
        weight, groups = _without_groups(weight, groups), 1
    dilation = call.pair("dilation")
    if not isinstance(padding, str) and weight.numel() * math.prod(dilation) <= _DENSE:  # nor does Marabou see dilation
        weight, dilation = _without_dilation(weight, dilation), (1, 1)
    layer = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        (weight.shape[2], weight.shape[3]),
        call.pair("stride"),
        padding if isinstance(padding, str) else call.pair("padding"),
        dilation,
        groups,
    ).double()
    return with_weights(layer, weight, bias)


def _without_dilation(weight: Tensor, dilation: tuple[int, int]) -> Tensor:
    """Return the kernel of a dilated convolution with the zeros between its weights."""
    corner = nn.functional.pad(weight.new_ones(1, 1), (0, dilation[1] - 1, 0, dilation[0] - 1))
    high, wide = ((size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True))
    plain: Tensor = torch.kron(weight, corner)[..., :high, :wide]
    return plain


def _without_groups(weight: Tensor, groups: int) -> Tensor:
    """Return the kernel (out, in / groups, h, w) of a grouped convolution as that of a plain one, (out, in, h, w)."""
    plain = [torch.block_diag(*kernel.chunk(groups)) for kernel in weight.flatten(2).unbind(2)]
    return torch.stack(plain, 2).view(len(weight), -1, *weight.shape[2:])


def _is_per_channel(call: Call, weight: Tensor) -> bool:
    """Return whether a convolution multiplies every channel by a number, as (pixel - mean) / std in the form of a layer does."""
    if weight.shape[2:] != (1, 1) or call.pair("stride") != (1, 1) or call.given["padding"] not in ([0, 0], "valid"):
        return False
    kernel = weight[..., 0, 0]
    if call.number("groups") == len(weight) and weight.shape[1] == 1:
        return True
    return kernel.shape[0] == kernel.shape[1] and torch.equal(kernel, torch.diag(kernel.diagonal()))


def _linear(call: Call) -> nn.Module:
    weight = call.tensor("weight")
    return with_weights(nn.Linear(weight.shape[1], weight.shape[0]).double(), weight, call.given["bias"])


def with_weights(layer: Weighted, weight: Tensor, bias: object) -> Weighted:
    """Return `layer` with this weight, and this bias; 0 where it is no tensor."""
    assert layer.bias is not None
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias if isinstance(bias, Tensor) else torch.zeros(len(weight)))
    return layer


def _batch_norm(call: Call) -> nn.Module:
    assert call.shape_in is not None
    mean, var = call.tensor("running_mean").double(), call.tensor("running_var").double()
    weight, bias = (
        value.double() if isinstance(value := call.given[key], Tensor) else default
        for key, default in (("weight", torch.ones_like(mean)), ("bias", torch.zeros_like(mean)))
    )
    scale = weight / (var + call.number("eps")).sqrt()
    shape = (-1, *[1] * (len(call.shape_in) - 1))
    return Affine(scale.view(shape), (bias - mean * scale).view(shape))


def _max_pool(call: Call) -> nn.Module:
    stride = call.pair("stride") if call.given["stride"] else call.pair("kernel_size")
    padding, dilation, ceil_mode = call.pair("padding"), call.pair("dilation"), bool(call.given["ceil_mode"])
    return nn.MaxPool2d(call.pair("kernel_size"), stride, padding, dilation, ceil_mode=ceil_mode)


def _average_pool(call: Call) -> nn.Module:
    kernel, padding = call.pair("kernel_size"), call.pair("padding")
    stride = call.pair("stride") if call.given["stride"] else kernel
    channels, *sides = call.image_shape
    sizes = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(sides, padding, kernel, stride, strict=True)]
    if call.shape_out is None or list(call.shape_out[1:]) != sizes or call.given["divisor_override"] is not None:
        raise NotImplementedError
    average = _averages(channels, kernel, stride, padding)
    if call.given["count_include_pad"] or not any(padding):
        return average
    ones = torch.ones(1, *sides, dtype=torch.float64)
    inside = nn.functional.avg_pool2d(ones, kernel, stride, padding)  # the share of each window that is no padding
    return nn.Sequential(average, Affine(1 / inside, torch.zeros_like(inside)))


def _averages(channels: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> nn.Module:
    """Average pooling as the convolution that it is: Marabou has no other, and auto-LiRPA's bounds of it are exact."""
    if kernel == stride == (1, 1) and padding == (0, 0):
        return nn.Identity()
    if channels**2 * math.prod(kernel) > _DENSE:
        return nn.AvgPool2d(kernel, stride, padding)
    layer = nn.Conv2d(channels, channels, kernel, stride, padding).double()
    eye = torch.eye(channels, dtype=torch.float64)[..., None, None]
    return with_weights(layer, eye.expand(-1, -1, *kernel) / math.prod(kernel), None)


def _adaptive_average_pool(call: Call) -> nn.Module:
    channels, window = _window(call)
    return _averages(channels, window, window, (0, 0))


def _window(call: Call) -> tuple[int, tuple[int, int]]:
    """(channels, window) of adaptive pooling whose windows are of one size, which is what a verifier can bound."""
    (channels, height, width), (rows, columns) = call.image_shape, call.pair("output_size")
    if height % rows or width % columns:
        raise NotImplementedError
    return channels, (height // rows, width // columns)


def _mean(call: Call) -> nn.Module:
    """Return the pooling of one window that a mean over height and width is."""
    channels, height, width = call.image_shape
    if call.given["dtype"] is not None or sorted(d % 4 for d in call.integers("dim")) != [2, 3]:
        raise NotImplementedError
    pool = _averages(channels, (height, width), (height, width), (0, 0))
    return pool if call.given["keepdim"] else nn.Sequential(pool, nn.Flatten())


def _reshape(call: Call) -> nn.Module:
    if call.shape_in is None or call.shape_out is None:
        raise NotImplementedError
    if call.shape_in == call.shape_out:
        return nn.Identity()
    if len(call.shape_out) != 1:
        raise NotImplementedError
    return nn.Flatten()


MODULES: dict[object, Row] = {
    aten.conv2d.default: _conv,
    aten.conv2d.padding: _conv,
    aten.linear.default: _linear,
    aten.batch_norm.default: _batch_norm,
    aten.relu.default: lambda _: nn.ReLU(),
    aten.leaky_relu.default: lambda call: nn.LeakyReLU(call.number("negative_slope")),
    aten.sigmoid.default: lambda _: nn.Sigmoid(),
    aten.tanh.default: lambda _: nn.Tanh(),
    aten.gelu.default: lambda call: nn.GELU(str(call.given["approximate"])),
    aten.max_pool2d.default: _max_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.adaptive_avg_pool2d.default: _adaptive_average_pool,
    aten.adaptive_max_pool2d.default: lambda call: nn.MaxPool2d(_window(call)[1]),
    aten.mean.dim: _mean,
    aten.flatten.using_ints: _reshape,
    aten.view.default: _reshape,
    aten.reshape.default: _reshape,
}
for _name in "dropout feature_dropout alpha_dropout clone contiguous detach alias lift_fresh_copy".split():
    MODULES[getattr(aten, _name).default] = lambda _: nn.Identity()


def _add(call: Call, sign: float = 1.0) -> nn.Module:
    factor = sign * call.number("alpha")
    if isinstance(call.given["self"], fx.Node):
        return _fitting(call, torch.ones(()), factor * _constant(call.given["other"]))
    return _fitting(call, torch.tensor(factor), _constant(call.given["self"]))


def _multiply(call: Call) -> nn.Module:
    other = call.given["other" if isinstance(call.given["self"], fx.Node) else "self"]
    return _fitting(call, _constant(other), torch.zeros(()))


def _divide(call: Call) -> nn.Module:
    if not isinstance(call.given["self"], fx.Node):
        raise NotImplementedError
    return _fitting(call, 1 / _constant(call.given["other"]), torch.zeros(()))


def _constant(value: object) -> Tensor:
    if not isinstance(value, Tensor | int | float):
        raise NotImplementedError
    return torch.as_tensor(value, dtype=torch.float64)


def _fitting(call: Call, scale: Tensor, shift: Tensor) -> nn.Module:
    """Return an Affine of constants that are broadcast over the batch and enlarge no sample."""
    shape = call.shape_in
    if shape is None or shape != call.shape_out:
        raise NotImplementedError
    fitted = []
    for constant in (scale, shift):
        missing = len(shape) - constant.ndim
        if math.prod(constant.shape[: max(0, -missing)]) != 1:
            raise NotImplementedError
        fitted.append(constant.reshape((1,) * missing + tuple(constant.shape[max(0, -missing) :])))
    return Affine(*fitted)


# Arithmetic of the input's values with constants; of two values it stays what it is.
ARITHMETIC: dict[object, Row] = {
    aten.add.Tensor: _add,
    aten.sub.Tensor: lambda call: _add(call, -1.0),
    aten.rsub.Scalar: lambda call: _fitting(call, torch.tensor(-call.number("alpha")), _constant(call.given["other"])),
    aten.mul.Tensor: _multiply,
    aten.div.Tensor: _divide,
    aten.neg.default: lambda call: _fitting(call, torch.tensor(-1.0), torch.zeros(())),
}


# These give their indices too, which a module in their place does not.
WITH_INDICES = frozenset({aten.adaptive_max_pool2d.default})

# What turns logits into probabilities and leaves their order as it is.
ENDINGS = frozenset({aten.softmax.int, aten.log_softmax.int, aten._softmax.default, aten._log_softmax.default})
