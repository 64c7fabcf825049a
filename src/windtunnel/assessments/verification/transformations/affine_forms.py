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
from windtunnel.assessments.verification.transformations.windows import OUTSIDE, Window, WindowStep, pair_of
from windtunnel.core.errors import IncompatibleError


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

    def cropped(self, window: Window, other: Window, fill: float) -> AffineForm:
        """Return the values in another window; outside of `window` they are clean, outside of the layer `fill`."""
        slopes = window.crop(self.slopes.flatten(0, 1), other, None)
        return AffineForm(
            window.crop(self.centre, other, fill),
            slopes.view(*self.slopes.shape[:2], *slopes.shape[1:]),
            window.crop(self.radius, other, None),
        )

    def relaxed(self, relaxation: FormRelaxation) -> AffineForm:
        """Return the form after a layer that the relaxation encloses."""
        slopes = relaxation.select(self.slopes.flatten(0, 1))
        return AffineForm(
            relaxation.slope * relaxation.select(self.centre) + relaxation.offset,
            slopes.view(*self.slopes.shape[:2], *slopes.shape[1:]) * relaxation.slope[:, None],
            relaxation.slope.abs() * relaxation.select(self.radius) + relaxation.error,
        )

    def relu(self, leak: float = 0.0) -> FormRelaxation:
        """Relax the values x where they are positive, else leak x: the chord where the sign is open."""
        low, high = self.centre - self.reach, self.centre + self.reach
        open_ = (low < 0) & (high > 0)
        chord = (high - leak * low) / (high - low).clamp(min=1e-300)
        slope = torch.where(open_, chord, torch.where(low >= 0, torch.ones_like(low), leak))
        gap = torch.where(open_, (1 - slope) * high, 0.0)  # of the chord over the kink; below it where leak is above 1
        return FormRelaxation(slope, gap / 2, gap.abs() / 2)

    def smooth(self, function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> FormRelaxation:
        """Relax an increasing function whose derivative falls on both sides of 0."""
        low, high = self.centre - self.reach, self.centre + self.reach
        slope = torch.minimum(derivative(low), derivative(high))
        f_low, f_high = function(low), function(high)
        offset, error = (f_low + f_high - slope * (low + high)) / 2, (f_high - f_low - slope * (high - low)) / 2
        return FormRelaxation(slope, offset, error.clamp(min=0))

    def clamped(self) -> AffineForm:
        """Return the form of the values moved into [0, 1]."""
        one_less = self.relaxed(self.relu())
        one_less = AffineForm(1 - one_less.centre, -one_less.slopes, one_less.radius)
        one_less = one_less.relaxed(one_less.relu())
        return AffineForm(1 - one_less.centre, -one_less.slopes, one_less.radius)

    def max_pool(self, pool: nn.MaxPool2d) -> tuple[FormRelaxation, Tensor, Tensor]:
        """Relax the largest value of each window: the likely winner, or the box of the window; and the ends of that box."""
        symbols = self.slopes.shape[1]
        centre = _windows(self.centre, pool, OUTSIDE)  # (B, C, windows, h, w)
        slopes = _windows(self.slopes.flatten(0, 1), pool, 0.0)
        slopes = slopes.view(-1, symbols, *slopes.shape[1:])
        radius = _windows(self.radius, pool, 0.0)
        reach = slopes.abs().sum(1) + radius
        lowest, winner = (centre - reach).max(2, keepdim=True)
        won_slopes = slopes.gather(3, winner[:, None].expand(-1, symbols, -1, -1, -1, -1))
        ahead = (
            centre - centre.gather(2, winner) + (slopes - won_slopes).abs().sum(1) + radius + radius.gather(2, winner)
        )
        gap = ahead.scatter(2, winner, 0.0).amax(2).clamp(min=0)
        highest, lowest = (centre + reach).amax(2), lowest.squeeze(2)
        is_box = highest - lowest < gap
        offset, error = torch.where(is_box, (highest + lowest) / 2, gap / 2), torch.minimum(highest - lowest, gap) / 2
        return FormRelaxation((~is_box).to(gap), offset, error, pool, winner), lowest, highest

    def within(self, low: Tensor, high: Tensor) -> AffineForm:
        """Return the form with the box from `low` to `high` in its place where that is tighter."""
        is_box = (high - low) / 2 < self.radius
        return AffineForm(
            torch.where(is_box, (high + low) / 2, self.centre),
            torch.where(is_box[:, None], 0.0, self.slopes),
            torch.where(is_box, (high - low) / 2, self.radius),
        )


@dataclass(frozen=True, slots=True)
class FormRelaxation:
    """Enclosure of a layer's values: slope * input + offset, to within `error`; each (B, ...).

    Of a max pooling the input is that of the likely `winner` (B, C, 1, h, w) in each window of `pool`.
    """

    slope: Tensor
    offset: Tensor
    error: Tensor
    pool: nn.MaxPool2d | None = None
    winner: Tensor | None = None

    def select(self, values: Tensor) -> Tensor:
        """Return the input of each output; of values (B m, ...), m of each set."""
        if self.pool is None or self.winner is None:
            return values
        winner = self.winner.repeat_interleave(len(values) // len(self.winner), 0)
        return _windows(values, self.pool, 0.0).gather(2, winner).squeeze(2)

    def at(self, rows: Tensor) -> FormRelaxation:
        """Return the sets `rows` alone."""
        winner = None if self.winner is None else self.winner[rows]
        return FormRelaxation(self.slope[rows], self.offset[rows], self.error[rows], self.pool, winner)


def _windows(values: Tensor, pool: nn.MaxPool2d, outside: float) -> Tensor:
    """Return the values (B, C, k, h, w) of the windows of a max pooling, `outside` beyond the border."""
    (kh, kw), (sh, sw), (ph, pw) = (pair_of(value) for value in (pool.kernel_size, pool.stride, pool.padding))
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
    def margins(
        self, form: AffineForm, label: int, threshold: float, window: Window | None = None
    ) -> tuple[Tensor, Tensor]:
        """Bound the least margin, the label's logit minus the best other one, over the images of a form (B, C, H, W).

        Carried forwards, where the errors of a layer are gathered in an interval. Where a margin does not exceed the threshold,
        margins are carried backwards too, so that every error counts by itself, as in a full zonotope.

        Args:
            form: the images, or what they are within the `window`.
            label: the class that is to lead.
            threshold: margin above which a bound need be no tighter.
            window: where the images differ from a clean one.

        Returns:
            Lower bounds (B,), and the slopes (B, P) of the margin with the least bound in each symbol, of the relaxed network.
        """
        steps, windows = self._steps_in(window)
        values: dict[fx.Node, AffineForm] = {}
        relaxations: dict[fx.Node, FormRelaxation] = {}
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = form
            elif node is self._last:
                break
            elif node.op == "call_module":
                module, inner = self._modules[str(node.target)], values[node.args[0]]
                if step := steps.get(node):
                    module, inner = step.module, inner.cropped(step.source, step.cropped, step.fill)
                values[node], relaxation = _through(module, inner)
                if relaxation is not None:
                    relaxations[node] = relaxation
            else:
                values[node] = _combined(node, values)
            if node in windows:
                values[node] = values[node].cropped(windows[node], windows[node].whole, 0.0)
        weight, offset = self._head_of(label)
        last = values[self._last.args[0]].linear(lambda t: t @ weight.T, lambda t: t @ weight.abs().T, offset)
        bounds, slopes = last.centre - last.reach, last.slopes
        rows = (bounds.amin(1) <= threshold).nonzero().flatten()
        if len(rows) and relaxations:
            part = AffineForm(form.centre[rows], form.slopes[rows], form.radius[rows])
            remaining = {node: relaxation.at(rows) for node, relaxation in relaxations.items()}
            tightened, slopes[rows] = self._backwards(part, remaining, label, window and window.at(rows))
            bounds[rows] = bounds[rows].maximum(tightened)
        least, worst = bounds.min(1)
        return least, slopes[torch.arange(len(worst)), :, worst]

    def _steps_in(self, window: Window | None) -> tuple[dict[fx.Node, WindowStep], dict[fx.Node, Window]]:
        """Return the layers that are computed in windows, and the window of each value that another layer needs as a whole."""
        steps: dict[fx.Node, WindowStep] = {}
        if window is None:
            return steps, {}
        reached: dict[fx.Node, Window] = {}
        clean: dict[fx.Node, Tensor] = {}
        for node in self._graph.graph.nodes:
            if node is self._last:
                break
            clean[node] = window.clean[None] if node.op == "placeholder" else self._value(node, clean)
            if node.op == "placeholder":
                reached[node] = window
                continue
            source = reached.get(node.args[0]) if node.op == "call_module" and len(node.args[0].users) == 1 else None
            module = self._modules[str(node.target)] if source else None
            if source and module and (step := WindowStep.of(module, source, clean[node][0])):
                steps[node], reached[node] = step, step.result
        return steps, {node: at for node, at in reached.items() if not all(user in steps for user in node.users)}

    def _value(self, node: fx.Node, values: dict[fx.Node, Tensor]) -> Tensor:
        """Return the value (B, ...) of a layer or a function of the graph."""
        if node.op == "call_module":
            value: Tensor = self._modules[str(node.target)](values[node.args[0]])  # type: ignore[index]
        else:
            value = node.target(*fx.map_arg(node.args, lambda n: values[n]))  # type: ignore[operator]
        return value

    def _head_of(self, label: int) -> tuple[Tensor, Tensor]:
        """Return weights (K - 1, F) and offsets (K - 1,) of the margins."""
        others = [k for k in range(self._head.out_features) if k != label]
        return self._head.weight[label] - self._head.weight[others], self._head.bias[label] - self._head.bias[others]

    def _backwards(
        self, form: AffineForm, relaxations: dict[fx.Node, FormRelaxation], label: int, window: Window | None
    ) -> tuple[Tensor, Tensor]:
        """Bound the margins of the relaxed network: its value less what each error and each symbol can take away.

        Returns:
            Lower bounds (B, K - 1), and the slopes (B, P, K - 1) of the margins in each symbol.
        """
        leaves, errors = [form.centre.clone().requires_grad_()], [form.radius]
        values: dict[fx.Node, Tensor] = {}
        steps, windows = self._steps_in(window)
        with torch.enable_grad():
            for node in self._graph.graph.nodes:
                if node.op == "placeholder":
                    values[node] = leaves[0]
                elif node is self._last:
                    break
                elif (step := steps.get(node)) or node in relaxations:
                    inner, module = values[node.args[0]], None
                    if step:
                        inner, module = step.source.crop(inner, step.cropped, step.fill), step.module
                    if node in relaxations:
                        relaxation = relaxations[node]
                        leaves.append(torch.zeros_like(relaxation.error).requires_grad_())
                        errors.append(relaxation.error)
                        values[node] = relaxation.slope * relaxation.select(inner) + relaxation.offset + leaves[-1]
                    elif module:
                        values[node] = module(inner)
                else:
                    values[node] = self._value(node, values)
                if node in windows:
                    values[node] = windows[node].crop(values[node], windows[node].whole, 0.0)
            weight, offset = self._head_of(label)
            margins = values[self._last.args[0]] @ weight.T + offset
        bounds = margins.detach().clone()
        slopes = form.slopes.new_zeros(*form.slopes.shape[:2], bounds.shape[1])
        for k in range(bounds.shape[1]):
            chosen = torch.zeros_like(bounds)
            chosen[:, k] = 1
            gradients = torch.autograd.grad(margins, leaves, chosen, retain_graph=True, allow_unused=True)
            for gradient, error in zip(gradients, errors, strict=True):
                if gradient is not None:
                    bounds[:, k] -= (gradient.abs() * error).flatten(1).sum(1)
            if gradients[0] is not None:
                slopes[:, :, k] = (gradients[0][:, None] * form.slopes).flatten(2).sum(2)
        return bounds - slopes.abs().sum(1), slopes


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


def _combined(node: fx.Node, values: dict[fx.Node, AffineForm]) -> AffineForm:
    """Return the form of a function of the graph that `_is_known`."""
    if node.target in _MOVES:
        move = partial(_moved, node)
        return values[node.args[0]].linear(move, move, 0.0)  # type: ignore[index]
    if node.target is torch.ops.aten.cat.default:
        return AffineForm.joined([values[part] for part in node.args[0]], *node.args[1:])  # type: ignore[union-attr,arg-type,index]
    first, second = (values[argument] for argument in node.args[:2])  # type: ignore[index]
    return first.plus(second, _SUMS[node.target])


def _through(module: nn.Module, form: AffineForm) -> tuple[AffineForm, FormRelaxation | None]:
    """Return the form after one layer, and the relaxation of a layer that is not linear."""
    if isinstance(module, nn.MaxPool2d):
        relaxation, low, high = form.max_pool(module)
        return form.relaxed(relaxation).within(low, high), relaxation
    if (relaxed := _relaxation(module, form)) is not None:
        return form.relaxed(relaxed), relaxed
    return _linear(module, form), None


def _relaxation(module: nn.Module, form: AffineForm) -> FormRelaxation | None:
    """Return the relaxation of an activation; None for a linear layer."""
    if isinstance(module, nn.ReLU):
        return form.relu()
    if isinstance(module, nn.LeakyReLU):
        return form.relu(module.negative_slope)
    if isinstance(module, nn.Sigmoid):
        return form.smooth(torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x))
    if isinstance(module, nn.Tanh):
        return form.smooth(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2)
    return None


def _linear(module: nn.Module, form: AffineForm) -> AffineForm:
    """Return the form after a linear layer."""
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
    if isinstance(module, nn.Flatten):
        return form.linear(lambda t: t.flatten(1), lambda t: t.flatten(1), 0.0)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | Affine):
        zero = torch.zeros_like(form.centre[:1])
        offset, scale = module(zero), module(zero + 1) - module(zero)
        return form.linear(lambda t: t * scale, lambda t: t * scale.abs(), offset)
    return form.linear(module, module, 0.0)  # averages, and what changes nothing
