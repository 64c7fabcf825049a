"""Put what `model.head` and `model.output` describe behind a model: as a module, or inside an ONNX graph.

Probabilities become logits. A binary head with output z, and one label of a multi-label head, become the two logits [0, z].
They are made by a linear layer, which every attack, bound and solver can handle.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from windtunnel.boundary.models.record import HeadRecord
from windtunnel.core.errors import IncompatibleError, UserError, unknown_word
from windtunnel.params.model import Model

LEAST_OF_CLASSES = 1e-12  # among the probabilities of all classes, as of a predict function
LEAST_PROBABILITY = 1e-7  # float32 has no probabilities between 1 - 6e-8 and 1
_PREFIX = "windtunnel_head_"


def head_of(model: Model) -> HeadRecord | None:
    """Return the record of `model.head` and `model.output`; None for logits of softmax as the only output."""
    head = model.head
    if head.kind == "softmax" and model.output is None and (head.output != "probability" or model.source == "function"):
        return None
    default = "probability" if model.source == "function" else "logit"
    labels = head.labels or []
    return HeadRecord(
        kind=head.kind,
        output=head.output or default,
        is_output_stated=head.output is not None or model.source == "function",
        threshold=head.threshold,
        top_k=head.top_k or 1,
        outputs={"binary": 1, "multi_label": len(labels)}.get(head.kind),
        column=labels.index(head.label) if head.label else 0,
        output_name=model.output,
    )


class Headed(nn.Module):
    """A network behind its head: inputs as the network takes them, logits (N, K).

    Args:
        network: Gives (N, outputs), (N,) for one output, or several tensors by name.
        record: The head.
    """

    def __init__(self, network: nn.Module, record: HeadRecord) -> None:
        super().__init__()
        self.output_name, self.outputs, self.kind = record.output_name, record.outputs, record.kind
        self.is_probability = record.output == "probability"
        last = nn.Softmax if record.outputs is None else nn.Sigmoid
        if self.is_probability and isinstance(network, nn.Sequential) and isinstance(network[-1], last):
            network, self.is_probability = network[:-1], False  # logits are exact where a probability rounds to 1
        self.network = network
        self.twin: nn.Linear | None = None
        if record.outputs is not None:
            self.twin = nn.Linear(record.outputs, 2)
            weight, bias = _weight_and_bias(record)
            self.twin.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
            self.twin.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        return self.logits_of(self.network(inputs))

    def logits_of(self, outputs: object) -> Tensor:
        """Return the logits from the network's output; raises UserError for another form."""
        if self.output_name is not None:
            outputs = _named(outputs, self.output_name)
        if not isinstance(outputs, Tensor):
            outputs = getattr(outputs, "logits", outputs)
        if self.twin is None:
            if self.is_probability and isinstance(outputs, Tensor):
                return outputs.clamp_min(LEAST_OF_CLASSES).log()
            return cast(Tensor, outputs)  # `fit` refuses what is no tensor
        if not isinstance(outputs, Tensor):
            raise IncompatibleError(
                f"model.head: {self.kind} reads a tensor, the model gives a {type(outputs).__name__}"
            )
        if outputs.ndim == 1:
            outputs = outputs[:, None]
        if outputs.ndim != 2 or outputs.shape[1] != self.outputs:
            raise _other_outputs(self.kind, self.outputs, f"the model gives shape {tuple(outputs.shape[1:])}")
        if self.is_probability:
            outputs = torch.logit(outputs, LEAST_PROBABILITY)
        logits: Tensor = self.twin(outputs)
        return logits


def _other_outputs(kind: str, outputs: int | None, reality: str) -> IncompatibleError:
    advice = (
        "name all outputs in model.head.labels"
        if kind == "multi_label"
        else "model.head: softmax has one logit a class"
    )
    return IncompatibleError(
        f"model.head: {kind} reads {outputs} output{'s' * (outputs != 1)} a sample, {reality}; {advice}"
    )


def _weight_and_bias(record: HeadRecord) -> tuple[np.ndarray, np.ndarray]:
    """Return the float32 weight (2, outputs) and bias (2,) that make [0, z - logit of the threshold] of the outputs."""
    assert record.outputs is not None
    weight = np.zeros((2, record.outputs), np.float32)
    weight[1, record.column] = 1
    return weight, np.array([0, -record.criterion.shift], np.float32)


def _named(outputs: object, name: str) -> object:
    """Return the output of that name, of a mapping, or of an object with attributes."""
    if isinstance(outputs, Mapping):
        if name not in outputs:
            raise UserError(unknown_word("model.output", name, map(str, outputs), what="an output of the model"))
        return outputs[name]
    if isinstance(outputs, Tensor) or not hasattr(outputs, name):
        raise UserError(
            f"model.output: {name}: the model gives a {type(outputs).__name__} without outputs by name; remove it"
        )
    return getattr(outputs, name)


def adapt_outputs(path: Path, record: HeadRecord | None, output_name: str | None, name: str) -> HeadRecord | None:
    """Rewrite the ONNX file at `path` so that it gives the logits of its head as its only output.

    Args:
        path: The file, which is overwritten.
        record: The head; None for softmax.
        output_name: `model.output`.
        name: The user's name of the file, for messages.

    Returns:
        The record, marked as in the file where the file changed.

    Raises:
        UserError: the graph has no such output, or several and none is named.
        IncompatibleError: the output has another number of values than the head reads.
    """
    try:
        model = onnx.load(str(path))
    except Exception:  # protobuf raises many kinds for what is no ONNX file; who loads it says what it is
        return record
    names = [value.name for value in model.graph.output]
    if output_name is not None and output_name not in names:
        raise UserError(unknown_word("model.output", output_name, names, what=f"an output of {name}"))
    if output_name is None and len(names) > 1:
        raise UserError(
            f"model.path: {name} has {len(names)} outputs ({', '.join(names)}); model.output: {names[0]} picks one"
        )
    if record is None:
        return None
    changes_values = record.outputs is not None or record.output == "probability"
    if not changes_values and len(names) == 1:
        return record.model_copy(update={"is_in_file": True})
    output = next(value for value in model.graph.output if output_name in (None, value.name))
    output = onnx.ValueInfoProto.FromString(output.SerializeToString())  # a copy: clearing the list clears its members
    if changes_values:
        output = _append_logits(model, output, record)
    del model.graph.output[:]
    model.graph.output.append(output)
    onnx.save(model, str(path))
    return record.model_copy(update={"is_in_file": True})


def _append_logits(model: onnx.ModelProto, output: onnx.ValueInfoProto, record: HeadRecord) -> onnx.ValueInfoProto:
    """Append what makes logits of probabilities, and of one output two logits; return the new output."""
    kind, dims = output.type.tensor_type.elem_type, output.type.tensor_type.shape.dim
    declared = [size.dim_value or None for size in dims][1:]
    outputs = record.outputs
    if outputs is not None and (
        (declared and declared[-1] not in (None, outputs)) or len(declared) > 1 or (not declared and outputs != 1)
    ):
        shape = tuple("?" if size is None else size for size in declared)
        raise _other_outputs(record.kind, outputs, f"the graph gives shape {shape}")
    current, count = output.name, 0

    def add(operator: str, inputs: tuple[str | np.ndarray, ...], **attributes: object) -> str:
        nonlocal count
        names = []
        for value in inputs:
            if isinstance(value, np.ndarray):
                count += 1
                names.append(f"{_PREFIX}constant_{count}")
                model.graph.initializer.append(numpy_helper.from_array(value, names[-1]))
            else:
                names.append(value)
        count += 1
        result = f"{_PREFIX}{operator.lower()}_{count}"
        model.graph.node.append(helper.make_node(operator, names, [result], **attributes))
        return result

    makers = [node for node in model.graph.node if current in node.output]
    last = "Softmax" if outputs is None else "Sigmoid"
    is_probability = record.output == "probability"
    if is_probability and makers and makers[0].op_type == last:
        current, is_probability = makers[0].input[0], False  # exact where the probability rounds to 0 or 1
        model.graph.node.remove(makers[0])
    if kind != TensorProto.FLOAT:
        current = add("Cast", (current,), to=TensorProto.FLOAT)
    batch = (dims[0].dim_value or dims[0].dim_param or "batch") if dims else "batch"
    if outputs is None:
        if is_probability:
            current = add("Log", (add("Clip", (current, np.array(LEAST_OF_CLASSES, np.float32))),))
        return helper.make_tensor_value_info(current, TensorProto.FLOAT, [batch, *declared])
    if not declared:
        current = add("Reshape", (current, np.array([-1, 1], np.int64)))
    if is_probability:
        low, high = np.float32(LEAST_PROBABILITY), np.float32(1 - LEAST_PROBABILITY)
        clipped = add("Clip", (current, np.array(low), np.array(high)))
        rest = add("Sub", (np.array(1, np.float32), clipped))
        current = add("Sub", (add("Log", (clipped,)), add("Log", (rest,))))
    weight, bias = _weight_and_bias(record)
    result = add("Gemm", (current, weight, bias), transB=1)
    return helper.make_tensor_value_info(result, TensorProto.FLOAT, [batch, 2])
