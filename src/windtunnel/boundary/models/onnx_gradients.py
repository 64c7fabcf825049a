"""An ONNX graph as a torch module, so that gradients reach its input: by onnx2torch, and only where the logits agree."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper, version_converter
from torch import Tensor, nn

from windtunnel.boundary.models.backends import OnnxModule, declared_shape, in_shape
from windtunnel.boundary.models.record import LIMIT, Agreement
from windtunnel.core.libraries import is_installed, missing
from windtunnel.core.references import first_line

_ROWS = 256
_OLDEST = 9  # opset


class NotConverted(ValueError):
    """Why a graph has no torch form, in words that go on "forward pass only: "."""


class Converted(nn.Module):
    """The torch form of a graph: float32 (N, *shape) in, logits float32 (N, K) out, in batches that the graph takes."""

    def __init__(
        self, network: nn.Module, batch: int | None, dtype: torch.dtype, shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        self.network, self.batch, self.dtype, self.shape = network, batch, dtype, shape

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits; a last batch that is too small is filled up with its last sample."""
        inputs = in_shape(inputs, self.shape)
        if self.batch is None:
            return self._of(inputs)
        n = len(inputs)
        lacking = -n % self.batch
        whole = torch.cat([inputs, inputs[-1:].expand(lacking, *inputs.shape[1:])]) if lacking else inputs
        return torch.cat([self._of(part) for part in whole.split(self.batch)])[:n]

    def _of(self, inputs: Tensor) -> Tensor:
        if self.dtype is torch.float32:  # a cast to what it is would stand in a verifier's trace
            logits: Tensor = self.network(inputs)
            return logits
        return self._of_other_type(inputs)

    def _of_other_type(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs.to(self.dtype))
        return logits.float()


def compare(path: Path, inputs: Tensor) -> Agreement:
    """Convert the graph at `path` and compare the logits on `inputs` (N, *shape), float32.

    Never raises: what stands in the way is the `reason`.
    """
    if not is_installed("onnx2torch"):
        return Agreement(reason=missing("gradients", "onnx2torch"))
    by, graph, samples = f"onnx2torch {version('onnx2torch')}", OnnxModule(path), len(inputs)
    if samples == 1:
        inputs = inputs.repeat(2, *[1] * (inputs.ndim - 1))  # a graph of one sample must not pass for one of any number
    expected = graph(inputs).double()
    spread = float((expected.amax(1) - expected.amin(1)).max())
    reason = ""
    # A graph of one size of batch often takes others, and is then many times faster.
    for batch in dict.fromkeys((None, graph.fixed_batch)):
        try:
            module = converted(path, batch)
            with torch.no_grad():
                difference = float(
                    (torch.cat([module(part) for part in inputs.split(_ROWS)]).double() - expected).abs().max()
                )
        except NotConverted as error:
            return Agreement(reason=str(error))
        except Exception as error:  # whatever a converted module raises where the conversion went wrong
            reason = f"its torch form ({by}) fails: {type(error).__name__}: {first_line(error)}"
            continue
        if difference <= LIMIT * spread:
            return Agreement(by, float(f"{difference:.2g}"), float(f"{spread:.3g}"), samples, batch)
        reason = (
            f"the logits of its torch form ({by}) differ from onnxruntime's by {difference:.2g}, of a spread of "
            f"{spread:.3g} ({LIMIT:g} of that is allowed)"
        )
    return Agreement(reason=reason)


def converted(path: Path, batch: int | None) -> Converted:
    """The torch form of the graph at `path`, for batches of `batch` samples, any where None.

    Raises NotConverted, naming the operators, where onnx2torch does not know one, and for what it raises itself.
    """
    with _no_torchvision():
        import onnx2torch
    graph = _of_a_known_opset(onnx.load(str(path)))
    opset = {entry.domain: entry.version for entry in graph.opset_import}
    unknown = {
        node.op_type for node in graph.graph.node if not _known(node.op_type, node.domain, opset.get(node.domain, 1))
    }
    if unknown:
        names = ", ".join(sorted(unknown))
        raise NotConverted(f"onnx2torch {version('onnx2torch')} has no converter for the operator {names}")
    _any_batch(graph)
    try:
        network = onnx2torch.convert(graph).eval()
    except Exception as error:  # a converter refuses what it does not implement in its own ways
        raise NotConverted(f"onnx2torch {version('onnx2torch')} cannot convert it: {first_line(error)}") from error
    kind = graph.graph.input[0].type.tensor_type.elem_type
    dtype = {onnx.TensorProto.DOUBLE: torch.float64, onnx.TensorProto.FLOAT16: torch.float16}.get(kind, torch.float32)
    declared = [size.dim_value for size in graph.graph.input[0].type.tensor_type.shape.dim]
    return Converted(network, batch, dtype, declared_shape(declared))


def _of_a_known_opset(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The graph, raised to the oldest opset that onnx2torch has converters for where it is older: torch writes 7 and 8 too."""
    if all(entry.version >= _OLDEST for entry in graph.opset_import if entry.domain in {"", "ai.onnx"}):
        return graph
    try:
        raised: onnx.ModelProto = version_converter.convert_version(graph, _OLDEST)
    except Exception as error:  # the converter's own errors, for operators that changed their meaning
        raise NotConverted(f"onnx {version('onnx')} cannot raise it to opset {_OLDEST}: {first_line(error)}") from error
    return raised


def _known(operator: str, domain: str, opset: int) -> bool:
    """Whether onnx2torch converts an operator; a version of it that it lacks is converted as the newest before it.

    onnx2torch 1.5.15 knows most operators up to opset 18 or so, and torch writes up to 23: what newer versions add is types
    (float8, bfloat16). Where they changed more, the logits do not agree, and the graph is not used.
    """
    from onnx2torch.node_converters import registry

    try:
        registry.get_converter(operator, opset, domain)
        return True
    except NotImplementedError:
        pass
    known = [row for row in registry._CONVERTER_REGISTRY if row.operation_type == operator and row.domain == domain]
    older = [row.version for row in known if row.version < opset]
    try:
        since = onnx.defs.get_schema(operator, domain=domain, max_inclusive_version=opset).since_version
    except onnx.defs.SchemaError:
        return False
    if not older:
        return False
    newest = registry._CONVERTER_REGISTRY[registry.OperationDescription(domain, operator, max(older))]
    registry.add_converter(operator, since, domain)(newest)
    return True


def _any_batch(model: onnx.ModelProto) -> None:
    """Let constant shapes that begin with the graph's size of batch take the size that there is (0 copies it).

    Also drops `allowzero`, which onnx2torch refuses: it says what a zero means, and only an empty batch has one.
    """
    graph = model.graph
    first = graph.input[0].type.tensor_type.shape.dim[0]
    size = first.dim_value if first.HasField("dim_value") else None
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Reshape":
            continue
        kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
        del node.attribute[:]
        node.attribute.extend(kept)
        if size is None or node.input[1] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[1]])
        if len(shape) > 1 and shape[0] == size:
            name = f"{node.input[1]}_any_batch"
            graph.initializer.append(numpy_helper.from_array(np.concatenate([[0], shape[1:]]), name))
            node.input[1] = name


@contextmanager
def _no_torchvision() -> Iterator[None]:
    """Import onnx2torch 1.5.15 where torchvision is absent, or built for another torch and fails to import.

    It imports torchvision for two operators of object detection, which no classifier has.
    """
    names = [name for name in ("torchvision", "torchvision.ops") if name not in sys.modules]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    if names:
        sys.modules["torchvision.ops"].roi_align = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
