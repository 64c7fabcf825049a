"""auto-LiRPA: lower bounds of the margins of a batch of samples, and bounds of its logits.

Version 0.3, the newest on the registry, needs shims on torch 2 and numpy 2. Each applies only where it lacks a thing.
"""

from __future__ import annotations

import inspect
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from windtunnel.assessments.verification.bound_propagation.convolution import QuickTransposes
from windtunnel.assessments.verification.canonical.fold import layer_of
from windtunnel.assessments.verification.falsifier import ROUNDING
from windtunnel.assessments.verification.rows import LIRPA_METHODS
from windtunnel.core.batches import out_of_memory
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.references import quiet_library


def shim_auto_lirpa() -> None:
    """Put back what auto-LiRPA 0.3 imports. Call before its first import; harmless for versions that need none."""
    import torch.onnx.symbolic_helper as helper

    if "numpy.lib.arraysetops" not in sys.modules:  # numpy 2 removed it; auto-LiRPA 0.3 takes `isin` from it
        module = types.ModuleType("numpy.lib.arraysetops")
        vars(module)["isin"] = np.isin
        sys.modules["numpy.lib.arraysetops"] = module
    if not hasattr(helper, "_set_opset_version"):  # torch 2 moved the exporter's global opset version
        from torch.onnx._internal.torchscript_exporter._globals import GLOBALS

        vars(helper)["_set_opset_version"] = lambda version: setattr(GLOBALS, "export_onnx_opset_version", version)
    if not hasattr(torch._C.Node, "__getitem__"):  # torch 2 took attribute access by index from graph nodes
        node_get = vars(helper)["_node_get"]
        setattr(torch._C.Node, "__getitem__", lambda node, key: node_get(node, key))  # noqa: B010  mypy refuses the plain form
    _named_members_keyword()
    _convolution_of_an_l1_ball()
    _leaky_relu_of_negative_slope()
    _stable_units_stay_stable()


def _named_members_keyword() -> None:
    # torch 2 passes remove_duplicate, which auto-LiRPA 0.3's override lacks; CROWN meets it where nearly all units are unstable.
    from auto_LiRPA import BoundedModule

    original: Callable[..., Iterator[object]] = BoundedModule._named_members
    if "remove_duplicate" not in inspect.signature(original).parameters:
        BoundedModule._named_members = lambda self, *args, remove_duplicate=True, **more: original(self, *args, **more)


def _convolution_of_an_l1_ball() -> None:
    # 0.3 bounds a convolution of any Lp ball by the L2 norm of its kernel: of an L1 ball the dual norm is the maximum.
    from auto_LiRPA.operators.base import Interval
    from auto_LiRPA.operators.convolution import BoundConv

    original: Callable[..., tuple[torch.Tensor, torch.Tensor]] = BoundConv.interval_propagate
    if original.__module__ == __name__:
        return

    def interval_propagate(self: object, *v: object, C: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        lower, upper = original(self, *v, C=C)
        norm, *rest = Interval.get_perturbation(v[0])
        if norm != 1:
            return lower, upper
        weight: torch.Tensor = v[1][0]  # type: ignore[index]  # auto-LiRPA has no types
        radius, centre = weight.abs().amax((1, 2, 3)).view(1, -1, 1, 1) * rest[0], (lower + upper) / 2
        return centre - radius, centre + radius

    BoundConv.interval_propagate = interval_propagate


def _leaky_relu_of_negative_slope() -> None:
    # 0.3 takes every activation for monotonic: one of negative slope is convex, greatest at an end and least there or at its kink.
    from auto_LiRPA.operators.activation import BoundLeakyRelu

    if "interval_propagate" in vars(BoundLeakyRelu):
        return

    def interval_propagate(self: Any, *v: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        lower, upper = v[0]
        at_ends = self.forward(lower), self.forward(upper)
        nearest_kink = self.forward(lower.clamp(min=0).minimum(upper))
        return torch.minimum(*at_ends).minimum(nearest_kink), torch.maximum(*at_ends)

    BoundLeakyRelu.interval_propagate = interval_propagate


def _stable_units_stay_stable() -> None:
    # CROWN bounds the units that intervals leave unstable in any sample of a batch. Where they are stable in another one, its
    # looser bounds took the place of the intervals: what was found of a sample depended on the others.
    from auto_LiRPA import BoundedModule

    original: Callable[..., None] | None = getattr(BoundedModule, "restore_sparse_bounds", None)
    if original is None or original.__module__ == __name__:
        return

    def restore_sparse_bounds(
        self: object,
        node: Any,
        indices: object,
        size: int,
        low: torch.Tensor,
        up: torch.Tensor,
        *rest: object,
        **more: object,
    ) -> None:
        original(self, node, indices, size, low, up, *rest, **more)
        node.lower, node.upper = node.lower.maximum(low.view_as(node.lower)), node.upper.minimum(up.view_as(node.upper))

    BoundedModule.restore_sparse_bounds = restore_sparse_bounds


_P = {Norm.LINF: float("inf"), Norm.L2: 2.0, Norm.L1: 1.0}
# With these off, 0.3's alpha-CROWN indexes the wrong shapes; for CROWN the sparse bounds are the faster ones.
_DENSE = {"sparse_intermediate_bounds": False, "sparse_features_alpha": False, "sparse_spec_alpha": False}
# Where nearly all units are unstable it would bound all, and not look at intervals: of a sample that depends on the others of its batch.
_SPARSE = {"minimum_sparsity": 1.0}
# What this adapter calls, all the versions it was written for have it: 0.3 to 0.7.
_NEEDS = {"x", "C", "method", "bound_upper"}
# What auto-LiRPA raises for an operator it has no bound for, depending on the operator and on the version.
_UNSUPPORTED = (NotImplementedError, KeyError, AttributeError, ValueError, IndexError, TypeError, AssertionError)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one batch over its region.

    margins: float32 (n, K-1), lower bounds of logit(target) - logit(other class), other classes in class order.
    lower, upper: float32 (n, K), bounds of the logits themselves, for the figures. k: the criterion's, 1 but for top-k.
    """

    margins: Tensor
    lower: Tensor
    upper: Tensor
    k: int = 1

    def widened(self, slack: float) -> Bounds:
        """Bounds of every network whose logits are within `slack` of these."""
        return Bounds(self.margins - 2 * slack, self.lower - slack, self.upper + slack, self.k)

    @property
    def worst_margin(self) -> Tensor:
        """(n,) the k-th smallest margin bound, since fewer than k classes may exceed the label; NaN where one is NaN."""
        kth = self.margins.sort(1).values[:, self.k - 1]
        return torch.where(self.margins.isnan().any(1), torch.nan, kth)

    @property
    def verified(self) -> Tensor:
        """(n,) bool: all but k - 1 other classes are excluded, by more than float32 can lose."""
        return self.worst_margin > ROUNDING


def margin_matrix(targets: Tensor, num_classes: int) -> Tensor:
    """(n, K-1, K): row r of sample i is e_target - e_other, so that C @ logits are the margins over all other classes."""
    eye = torch.eye(num_classes)
    full = eye[targets][:, None, :] - eye[None]
    other_class = torch.ones(len(targets), num_classes, dtype=torch.bool).scatter(1, targets[:, None], value=False)
    return full[other_class].view(len(targets), num_classes - 1, num_classes)


def bound_batch(
    classifier: Classifier,
    inputs: Tensor,
    targets: Tensor,
    norm: Norm,
    epsilon: float | Tensor,
    method: str,
    *,
    logits: bool = True,
) -> Bounds:
    """Bound the margins of `inputs` (n, C, H, W) over the ball of `epsilon`, for Linf cut off at the image domain [0, 1].

    epsilon: one for all, or for Linf one a sample (n,). The margins are bounded themselves, by a specification matrix:
    the difference of two bounds would be far looser. The logits' own bounds are further rows of the same matrix, so
    that the layers inside are bounded once; `logits` false skips them (NaN).
    Raises IncompatibleError for an operator without a bound, and for a version that lacks what is called here.
    """
    lirpa = load_lirpa()
    k, x, margins = classifier.num_classes, inputs.to(classifier.device), margin_matrix(targets, classifier.num_classes)
    # alpha-CROWN optimises the sum over its rows: only the margins are to profit.
    optimised = method == "alpha-crown"
    rows = margins if optimised or not logits else _with_logits(margins)
    with quiet_library(), _parameters_as_they_were(classifier.module), torch.set_grad_enabled(optimised):
        try:
            bounds = _lower_bounds(lirpa, classifier.module, x, rows.to(x.device), norm, epsilon, method)
        except (*_UNSUPPORTED, RuntimeError) as error:
            if out_of_memory(error):
                raise
            raise IncompatibleError(_explained(classifier, x, norm, method, error)) from error
    bounds = bounds.detach().float().cpu()
    if not logits:
        lower = upper = torch.full((len(x), k), torch.nan)
    elif optimised:
        by_crown = bound_batch(classifier, inputs, targets, norm, epsilon, "crown")
        lower, upper = by_crown.lower, by_crown.upper
    else:
        bounds, lower, minus_upper = bounds.split((k - 1, k, k), 1)
        upper = -minus_upper
    return Bounds(bounds, lower, upper, classifier.criterion.k)


def _lower_bounds(
    lirpa: ModuleType, network: nn.Module, x: Tensor, rows: Tensor, norm: Norm, epsilon: float | Tensor, method: str
) -> Tensor:
    """Return auto-LiRPA's lower bounds (n, R) of rows (n, R, K) times the outputs of `network` over the balls around x."""
    options = _DENSE if method == "alpha-crown" else _SPARSE
    # A fresh module a batch: 0.3 keeps the intermediate bounds of the last batch.
    module = lirpa.BoundedModule(network, x[:1], bound_opts=options, device=str(x.device), verbose=False)
    _refuse_unsound(module, method, norm)
    _bound_stable_units_too(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the dual of L1 is a division by zero, and it means it
        ball = lirpa.BoundedTensor(x, lirpa.PerturbationLpNorm(**_ball(x, norm, epsilon)))
    with QuickTransposes():
        bounds: Tensor = module.compute_bounds(x=(ball,), C=rows, method=LIRPA_METHODS[method][0], bound_upper=False)[0]
    return bounds


@cache
def load_lirpa() -> ModuleType:
    """auto-LiRPA, whatever version is installed. Raises IncompatibleError where it lacks what is called here."""
    # auto-LiRPA 0.3 compiles with torch.jit.script at import, which torch 2.13 calls deprecated, and what it imports puts a
    # filter of its own before ours: so what is said at import is kept here, and not shown.
    with warnings.catch_warnings(record=True):
        try:
            shim_auto_lirpa()
            import auto_LiRPA
        except ImportError as error:
            raise IncompatibleError(f"auto-LiRPA is installed and cannot be imported: {error}") from error
    missing = _NEEDS - set(inspect.signature(auto_LiRPA.BoundedModule.compute_bounds).parameters)
    if missing:
        raise IncompatibleError(
            f"auto-LiRPA {auto_LiRPA.__version__}: compute_bounds has no {', '.join(sorted(missing))}, which windtunnel "
            f"needs; versions 0.3 to 0.7 have it"
        )
    module: ModuleType = auto_LiRPA
    return module


def _refuse_unsound(module: nn.Module, method: str, norm: Norm) -> None:
    """Raise NotImplementedError for what auto-LiRPA 0.3 bounds wrongly and without a word, found by random points."""
    nodes = list(vars(module)["_modules"].values())
    # Of an L2 or L1 ball only these know the radius; any other operator takes the ball for its centre.
    inside = {id(node) for node in nodes if type(node).__name__ == "BoundInput"}
    for node in nodes:
        kind = type(node).__name__
        if any(id(source) in inside for source in node.inputs):
            if kind in {"BoundFlatten", "BoundReshape"}:
                inside.add(id(node))
            elif norm is not Norm.LINF and kind not in {"BoundConv", "BoundLinear"}:
                raise NotImplementedError(
                    f"{kind.removeprefix('Bound')} at the input, which it bounds wrongly under {norm}"
                )
        if kind not in {"BoundAveragePool", "BoundMaxPool"}:
            continue
        if node.attr.get("ceil_mode"):
            raise NotImplementedError("pooling with ceil_mode, which it ignores")
        overlapping = list(node.kernel_size) != list(node.stride)
        if kind == "BoundAveragePool" and method != "ibp" and (overlapping or any(node.padding)):
            raise NotImplementedError("average pooling of overlapping or padded windows, whose linear bounds are wrong")
        if kind == "BoundMaxPool" and method.startswith("forward") and overlapping:
            raise NotImplementedError("max pooling of overlapping windows, whose forward bounds are wrong")


def _bound_stable_units_too(module: nn.Module) -> None:
    """Return where something takes the values of ReLUs that is neither linear nor a ReLU: max pooling, above all.

    Units that intervals show to be stable keep their intervals otherwise, which costs a ReLU nothing. Max pooling loses by it, and less
    where another sample of the batch has the unit bounded: bounds of a sample would depend on the others.
    """
    nodes = vars(module)["_modules"].values()
    if any(hasattr(node, "bound_relax") and type(node).__name__ != "BoundRelu" for node in nodes):
        vars(module)["bound_opts"]["sparse_intermediate_bounds"] = False


def _with_logits(margins: Tensor) -> Tensor:
    n, _, k = margins.shape
    eye = torch.eye(k).expand(n, k, k)
    return torch.cat([margins, eye, -eye], 1)


def _ball(x: Tensor, norm: Norm, epsilon: float | Tensor) -> dict[str, object]:
    if norm is Norm.LINF:
        radius = epsilon.to(x).view(-1, *[1] * (x.ndim - 1)) if isinstance(epsilon, Tensor) else epsilon
        low, high = (x - radius).clamp(0, 1), (x + radius).clamp(0, 1)
        return {"norm": _P[norm], "eps": float((high - low).max()) / 2, "x_L": low, "x_U": high}
    assert isinstance(epsilon, float)
    return {"norm": _P[norm], "eps": epsilon}


def call_of_bounds(
    x: Tensor, targets: Tensor, num_classes: int, norm: Norm, epsilon: float, method: str
) -> dict[str, object]:
    """Return the arguments of PerturbationLpNorm, BoundedModule and compute_bounds for the samples `x`, as `bound_batch` gives them."""
    optimised = method == "alpha-crown"
    margins = margin_matrix(targets, num_classes)
    return {
        "x": x,
        **_ball(x, norm, epsilon),
        "eps": epsilon,
        "C": margins if optimised else _with_logits(margins),
        "method": LIRPA_METHODS[method][0],
        "bound_upper": False,
        "bound_opts": _DENSE if optimised else _SPARSE,
    }


@contextmanager
def _parameters_as_they_were(module: nn.Module) -> Iterator[None]:
    """auto-LiRPA works on the model's own parameters, makes them require gradients, and leaves some behind."""
    before = [(parameter, parameter.requires_grad, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for parameter, required, gradient in before:
            parameter.requires_grad_(required)
            parameter.grad = gradient


def _explained(classifier: Classifier, x: Tensor, norm: Norm, method: str, error: Exception) -> str:
    """One line: which operator has no bound, why, and what can be done."""

    def fails(prefix: nn.Module) -> bool:
        try:
            row = torch.ones(1, 1, prefix(x[:1]).shape[1], device=x.device)
            _lower_bounds(load_lirpa(), prefix, x[:1], row, norm, 1e-3, method)
        except (*_UNSUPPORTED, RuntimeError):
            return True
        return False

    operator = culprit(classifier.module, fails)
    what = f"no bound for {operator} in {classifier.source}" if operator else f"no bound for {classifier.source}"
    reason = " ".join(str(error).split(". Please help")[0].split())[:160] or type(error).__name__
    return (
        f"auto-LiRPA {method} has {what} ({reason}); use ReLU, tanh or sigmoid, convolutions, linear layers, batch "
        f"normalisation and pooling without overlap there, windtunnel's branch-and-bound, which bounds more operators, or its smoothing, "
        f"which needs forward passes alone"
    )


_COMMON = (nn.Conv2d, nn.Linear, nn.ReLU, nn.Flatten, nn.BatchNorm1d, nn.BatchNorm2d)


def culprit(network: nn.Module, fails: Callable[[nn.Module], bool]) -> str:
    """Return the operator at which a network first `fails`, and where the user's module has it; empty where none can be named.

    Of a network that could not be traced all that are not common.

    Each kind of operator is tried once, at the end of the part of the network that leads to it. Where the part ends in a
    layer that every verifier knows, what it cannot be combined with came before.
    """
    if not isinstance(network, fx.GraphModule):
        leaves = [part for part in network.modules() if not next(part.children(), None)]
        return " or ".join(sorted({type(part).__name__ for part in leaves if not isinstance(part, _COMMON)}))
    tried, last = set(), ""
    for node in network.graph.nodes:
        if node.op not in ("call_module", "call_function") or not node.meta.get("value", True):
            continue
        layer = layer_of(network, node)
        kind = node.target if layer is None else repr(layer)
        if kind not in tried:
            tried.add(kind)
            if not isinstance(layer, _COMMON):
                last = str(node.meta.get("operator", node.name))
            if fails(_leading_to(network, node)):
                return last
    return ""


def _leading_to(network: fx.GraphModule, last: fx.Node) -> fx.GraphModule:
    """Return the part of a network that gives the value of `last`, flattened to (n, values)."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in network.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node is last:
            break
    graph.output(graph.call_function(torch.flatten, (copies[last], 1)))
    part = fx.GraphModule(network, graph)
    part.graph.eliminate_dead_code()
    part.recompile()
    return part
