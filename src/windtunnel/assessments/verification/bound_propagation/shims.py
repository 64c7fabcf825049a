"""Shims that auto-LiRPA 0.3, the newest on the registry, needs on torch 2 and numpy 2. Each applies only where it lacks a thing."""

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


def shim_auto_lirpa() -> None:
    """Put back what auto-LiRPA 0.3 imports. Call before its first import; harmless for versions that need none."""
    _numpy_arraysetops()
    _onnx_opset_setter()
    _node_getitem()
    _named_members_keyword()
    _convolution_of_an_l1_ball()
    _leaky_relu_of_negative_slope()
    _stable_units_stay_stable()


def _numpy_arraysetops() -> None:
    # numpy 2 removed numpy.lib.arraysetops; auto-LiRPA 0.3 takes `isin` from it.
    if "numpy.lib.arraysetops" not in sys.modules:
        module = types.ModuleType("numpy.lib.arraysetops")
        vars(module)["isin"] = np.isin
        sys.modules["numpy.lib.arraysetops"] = module


def _onnx_opset_setter() -> None:
    # torch 2 moved the exporter's global opset version.
    import torch.onnx.symbolic_helper as helper

    if not hasattr(helper, "_set_opset_version"):
        from torch.onnx._internal.torchscript_exporter._globals import GLOBALS

        def set_opset_version(version: int) -> None:
            GLOBALS.export_onnx_opset_version = version

        vars(helper)["_set_opset_version"] = set_opset_version


def _node_getitem() -> None:
    # torch 2 took attribute access by index from graph nodes.
    import torch.onnx.symbolic_helper as helper

    if not hasattr(torch._C.Node, "__getitem__"):
        node_get = vars(helper)["_node_get"]
        setattr(torch._C.Node, "__getitem__", lambda node, key: node_get(node, key))  # noqa: B010  mypy refuses the plain form


def _named_members_keyword() -> None:
    # torch 2 passes remove_duplicate, which auto-LiRPA 0.3's override lacks; CROWN meets it where nearly all units are unstable.
    from auto_LiRPA import BoundedModule

    original: Callable[..., Iterator[object]] = BoundedModule._named_members
    if "remove_duplicate" in inspect.signature(original).parameters:
        return

    def named_members(self: object, *args: object, remove_duplicate: bool = True, **kwargs: object) -> Iterator[object]:
        return original(self, *args, **kwargs)

    BoundedModule._named_members = named_members


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
