"""Steps of a graph for one sample as steps for any number of samples.

A value of shape (1, ...) gets shape (n, ...), any other shape s gets (n, *s): exact whatever the graph does with its first dimension.
A step whose inputs and outputs all have a first dimension of 1, and which leaves it alone, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windtunnel.boundary.models.onnx_operators import Attributes, Sized, Static, Unsupported

_SAMPLES = Sized(0, 1)  # the size of the batch
_RESHAPES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
# Operators whose first dimension holds independent rows.
_ROWWISE = {
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization",
    "InstanceNormalization", "GroupNormalization", "LRN", "PRelu", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth",
    "Gemm", "QGemm", "QLinearConv", "QLinearGlobalAveragePool", "QLinearAveragePool",
}  # fmt: skip
_PRODUCTS = {"MatMul", "QLinearMatMul"}
_AXIS = {"Split": 0, "Gather": 0, "ArgMax": 0, "ArgMin": 0, "LpNormalization": -1, "LayerNormalization": -1}
_AXIS |= {"QuantizeLinear": 1, "DequantizeLinear": 1}
_AXES = {"Slice": 3, "Pad": 3}  # position of the axes, of reductions 1


class Name(NamedTuple):
    """A tensor that a step takes: of an earlier step, or a buffer of the module."""

    name: str
    is_constant: bool


@dataclass(slots=True)
class GraphStep:
    """One node that runs in the forward pass. last: names that no later step needs."""

    operator: str
    attributes: Attributes
    inputs: tuple[Name | Static | None, ...]
    outputs: tuple[str, ...]
    last: tuple[str, ...] = ()


def _short(shape: Sequence[int]) -> list[Any]:
    return [_SAMPLES, *(shape[1:] if shape and shape[0] == 1 else shape)]


@dataclass(slots=True)
class SampleSteps:
    """Collects the steps for any number of samples. shapes: of every value and constant, for one sample."""

    shapes: Mapping[str, Sequence[int]]
    steps: list[GraphStep] = field(default_factory=list)

    def add(self, step: GraphStep) -> None:
        """Add what `step` does, for any number of samples."""
        names = {i: item for i, item in enumerate(step.inputs) if isinstance(item, Name)}
        inputs = {i: list(self.shapes[item.name]) for i, item in names.items() if not item.is_constant}
        outputs = [list(self.shapes[name]) for name in step.outputs if name]
        first = next(iter(inputs.values()))
        if step.operator in _RESHAPES:
            self._shaped(step.inputs[0], _short(first), _short(outputs[0]), step.outputs[0])
        elif step.operator in _ROWWISE:
            if step.attributes.get("transA") or not {*inputs} <= {0, 2}:
                raise Unsupported("multiplies two values of the input, transposed: export it as MatMul")
            self._emit(step, {i: [Sized(0, shape[0]), *shape[1:]] for i, shape in inputs.items()}, outputs)
        elif self._is_plain(step, names, inputs, outputs):
            self.steps.append(step)
        else:
            rank = max(len(self.shapes[item.name]) for item in names.values())
            self._emit(*self._with_samples(step, inputs, rank), outputs)

    def _is_plain(
        self, step: GraphStep, names: Mapping[int, Name], inputs: Mapping[int, list[int]], outputs: list[list[int]]
    ) -> bool:
        """Return True if the first dimension, of 1 everywhere, may become that of the samples."""
        rank = max(len(self.shapes[item.name]) for item in names.values())
        if not all(len(shape) == rank and shape[:1] == [1] for shape in inputs.values()):
            return False
        if not all(shape[:1] == [1] for shape in outputs):
            return False
        if step.operator == "Transpose":
            return bool(step.attributes.get("perm")) and step.attributes["perm"][0] == 0
        if step.operator == "Einsum":
            terms, result = _terms(step)
            letter = result[:1]
            return bool(letter) and all(
                (i in inputs) == (letter in t) == t.startswith(letter) for i, t in enumerate(terms)
            )
        if step.operator in _PRODUCTS:
            return rank > 2 or [*inputs] == [0]
        return step.operator == "Pad" or 0 not in {axis % rank for axis in _axes(step, rank)}

    def _with_samples(
        self, step: GraphStep, inputs: Mapping[int, list[int]], rank: int
    ) -> tuple[GraphStep, dict[int, list[Any]]]:
        """Return the step for values with a dimension of the samples before all others, and the shapes that it takes."""
        attributes, items = dict(step.attributes), list(step.inputs)
        if step.operator in _PRODUCTS:
            rank = max(rank, 2)
            inputs = {i: [*shape, 1] if i and len(shape) == 1 else shape for i, shape in inputs.items()}
        elif step.operator == "Transpose":
            attributes["perm"] = [0, *(i + 1 for i in attributes.get("perm") or reversed(range(rank)))]
        elif step.operator in {"Expand", "Tile"}:
            shape = items[1]
            assert isinstance(shape, Static)
            rank = max(rank, len(shape))
            items[1] = Static([1] * (1 + rank - len(shape)) + list(shape))
        elif step.operator == "Einsum":
            terms, result = _terms(step)
            letter = next(c for c in "abcdefghijklmnopqrstuvwxyz" if c not in attributes["equation"])
            batched = [letter + t if i in inputs else t for i, t in enumerate(terms)]
            attributes["equation"] = f"{','.join(batched)}->{letter}{result}"
            return GraphStep("Einsum", attributes, step.inputs, step.outputs), {
                i: [_SAMPLES, *shape] for i, shape in inputs.items()
            }
        elif axes := _axes(step, rank):
            axes = [axis + 1 if axis >= 0 else axis for axis in axes]
            position = _AXES.get(step.operator, 1)
            if step.operator not in _AXES and not step.operator.startswith("Reduce"):
                attributes["axis"] = axes[0]
            elif position < len(items) and items[position] is not None:
                items[position] = Static(axes)
            else:
                attributes["axes"] = axes
        shapes = {i: [_SAMPLES, *[1] * (rank - len(shape)), *shape] for i, shape in inputs.items()}
        return GraphStep(step.operator, attributes, tuple(items), step.outputs), shapes

    def _emit(self, step: GraphStep, shapes: Mapping[int, list[Any]], outputs: list[list[int]]) -> None:
        """Add a step that takes its inputs in `shapes`, and its outputs in the shapes that they have for samples."""
        items = list(step.inputs)
        for i, shape in shapes.items():
            item = items[i]
            assert isinstance(item, Name)
            items[i] = self._shaped(item, _short(self.shapes[item.name]), shape, f"{step.outputs[0]} input {i}")
        names = tuple(f"{name} of samples" for name in step.outputs)
        self.steps.append(GraphStep(step.operator, step.attributes, tuple(items), names))
        for name, inner, shape in zip(step.outputs, names, outputs, strict=True):
            self._shaped(Name(inner, False), None, _short(shape), name)

    def _shaped(self, item: Any, shape: list[Any] | None, target: list[Any], name: str) -> Name:
        """Return a value of `shape`, None for unknown, in the shape `target`."""
        if shape == target:
            self.steps.append(GraphStep("Identity", {}, (item,), (name,)))
        else:
            self.steps.append(GraphStep("Reshape", {"allowzero": 1}, (item, Static(target)), (name,)))
        return Name(name, False)


def _terms(step: GraphStep) -> tuple[list[str], str]:
    equation = step.attributes["equation"].replace(" ", "")
    if "->" not in equation:
        raise Unsupported("without -> is not read: write the dimensions of the result")
    operands, result = equation.split("->")
    return operands.split(","), result


def _axes(step: GraphStep, rank: int) -> list[int]:
    """Return the axes that a step is about, as its node counts them; none for an operator without."""
    if step.operator in _AXES or step.operator.startswith("Reduce"):
        items = [item for item in step.inputs[_AXES.get(step.operator, 1) :][:1] if item]
        axes = list(items[0]) if items else list(step.attributes.get("axes") or ())
        if axes or step.attributes.get("noop_with_empty_axes"):
            return axes
        starts = (*step.inputs[1:2], step.attributes.get("starts"))[0] if step.operator == "Slice" else None
        return list(range(len(starts) if isinstance(starts, list) else rank))
    if step.operator in {"Softmax", "LogSoftmax"}:
        return [step.attributes.get("axis", -1 if step.attributes["opset"] >= 13 else 1)]
    axis = step.attributes.get("axis", _AXIS.get(step.operator))
    return [] if axis is None else [axis]
