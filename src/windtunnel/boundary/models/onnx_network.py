"""The one reader of ONNX graphs: a file as a torch module of plain operations, for batches of any size.

What does not depend on the pixels is computed once, when the file is read: constants, and the shape arithmetic of older exporters.
Shapes are followed for one or two sizes of batch; a size that grows with the batch is kept as a + b * n. A small graph is run
on zeros, a large one on torch's `meta` device, which computes no values but imports torch's compiler. Who uses the module compares
it with onnxruntime (`onnx_gradients.compare`, `vnnlib.instance`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import inliner, numpy_helper
from torch import Tensor, nn

from windtunnel.boundary.models.onnx_operators import OPERATORS, Attributes, Sized, Static, Unsupported
from windtunnel.boundary.models.onnx_samples import GraphStep, Name, SampleSteps
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.references import first_line, foreign_errors

_SMALL = 1e9  # weights times pixels up to which a graph is run to follow its shapes: up to 0.3 s
_DOMAINS = {"", "ai.onnx", "com.microsoft"}
_COPIES = {"Cast", "CastLike", "Identity", "Dropout"}  # operators that may do nothing
# Why a graph that has one of these is refused, where its name alone does not say it.
_REASONS = {
    "DynamicQuantizeLinear": "scales by the range of the whole batch, so that a sample's answer depends on the others: "
    "quantise statically",
    "Loop": "repeats nodes: export the model without loops",
    "Scan": "repeats nodes: export the model without loops",
    "NonZero": "gives a result whose size depends on the pixels: export the model without it",
}
_REMEDY = "export the model with a dynamic batch, and with shapes that onnxruntime takes"


def has_batch(declared: Sequence[int], numbers: int | None) -> bool:
    """Return True if the first size that a graph declares, 0 for an open one, is that of the batch and not of a sample of `numbers`."""
    return math.prod(declared) != numbers or (len(declared) > 1 and math.prod(declared[1:]) == numbers)


@dataclass(frozen=True, slots=True)
class Value:
    """Shape, type and constant of a value of the graph, as far as they are known when it is read.

    Attributes:
        tensors: One for each size of batch that is followed; without meaning, or on the meta device, where the value depends on
            the pixels or its shape on the batch, else with its numbers.
        is_dynamic: True if the value is computed in the forward pass.
    """

    tensors: tuple[Tensor, ...]
    is_dynamic: bool

    @property
    def is_constant(self) -> bool:
        """True if the value is the same for every batch."""
        return not self.is_dynamic and all(
            tensor is self.tensors[0] or torch.equal(self.tensors[0], tensor) for tensor in self.tensors[1:]
        )


class OnnxNetwork(nn.Module):
    """An ONNX graph as torch operations. Inputs (N, *input_shape), logits (N, K), both of the graph's own type.

    Args:
        path: The file; weights beside it are read from its own folder.
        batch: The one size of batch that the module takes; None for any.
        shape: Sizes of a sample where the graph leaves them open.
        numbers: How many numbers a sample has, for a graph that may have no dimension for the batch, and several outputs, of
            which the first counts; None for a classifier, which has the one and not the other.

    Raises:
        UserError: the file is no graph with one input and one output.
        IncompatibleError: an operator that cannot be read, with its name and what to do.
    """

    def __init__(
        self, path: Path, batch: int | None = None, shape: Sequence[int] | None = None, *, numbers: int | None = None
    ) -> None:
        super().__init__()
        try:
            model = onnx.load(str(path))
            if model.functions:
                model = inliner.inline_local_functions(model)
        except Exception as error:  # protobuf raises many kinds for what is no ONNX file
            raise UserError(f"{path}: not an ONNX model ({first_line(error)})") from error
        graph, names = model.graph, {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in graph.input if value.name not in names]
        if len(inputs) != 1 or (len(graph.output) != 1 and numbers is None):
            raise UserError(
                f"{path}: has {len(inputs)} inputs and {len(graph.output)} outputs; a classifier has one of each"
            )
        tensor_type = inputs[0].type.tensor_type
        declared = [size.dim_value for size in tensor_type.shape.dim]
        self.has_batch = has_batch(declared, numbers)
        declared = declared if self.has_batch else [1, *declared]
        sizes = declared[1:]
        if not all(sizes) and shape is not None and len(shape) == len(sizes):
            sizes = [declared_size or size for declared_size, size in zip(sizes, shape, strict=True)]
        if not sizes or min(declared) < 0 or not all(sizes):
            text = [size.dim_param or size.dim_value for size in tensor_type.shape.dim]
            raise UserError(f"{path}: takes {text}; a dimension for the batch, then known sizes, are needed")
        self.input_shape = tuple(sizes)
        dtype = torch.from_numpy(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type))).dtype
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        work = math.prod(sizes[1:]) * sum(math.prod(tensor.dims) for tensor in graph.initializer)
        device = "cpu" if work <= _SMALL else "meta"
        if batch is None and declared[0] > 1:
            raise IncompatibleError(
                f"{path.name}: takes {declared[0]} samples at once: export the model for one sample"
            )
        reader = _Reader(path, opsets, batch, batch is None and declared[0] == 1, dtype, device)
        with foreign_errors(lambda error: f"{path}: is a graph that cannot be read ({first_line(error)})"):
            self.steps, constants = reader.read(graph, inputs[0].name, self.input_shape, self.has_batch)
        self.dtype, self._input, self._output = dtype, inputs[0].name, graph.output[0].name
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        n, values = x.shape[0], {self._input: x}
        for step in self.steps:
            arguments = [self._argument(item, values, n) for item in step.inputs]
            result = OPERATORS[step.operator](step.attributes, *arguments)
            if step.operator == "ConstantOfShape":
                result = result.to(x.device)
            elif step.operator == "Cast" and result.dtype in {torch.float32, torch.float64}:
                result = result.to(x.dtype)  # the module may run in float64
            values.update(zip(step.outputs, result if isinstance(result, tuple) else (result,), strict=False))
            for name in step.last:
                del values[name]
        logits = values[self._output]
        return logits if logits.ndim == 2 and logits.shape[0] == n else logits.reshape(n, -1)

    def _argument(self, item: Name | Static | None, values: Mapping[str, Tensor], n: int) -> Any:
        if isinstance(item, Name):
            return getattr(self, item.name) if item.is_constant else values[item.name]
        return None if item is None else item.at(n)


@dataclass(slots=True)
class _Reader:
    """Turns the nodes of a graph into steps; `values` holds what each value is known to be.

    batch: the one size of batch of the steps. is_single: the graph is for one sample, the steps for any number.
    """

    path: Path
    opsets: Mapping[str, int]
    batch: int | None
    is_single: bool
    dtype: torch.dtype
    device: str
    values: dict[str, Value] = field(default_factory=dict)
    steps: list[GraphStep] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of batch that are followed."""
        return (1,) if self.is_single else (self.batch,) if self.batch else (5, 7)

    def read(
        self, graph: onnx.GraphProto, name: str, shape: tuple[int, ...], has_batch: bool
    ) -> tuple[list[GraphStep], dict[str, Tensor]]:
        """Return the steps of the forward pass, and the buffers that they take; has_batch: of the input of the graph."""
        shapes = [(n, *shape) if has_batch else shape for n in self.sizes]
        inputs = tuple(torch.zeros(sizes, dtype=self.dtype, device=self.device) for sizes in shapes)
        self.values[name] = Value(inputs, True)
        self._nodes(graph)
        output = graph.output[0].name
        if output not in self.values or not self.values[output].is_dynamic:
            raise UserError(f"{self.path}: its output does not depend on its input")
        self._simplify(output)
        if self.is_single:
            value_shapes = {key: value.tensors[0].shape for key, value in self.values.items()}
            single = SampleSteps(value_shapes | {key: tensor.shape for key, tensor in self.constants.items()})
            for step in self.steps:
                try:
                    single.add(step)
                except Unsupported as error:
                    raise IncompatibleError(f"{self.path.name}: operator {step.operator} {error}") from error
            self.steps = single.steps
        needed = {output}
        steps: list[GraphStep] = []
        for step in reversed(self.steps):
            if needed.isdisjoint(step.outputs):
                continue
            names = [item.name for item in step.inputs if isinstance(item, Name) and not item.is_constant]
            step.last = tuple(dict.fromkeys(name for name in names if name not in needed))
            needed.update(names)
            steps.append(step)
        used = {item.name for step in steps for item in step.inputs if isinstance(item, Name) and item.is_constant}
        return steps[::-1], {name: tensor for name, tensor in self.constants.items() if name in used}

    def _nodes(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            try:
                self._set_constant(tensor.name, _tensor(tensor))
            except Unsupported as error:
                raise IncompatibleError(f"{self.path.name}: the constant '{tensor.name}' {error}") from error
        for node in graph.node:
            try:
                self._node(node)
            except (LookupError, ValueError, TypeError, RuntimeError) as error:
                if isinstance(error, Unsupported):
                    reason = str(error)
                else:  # torch's own, where a row does not do what the node asks for
                    reason = f"cannot be computed by torch ({type(error).__name__}: {first_line(error)}); {_REMEDY}"
                name = f" ('{node.name}')" if node.name else ""
                raise IncompatibleError(f"{self.path.name}: operator {node.op_type}{name} {reason}") from error

    def _set(self, name: str, tensors: Sequence[Tensor], is_dynamic: bool) -> None:
        if name:
            self.values[name] = Value(tuple(tensors), is_dynamic)

    def _set_constant(self, name: str, constant: Tensor) -> None:
        """Enter a constant, of float64 in the type of the graph's input: the module then runs in float32 and in float64."""
        constant = constant.to(self.dtype) if constant.dtype is torch.float64 else constant
        self._set(name, [constant] * len(self.sizes), False)

    def _node(self, node: onnx.NodeProto) -> None:
        attributes = {a.name: _attribute(a) for a in node.attribute}
        if node.op_type == "Constant":
            self._set_constant(node.output[0], _constant(attributes))
            return
        if node.op_type == "If":
            self._branch(node, attributes)
            return
        if node.op_type not in OPERATORS or node.domain not in _DOMAINS:
            reason = _REASONS.get(node.op_type, "is not read: export the model with operators that windtunnel reads")
            raise Unsupported(reason)
        opset = self.opsets.get(node.domain, self.opsets.get("ai.onnx", 1))
        for key, value in attributes.items():
            if not OPERATORS[node.op_type].takes(key, value):
                raise Unsupported(f"with {key} = {value} is not read; export it without")
        inputs = [self.values[name] if name else None for name in node.input]
        attributes |= {"opset": opset, "outputs": len(node.output)}
        if node.op_type in _COPIES and self._changes_nothing(node, attributes, inputs):
            return
        if node.op_type == "Squeeze" and len(inputs) == 1 and "axes" not in attributes and inputs[0] is not None:
            shapes = [tensor.shape for tensor in inputs[0].tensors]
            attributes["axes"] = [i for i, sizes in enumerate(zip(*shapes, strict=True)) if set(sizes) == {1}]
        if node.op_type == "Shape" or not any(value.is_dynamic for value in inputs if value is not None):
            constant = node.op_type != "Shape" and all(value.is_constant for value in inputs if value is not None)
            results = [self._call(node, attributes, inputs, h) for h in range(1 if constant else len(self.sizes))]
            results = results * len(self.sizes) if constant else results
            if len({result[0].shape for result in results}) == 1:
                for index, name in enumerate(node.output[: len(results[0])]):
                    self._set(name, [result[index] for result in results], False)
                return
        self._step(node, attributes, inputs)

    def _step(self, node: onnx.NodeProto, attributes: Attributes, inputs: Sequence[Value | None]) -> None:
        """Add a step of the forward pass."""
        static = OPERATORS[node.op_type].static
        items: list[Name | Static | None] = []
        for index, (name, value) in enumerate(zip(node.input, inputs, strict=False)):
            if value is None:
                items.append(None)
            elif index in static:
                items.append(self._numbers(value))
            elif value.is_dynamic:
                items.append(Name(name, False))
            elif value.is_constant:
                items.append(Name(self._buffer(name, value), True))
            else:
                raise Unsupported("computes with the size of the batch: export the model for one sample")
        results = [self._call(node, attributes, inputs, h) for h in range(len(self.sizes))]
        shapes = {tensor.shape for tensor in inputs[0].tensors} if inputs[0] else set[torch.Size]()
        if len(shapes) > len({result[0].shape for result in results}):
            raise Unsupported("mixes the samples of a batch: export the model with a dynamic batch")
        outputs = tuple(node.output[: len(results[0])])
        self.steps.append(GraphStep(node.op_type, attributes, tuple(items), outputs))
        for index, name in enumerate(outputs):
            self._set(name, [result[index].to(self.device) for result in results], True)

    def _call(
        self, node: onnx.NodeProto, attributes: Attributes, inputs: Sequence[Value | None], h: int
    ) -> tuple[Tensor, ...]:
        """Compute a node for one of the sizes of batch; where an input depends on the pixels, on the reader's device."""
        static = OPERATORS[node.op_type].static
        dynamic = any(value.is_dynamic for value in inputs if value is not None)
        arguments: list[Any] = []
        for index, value in enumerate(inputs):
            if value is None:
                arguments.append(None)
            elif index in static:
                arguments.append(self._numbers(value, h))
            else:
                arguments.append(value.tensors[h].to(self.device) if dynamic else value.tensors[h])
        with torch.no_grad():
            result = OPERATORS[node.op_type](attributes, *arguments)
        return result if isinstance(result, tuple) else (result,)

    def _changes_nothing(self, node: onnx.NodeProto, attributes: Attributes, inputs: Sequence[Value | None]) -> bool:
        """Give the output of a node that does nothing the value of its input, under its own name."""
        operand = inputs[0]
        if operand is None or not operand.is_dynamic:
            return False
        dtype = self._call(node, attributes, inputs, 0)[0].dtype
        return dtype is operand.tensors[0].dtype and self._alias(node.output[0], node.input[0])

    def _alias(self, name: str, of: str) -> bool:
        self.values[name] = self.values[of]
        if self.values[of].is_dynamic:
            self.steps.append(GraphStep("Identity", {}, (Name(of, False),), (name,)))
        return True

    def _branch(self, node: onnx.NodeProto, attributes: Attributes) -> None:
        """Read the branch of an If that is taken whatever the pixels are."""
        condition = self.values[node.input[0]]
        if not condition.is_constant:
            raise Unsupported("chooses by the values of its input what it computes: export the model without")
        graph = attributes["then_branch" if bool(condition.tensors[0]) else "else_branch"]
        self._nodes(graph)
        for name, inner in zip(node.output, graph.output, strict=True):
            self._alias(name, inner.name)

    def _numbers(self, value: Value, h: int | None = None) -> Static:
        """Return the numbers of a static input: for the size of batch number h, or for every size."""
        if value.is_dynamic:
            raise Unsupported(
                "takes a shape, an index or a bound that is computed from the pixels: export it as a constant"
            )
        if h is None and value.is_constant:
            h = 0
        tensors = value.tensors if h is None else value.tensors[h : h + 1]
        rows = zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
        return Static((self._sized(row) for row in rows), tensors[0].shape)

    def _sized(self, row: tuple[float, ...]) -> float | Sized:
        if len(row) == 1 or len(set(row)) == 1:
            return row[0]
        factor, rest = divmod(int(row[-1] - row[0]), self.sizes[-1] - self.sizes[0])
        constant = int(row[0]) - factor * self.sizes[0]
        if rest or any(constant + factor * n != size for n, size in zip(self.sizes, row, strict=True)):
            raise Unsupported("takes a size that does not grow evenly with the batch: export the model for one sample")
        return Sized(constant, factor)

    def _buffer(self, name: str, value: Value) -> str:
        if name not in self.buffers:
            self.buffers[name] = f"constant_{len(self.buffers)}"
            self.constants[self.buffers[name]] = value.tensors[0]
        return self.buffers[name]

    def _simplify(self, output: str) -> None:
        """Join what verifiers know as one operator alone: transpositions in a row, zero padding with a convolution, GELU, normalisation."""
        producers = {name: step for step in self.steps for name in step.outputs}
        uses: dict[str, int] = {output: 1}
        for step in self.steps:
            for item in step.inputs:
                if isinstance(item, Name):
                    uses[item.name] = uses.get(item.name, 0) + 1

        def source(name: str) -> tuple[str, GraphStep | None]:
            while (step := producers.get(name)) and step.operator == "Identity":
                name = step.inputs[0].name  # type: ignore[union-attr]
            return name, producers.get(name)

        def producer(item: object, operator: str) -> GraphStep | None:
            step = source(item.name)[1] if isinstance(item, Name) and not item.is_constant else None
            return step if step is not None and step.operator == operator else None

        for step in self.steps:
            if step.operator in {"Mul", "Div"} and (joined_step := self._composed(step, producer)):
                step.operator, step.inputs, step.attributes = joined_step
                continue
            if step.operator not in {"Transpose", "Conv", "Sign"} or not isinstance(step.inputs[0], Name):
                continue
            name, before = source(step.inputs[0].name)
            if step.operator == "Transpose" and before is not None and before.operator == "Transpose":
                inner, outer = before.attributes.get("perm"), step.attributes.get("perm")
                if inner and outer:
                    joined = [inner[i] for i in outer]
                    step.inputs = before.inputs
                    step.attributes = {**step.attributes, "perm": joined}
                    if joined == sorted(joined):
                        step.operator = "Identity"
            elif step.operator == "Sign" and before is not None and (inner := self._binarised(before, producers)):
                step.operator, step.inputs, step.attributes = "Binarise", (inner,), {}
            elif step.operator == "Conv" and before is not None and before.operator == "Pad":
                pads = _spatial_pads(before, self.values[name].tensors[0].ndim)
                auto = step.attributes.get("auto_pad", "NOTSET")
                if pads and auto in {"NOTSET", "VALID"}:
                    own_pads = (auto == "NOTSET" and step.attributes.get("pads")) or [0] * len(pads)
                    both = [a + b for a, b in zip(own_pads, pads, strict=True)]
                    step.attributes = {**step.attributes, "pads": both, "auto_pad": "NOTSET"}
                    step.inputs = (before.inputs[0], *step.inputs[1:])

    def _composed(
        self, step: GraphStep, producer: Callable[[object, str], GraphStep | None]
    ) -> tuple[str, tuple[Name | Static | None, ...], Attributes] | None:
        """Return (operator, inputs, attributes) of the GELU or standardisation that ends in `step`, which older opsets lack.

        producer: The step that makes an input, where it is of an operator.
        """
        x, other = step.inputs[:2]
        if step.operator == "Mul":
            for value, factor in ((x, other), (other, x)):
                half = producer(factor, "Mul")
                others = [item for item in half.inputs[:2] if self._number(item) != 1 / 2] if half else []
                total = producer(others[0] if len(others) == 1 else factor, "Add")
                for term, addend in (total.inputs[:2], total.inputs[1::-1]) if total else ():
                    erf = producer(term, "Erf") if self._number(addend) == 1 else None
                    scaled = producer(erf.inputs[0], "Div") if erf else None
                    if scaled and scaled.inputs[0] == value:
                        dtype = self.values[scaled.outputs[0]].tensors[0].dtype
                        off = abs(self._number(scaled.inputs[1]) - math.sqrt(2))
                        is_gelu = off <= max(1e-6, torch.finfo(dtype).eps / 2)  # rounded in text, or by its type
                        return ("Gelu" if len(others) == 1 else "TwiceGelu", (value,), {}) if is_gelu else None
            return None
        centred, root = producer(x, "Sub"), producer(other, "Sqrt")
        shifted = producer(root.inputs[0], "Add") if root else None
        variance = producer(shifted.inputs[0], "ReduceMean") if shifted else None
        squares = producer(variance.inputs[0], "Pow") if variance else None
        mean = producer(centred.inputs[1], "ReduceMean") if centred else None
        if not (centred and shifted and variance and squares and mean):
            return None
        axes = [list(part.attributes.get("axes") or (*part.inputs, None)[1] or ()) for part in (mean, variance)]
        rank = self.values[mean.outputs[0]].tensors[0].ndim
        last = sorted(int(axis) % rank for axis in axes[0]) == list(range(rank - len(axes[0]), rank))
        is_square = squares.inputs[0] == x and self._number(squares.inputs[1]) == 2
        epsilon = self._number(shifted.inputs[1])
        is_standard = is_square and mean.inputs[0] == centred.inputs[0] and epsilon >= 0
        if not (is_standard and axes[0] and last and axes[0] == axes[1]):
            return None
        return "Standardise", centred.inputs[:1], {"axis": -len(axes[0]), "epsilon": epsilon}

    def _number(self, item: object) -> float:
        """Return the one number of a constant input; NaN for anything else."""
        constant = self.constants[item.name] if isinstance(item, Name) and item.is_constant else None
        return float(constant) if constant is not None and constant.numel() == 1 else math.nan

    def _binarised(self, step: GraphStep, producers: Mapping[str, GraphStep]) -> Name | None:
        """Return x of sign(x) + c with 0 < c < 1, whose sign is 1 from x = 0 on and -1 below, as larq writes it."""
        if step.operator != "Add":
            return None
        for value, constant in (step.inputs, step.inputs[::-1]):
            if isinstance(value, Name) and isinstance(constant, Name) and constant.is_constant:
                sign, offset = producers.get(value.name), self.constants[constant.name]
                if sign is not None and sign.operator == "Sign" and bool(((offset > 0) & (offset < 1)).all()):
                    assert isinstance(sign.inputs[0], Name)
                    return sign.inputs[0]
        return None


def _spatial_pads(step: GraphStep, rank: int) -> list[int] | None:
    """Return the pads of height and width of a Pad that puts zeros around them alone; None for any other."""
    pads, value, axes = (*step.inputs[1:], None, None, None)[:3]
    if step.attributes.get("mode", "constant") != "constant":
        return None
    numbers: list[Any] | None = list(pads) if isinstance(pads, Static) else step.attributes.get("pads")
    fill = value[0] if isinstance(value, Static) and value else step.attributes.get("value", 0.0)
    if numbers is None or fill != 0 or any(isinstance(n, Sized) or n < 0 for n in numbers):
        return None
    all_pads, half = [0] * 2 * rank, len(numbers) // 2
    for i, axis in enumerate(axes if isinstance(axes, Static) else range(half)):
        dimension = int(axis) % rank
        all_pads[dimension], all_pads[dimension + rank] = int(numbers[i]), int(numbers[i + half])
    if any(all_pads[i] for i in (0, 1, rank, rank + 1)):
        return None
    return all_pads[2:rank] + all_pads[rank + 2 :]


def _tensor(proto: onnx.TensorProto) -> Tensor:
    array = numpy_helper.to_array(proto)
    try:
        return torch.from_numpy(np.array(array))
    except TypeError:  # a type that numpy has and torch has not
        raise Unsupported(f"holds {array.dtype} numbers, which are not read: export float32 or int8") from None


def _attribute(proto: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if proto.type in {proto.INTS, proto.FLOATS} else value


def _constant(attributes: Attributes) -> Tensor:
    types = {"value": None, "value_int": torch.int64, "value_float": torch.float32}
    for key, value in attributes.items():
        if key.removesuffix("s") in types:
            return torch.as_tensor(value, dtype=types[key.removesuffix("s")])
    raise Unsupported(f"holds {', '.join(attributes)}, which is not read: export the constant as a tensor")
