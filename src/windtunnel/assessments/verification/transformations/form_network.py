"""Networks that take affine forms: each layer in turn, the first ones jointly, and margins carried backwards."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, fx, nn

from windtunnel.assessments.verification.canonical.operators import Affine
from windtunnel.assessments.verification.transformations.affine_forms import AffineForm, FormRelaxation, pool_windows
from windtunnel.assessments.verification.transformations.convex_block import ConvexBounds, Corners
from windtunnel.assessments.verification.transformations.windows import OUTSIDE, Window, WindowStep
from windtunnel.core.errors import IncompatibleError

LinearMap = Callable[[Tensor], Tensor]


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
        self._start, *nodes = list(self._graph.graph.nodes)
        self._nodes = nodes[: nodes.index(self._last)]
        self._block = _convex_block(self._start, self._modules, self._last)
        self._behind_block = next(iter(self._block[-1].users)) if self._block else None
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
        route = self._route(window)
        if at := route.windows.get(self._start):
            form = form.cropped(at, at.whole, 0.0)
        values: dict[fx.Node, AffineForm] = {self._start: form}
        relaxations: dict[fx.Node, FormRelaxation] = {}
        convex = self._convex_bounds(form, route) if window and self._block else None
        for node in self._nodes:
            is_behind = node is self._behind_block
            if convex and is_behind:
                values[node] = self._behind(node, convex, route)
            elif not convex or node not in self._block:
                self._carry(node, values, route, relaxations)
        weight, offset = self._head_of(label)
        last = values[self._last.args[0]].linear(lambda t: t @ weight.T, lambda t: t @ weight.abs().T, offset)
        bounds, slopes = last.centre - last.reach, last.slopes
        rows = (bounds.amin(1) <= threshold).nonzero().flatten()
        if len(rows) and relaxations:
            part = AffineForm(form.centre[rows], form.slopes[rows], form.radius[rows])
            remaining = {node: relaxation.at(rows) for node, relaxation in relaxations.items()}
            tightened, slopes[rows] = self._backwards(
                part, remaining, label, route.at(rows), convex and convex.at(rows)
            )
            bounds[rows] = bounds[rows].maximum(tightened)
        least, worst = bounds.min(1)
        return least, slopes[torch.arange(len(worst)), :, worst]

    def _carry(
        self, node: fx.Node, values: dict[fx.Node, AffineForm], route: Route, relaxations: dict[fx.Node, FormRelaxation]
    ) -> None:
        """Enter the form behind a layer or a function of the graph in `values`.

        A layer that is not linear takes its relaxation from `relaxations`; one that has none there is relaxed, and enters it.
        """
        if node.op == "call_module":
            module, inner = self._modules[str(node.target)], values[node.args[0]]  # type: ignore[index]
            if step := route.steps.get(node):
                module, inner = step.module, inner.cropped(step.source, step.cropped, step.fill)
            if node in relaxations:
                values[node] = inner.relaxed(relaxations[node])
            else:
                values[node], relaxation = _through(module, inner)
                if relaxation is not None:
                    relaxations[node] = relaxation
        else:
            values[node] = _combined(node, values)
        if at := route.windows.get(node):
            values[node] = values[node].cropped(at, at.whole, 0.0)

    def _convex_bounds(self, form: AffineForm, route: Route) -> ConvexBounds:
        """Bound the values behind the first nonlinear layers jointly, see `convex_block`."""
        lower = self._tangents(form, route)
        corners = Corners.of(lower.slopes.abs().flatten(2).sum(2).mean(0))
        values, relaxations = {self._start: corners.forms(form)}, dict[fx.Node, FormRelaxation]()
        for node in self._block:
            self._carry(node, values, route, relaxations)
        top, sizes = values[self._block[-1]], (len(form.centre), len(corners.signs))
        return ConvexBounds(
            corners, lower, (top.centre + top.radius).unflatten(0, sizes), top.slopes.unflatten(0, sizes)
        )

    def _tangents(self, form: AffineForm, route: Route) -> AffineForm:
        """Return planes below the values of the convex block: their tangents where all symbols are 0."""
        values = {self._start: form}
        for node in self._block:
            module, inner = self._modules[str(node.target)], values[node.args[0]]
            tangent: dict[fx.Node, FormRelaxation] = {}
            if isinstance(module, nn.MaxPool2d):
                if step := route.steps.get(node):
                    module, inner = step.module, inner.cropped(step.source, step.cropped, step.fill)
                winner = pool_windows(inner.centre, module, OUTSIDE).argmax(2, keepdim=True)
                ones = torch.ones_like(winner.squeeze(2), dtype=inner.centre.dtype)
                tangent[node] = FormRelaxation(ones, 0 * ones, 0 * ones, module, winner)
            elif isinstance(module, nn.ReLU | nn.LeakyReLU):
                slope = torch.where(inner.centre > 0, 1.0, getattr(module, "negative_slope", 0.0)).to(inner.centre)
                tangent[node] = FormRelaxation(slope, 0 * slope, 0 * slope)
            self._carry(node, values, route, tangent)
        plane = values[self._block[-1]]
        return replace(plane, centre=plane.centre - plane.radius, radius=torch.zeros_like(plane.radius))

    def _behind(self, node: fx.Node, convex: ConvexBounds, route: Route) -> AffineForm:
        """Return the form behind the linear layer that follows the block of convex functions."""
        module, step = self._modules[str(node.target)], route.steps.get(node)

        def crop(values: Tensor, is_difference: bool) -> Tensor:
            return step.source.crop(values, step.cropped, None if is_difference else step.fill) if step else values

        form = convex.mapped(crop, *_maps(step.module if step else module, convex.lower.centre))
        at = route.windows.get(node)
        return form.cropped(at, at.whole, 0.0) if at else form

    def _route(self, window: Window | None) -> Route:
        """Return which layers are computed in windows."""
        if window is None:
            return Route({}, {})
        steps: dict[fx.Node, WindowStep] = {}
        reached: dict[fx.Node, Window] = {self._start: window}
        clean: dict[fx.Node, Tensor] = {self._start: window.clean[None]}
        for node in self._nodes:
            clean[node] = self._value(node, clean)
            source = reached.get(node.args[0]) if node.op == "call_module" and len(node.args[0].users) == 1 else None
            module = self._modules[str(node.target)] if source else None
            if source and module and (step := WindowStep.of(module, source, clean[node][0])):
                steps[node], reached[node] = step, step.result
        windows = {node: at for node, at in reached.items() if not all(user in steps for user in node.users)}
        return Route(steps, windows)

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
        self,
        form: AffineForm,
        relaxations: dict[fx.Node, FormRelaxation],
        label: int,
        route: Route,
        convex: ConvexBounds | None,
    ) -> tuple[Tensor, Tensor]:
        """Bound the margins of the relaxed network: its value less what each error and each symbol can take away.

        Returns:
            Lower bounds (B, K - 1), and the slopes (B, P, K - 1) of the margins in each symbol.
        """
        start = torch.zeros_like(convex.lower.centre) if convex else form.centre.clone()
        leaves, errors = [start.requires_grad_()], [torch.zeros_like(start) if convex else form.radius]
        values = {self._block[-1] if convex else self._start: start}
        with torch.enable_grad():
            for node in self._nodes:
                if convex and node in self._block:
                    continue
                if (step := route.steps.get(node)) or node in relaxations:
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
                if at := route.windows.get(node):
                    values[node] = at.crop(values[node], at.whole, 0.0)
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
            if convex:
                coefficients = torch.zeros_like(start) if gradients[0] is None else gradients[0]
                least, slopes[:, :, k] = convex.minimum(coefficients)
                bounds[:, k] += least
            elif gradients[0] is not None:
                slopes[:, :, k] = (gradients[0][:, None] * form.slopes).flatten(2).sum(2)
        return bounds if convex else bounds - slopes.abs().sum(1), slopes


def _convex_block(start: fx.Node, modules: dict[str, nn.Module], last: fx.Node) -> tuple[fx.Node, ...]:
    """Return the layers after `start` up to the first linear one behind a nonlinear one, if each is convex in the input; else none."""
    block: list[fx.Node] = []
    node, is_convex = start, False
    while len(node.users) == 1 and (node := next(iter(node.users))).op == "call_module" and node is not last:
        module = modules[str(node.target)]
        if isinstance(module, nn.Conv2d | nn.Linear) and is_convex:
            return tuple(block)
        leak = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
        is_convex_activation = isinstance(module, nn.ReLU | nn.LeakyReLU | nn.MaxPool2d) and 0 <= leak <= 1
        is_linear = isinstance(module, _LINEAR) and not is_convex
        if not is_convex_activation and not is_linear and not isinstance(module, nn.Flatten | nn.Identity):
            break
        is_convex |= is_convex_activation
        block.append(node)
    return ()


@dataclass(frozen=True, slots=True)
class Route:
    """Windows in which the layers of a network are computed.

    steps: the layers that are computed in windows. windows: of each value that another layer needs as a whole.
    """

    steps: dict[fx.Node, WindowStep]
    windows: dict[fx.Node, Window]

    def at(self, rows: Tensor) -> Route:
        """Return the route of the images `rows` alone."""
        steps = {
            node: replace(step, source=step.source.at(rows), cropped=step.cropped.at(rows))
            for node, step in self.steps.items()
        }
        return Route(steps, {node: window.at(rows) for node, window in self.windows.items()})


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


_LINEAR = (nn.Conv2d, nn.Linear, nn.AvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d, Affine)


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
    return form.linear(*_maps(module, form.centre))


def _maps(module: nn.Module, values: Tensor) -> tuple[LinearMap, LinearMap, Tensor | float]:
    """Return a linear layer's map of `values` (B, ...) without its offset, the map of its absolute values, and the offset."""
    if isinstance(module, nn.Conv2d):
        offset = 0.0 if module.bias is None else module.bias[:, None, None]
        weight, size = module.weight, module.weight.abs()
        return lambda t: module._conv_forward(t, weight, None), lambda t: module._conv_forward(t, size, None), offset
    if isinstance(module, nn.Linear):
        offset = 0.0 if module.bias is None else module.bias
        return lambda t: t @ module.weight.T, lambda t: t @ module.weight.abs().T, offset
    if isinstance(module, nn.Flatten):
        return lambda t: t.flatten(1), lambda t: t.flatten(1), 0.0
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | Affine):
        zero = torch.zeros_like(values[:1])
        offset, scale = module(zero), module(zero + 1) - module(zero)
        return lambda t: t * scale, lambda t: t * scale.abs(), offset
    return module, module, 0.0  # averages, and what changes nothing
