"""Sets of values that are affine in a few symbols, carried forwards through a network.

A form is centre + sum of slope_k e_k + an error of at most `radius`, for all e in [-1, 1]^P. The symbols are the parameters of a
transformation, so that a network is bounded as a function of them: what is left to the radius is the curvature alone, and
vanishes as a box of parameters is split. Source: zonotopes, Singh et al. 2018 (DeepZ), with the errors gathered in an interval.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, fx, nn

from windtunnel.assessments.verification.canonical.operators import Affine
from windtunnel.core.errors import IncompatibleError

_OUTSIDE = -1e9  # stands for what is no pixel, in max pooling


@dataclass(frozen=True, slots=True)
class AffineForm:
    """B sets of values. centre, radius: (B, ...); slopes: (B, P, ...)."""

    centre: Tensor
    slopes: Tensor
    radius: Tensor

    @property
    def reach(self) -> Tensor:
        """Largest distance of a value from the centre, (B, ...)."""
        return self.slopes.abs().sum(1) + self.radius

    def linear(
        self, apply: Callable[[Tensor], Tensor], absolute: Callable[[Tensor], Tensor], offset: Tensor | float
    ) -> AffineForm:
        """Return the form after a linear map, its absolute values for the radius, and an offset."""
        slopes = apply(self.slopes.flatten(0, 1))
        return AffineForm(
            apply(self.centre) + offset, slopes.view(*self.slopes.shape[:2], *slopes.shape[1:]), absolute(self.radius)
        )

    def plus(self, other: AffineForm, sign: float = 1.0) -> AffineForm:
        """Return the sum of two forms in the same symbols, or their difference."""
        return AffineForm(
            self.centre + sign * other.centre, self.slopes + sign * other.slopes, self.radius + other.radius
        )

    @classmethod
    def joined(cls, forms: Sequence[AffineForm], dim: int = 0) -> AffineForm:
        """Return forms in the same symbols, concatenated along dimension `dim` of their values (B, ...)."""
        behind = dim + 1 if dim > 0 else dim
        return cls(
            torch.cat([form.centre for form in forms], dim),
            torch.cat([form.slopes for form in forms], behind),
            torch.cat([form.radius for form in forms], dim),
        )

    def scaled(self, symbol: int, middle: Tensor, slope: Tensor, error: Tensor) -> AffineForm:
        """Return the form times middle + slope e_symbol, known to within `error`; each (B,)."""
        middle, slope, error = (t.view(-1, *[1] * (self.centre.ndim - 1)) for t in (middle, slope, error))
        slopes = self.slopes * middle[:, None]
        slopes[:, symbol] = slopes[:, symbol] + self.centre * slope
        rest = (slope.abs() + error) * self.reach + error * self.centre.abs()
        return AffineForm(self.centre * middle, slopes, self.radius * middle.abs() + rest)

    def relu(self, leak: float = 0.0) -> AffineForm:
        """Return the form of x where it is positive, else leak x: its chord where the sign is open."""
        reach = self.reach
        low, high = self.centre - reach, self.centre + reach
        open_ = (low < 0) & (high > 0)
        chord = (high - leak * low) / (high - low).clamp(min=1e-300)
        slope = torch.where(open_, chord, torch.where(low >= 0, torch.ones_like(low), leak))
        gap = torch.where(open_, (1 - slope) * high, 0.0)  # of the chord over the kink; below it where leak is above 1
        return AffineForm(
            slope * self.centre + gap / 2, self.slopes * slope[:, None], slope.abs() * self.radius + gap.abs() / 2
        )

    def smooth(self, function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> AffineForm:
        """Return the form of an increasing function whose derivative falls on both sides of 0."""
        reach = self.reach
        low, high = self.centre - reach, self.centre + reach
        slope = torch.minimum(derivative(low), derivative(high))
        f_low, f_high = function(low), function(high)
        offset, error = (f_low + f_high - slope * (low + high)) / 2, (f_high - f_low - slope * (high - low)) / 2
        return AffineForm(
            slope * self.centre + offset, self.slopes * slope[:, None], slope * self.radius + error.clamp(min=0)
        )

    def clamped(self) -> AffineForm:
        """Return the form of the values moved into [0, 1]."""
        one_less = self.relu()
        one_less = AffineForm(1 - one_less.centre, -one_less.slopes, one_less.radius).relu()
        return AffineForm(1 - one_less.centre, -one_less.slopes, one_less.radius)

    def max_pool(self, pool: nn.MaxPool2d) -> AffineForm:
        """Return the form of the largest value of each window: the likely winner, or the box of the window where that is tighter."""
        symbols = self.slopes.shape[1]
        centre = _windows(self.centre, pool, _OUTSIDE)  # (B, C, windows, h, w)
        slopes = _windows(self.slopes.flatten(0, 1), pool, 0.0)
        slopes = slopes.view(-1, symbols, *slopes.shape[1:])
        radius = _windows(self.radius, pool, 0.0)
        reach = slopes.abs().sum(1) + radius
        lowest, winner = (centre - reach).max(2, keepdim=True)
        won_centre, won_radius = centre.gather(2, winner), radius.gather(2, winner)
        won_slopes = slopes.gather(3, winner[:, None].expand(-1, symbols, -1, -1, -1, -1))
        ahead = centre - won_centre + (slopes - won_slopes).abs().sum(1) + radius + won_radius
        gap = ahead.scatter(2, winner, 0.0).amax(2).clamp(min=0)
        highest, lowest = (centre + reach).amax(2), lowest.squeeze(2)
        won = AffineForm(won_centre.squeeze(2) + gap / 2, won_slopes.squeeze(3), won_radius.squeeze(2) + gap / 2)
        is_box = (highest - lowest) / 2 < won.radius
        return AffineForm(
            torch.where(is_box, (highest + lowest) / 2, won.centre),
            torch.where(is_box[:, None], 0.0, won.slopes),
            torch.where(is_box, (highest - lowest) / 2, won.radius),
        )


def _windows(values: Tensor, pool: nn.MaxPool2d, outside: float) -> Tensor:
    """Return the values (B, C, k, h, w) of the windows of a max pooling, `outside` beyond the border."""
    (kh, kw), (sh, sw), (ph, pw) = (
        v if isinstance(v, tuple) else (v, v) for v in (pool.kernel_size, pool.stride, pool.padding)
    )
    padded = nn.functional.pad(values, (pw, pw, ph, ph), value=outside) if ph or pw else values
    h, w = (padded.shape[2] - kh) // sh + 1, (padded.shape[3] - kw) // sw + 1
    parts = [
        padded[:, :, i : i + sh * (h - 1) + 1 : sh, j : j + sw * (w - 1) + 1 : sw] for i in range(kh) for j in range(kw)
    ]
    return torch.stack(parts, 2)


class FormNetwork:
    """A traced network in float64 that takes forms. Raises IncompatibleError, in one line, for a layer that has no form."""

    def __init__(self, network: nn.Module, source: str) -> None:
        if not isinstance(network, fx.GraphModule):
            raise IncompatibleError(f"{source} cannot be traced to a graph, which certificates of transformations need")
        self._graph, self._source = copy.deepcopy(network).cpu().double().requires_grad_(False), source
        self._modules = {name: module for name, module in self._graph.named_modules() if name}
        end = next(node for node in self._graph.graph.nodes if node.op == "output").args[0]
        self._last = end[0] if isinstance(end, tuple | list) else end
        last = self._modules.get(str(self._last.target)) if self._last.op == "call_module" else None
        if not isinstance(last, nn.Linear):
            raise IncompatibleError(
                f"{source} does not end in a linear layer, which certificates of transformations need"
            )
        self._head = last
        for node in self._graph.graph.nodes:
            if node.op == "call_module":
                module = self._modules[str(node.target)]
                is_odd = isinstance(module, nn.MaxPool2d) and (module.ceil_mode or module.dilation not in (1, (1, 1)))
                if not isinstance(module, _KNOWN) or is_odd:
                    raise self._unknown(type(module).__name__)
            elif node.op not in ("placeholder", "output") and not _is_known(node):
                raise self._unknown(str(node.target))

    def _unknown(self, name: str) -> IncompatibleError:
        return IncompatibleError(
            f"certificates of transformations have no bound for {name} in {self._source}; use ReLU, sigmoid or tanh, "
            f"convolutions, linear layers, batch normalisation and pooling"
        )

    @torch.no_grad()
    def margins(self, form: AffineForm, label: int) -> Tensor:
        """Lower bounds (B, K - 1) of the label's logit minus each other one, over the images of a form (B, C, H, W)."""
        values: dict[fx.Node, AffineForm] = {}
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = form
            elif node is self._last:
                return self._bounded(values[node.args[0]], label)
            elif node.op == "call_module":
                values[node] = _through(self._modules[str(node.target)], values[node.args[0]])
            elif node.target in _MOVES:
                move = partial(_moved, node)
                values[node] = values[node.args[0]].linear(move, move, 0.0)
            elif node.target is torch.ops.aten.cat.default:
                values[node] = AffineForm.joined([values[part] for part in node.args[0]], *node.args[1:])
            elif node.op == "call_function":
                first, second = (values[argument] for argument in node.args[:2])
                values[node] = first.plus(second, _SUMS[node.target])
        raise AssertionError("a graph without an output")

    def _bounded(self, form: AffineForm, label: int) -> Tensor:
        others = [k for k in range(self._head.out_features) if k != label]
        weight = self._head.weight[label] - self._head.weight[others]
        offset = self._head.bias[label] - self._head.bias[others]
        result = form.linear(lambda t: t @ weight.T, lambda t: t @ weight.abs().T, offset)
        return result.centre - result.reach


_SUMS: dict[object, float] = {
    torch.add: 1.0,
    operator.add: 1.0,
    torch.ops.aten.add.Tensor: 1.0,
    torch.sub: -1.0,
    operator.sub: -1.0,
    torch.ops.aten.sub.Tensor: -1.0,
}
_MOVES = frozenset(
    (torch.ops.aten.permute.default, torch.ops.aten.transpose.int, torch.ops.aten.unsqueeze.default)
)  # they give the same values in another order or shape
_KNOWN = (
    nn.Conv2d,
    nn.Linear,
    nn.ReLU,
    nn.LeakyReLU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.Flatten,
    nn.Identity,
    nn.Sigmoid,
    nn.Tanh,
    nn.Sequential,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    Affine,
)


def _is_known(node: fx.Node) -> bool:
    """Return True for a sum of two values, a concatenation of some, or values that are moved, each sample's by themselves."""
    inputs = node.args[0] if node.target is torch.ops.aten.cat.default else node.args
    if node.target in _MOVES:
        inputs = node.args[:1]
    elif node.target not in _SUMS and node.target is not torch.ops.aten.cat.default:
        return False
    are_values = all(isinstance(value, fx.Node) and value.op != "get_attr" for value in inputs)  # type: ignore[union-attr]
    return are_values and not node.kwargs and (node.target in _SUMS or node.meta.get("shape") is not None)


def _moved(node: fx.Node, values: Tensor) -> Tensor:
    moved: Tensor = node.target(values, *node.args[1:])  # type: ignore[operator]
    return moved


def _through(module: nn.Module, form: AffineForm) -> AffineForm:
    """Return the form after one layer."""
    if isinstance(module, nn.Conv2d):
        offset = 0.0 if module.bias is None else module.bias[:, None, None]
        return form.linear(
            lambda t: module._conv_forward(t, module.weight, None),
            lambda t: module._conv_forward(t, module.weight.abs(), None),
            offset,
        )
    if isinstance(module, nn.Linear):
        offset = 0.0 if module.bias is None else module.bias
        return form.linear(lambda t: t @ module.weight.T, lambda t: t @ module.weight.abs().T, offset)
    if isinstance(module, nn.ReLU):
        return form.relu()
    if isinstance(module, nn.LeakyReLU):
        return form.relu(module.negative_slope)
    if isinstance(module, nn.MaxPool2d):
        return form.max_pool(module)
    if isinstance(module, nn.Sigmoid):
        return form.smooth(torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x))
    if isinstance(module, nn.Tanh):
        return form.smooth(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2)
    if isinstance(module, nn.Sequential):
        for inner in module:
            form = _through(inner, form)
        return form
    if isinstance(module, nn.Flatten):
        return form.linear(lambda t: t.flatten(1), lambda t: t.flatten(1), 0.0)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | Affine):
        zero = torch.zeros_like(form.centre[:1])
        offset, scale = module(zero), module(zero + 1) - module(zero)
        return form.linear(lambda t: t * scale, lambda t: t * scale.abs(), offset)
    return form.linear(module, module, 0.0)  # averages, and what changes nothing
