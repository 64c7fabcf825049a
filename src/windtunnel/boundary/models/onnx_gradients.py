"""An ONNX graph as a torch module, so that gradients reach its input: used only where the logits agree with onnxruntime's."""

from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.boundary.models.backends import OnnxModule, in_batches, in_shape
from windtunnel.boundary.models.onnx_network import OnnxNetwork
from windtunnel.boundary.models.record import LIMIT, Agreement
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.references import first_line

_ROWS = 256
_BY = "windtunnel"


class Converted(nn.Module):
    """The torch form of a graph: float32 (N, *shape) in, logits float32 (N, K) out, in batches that the graph takes."""

    def __init__(self, network: OnnxNetwork, batch: int | None) -> None:
        super().__init__()
        self.network, self.batch = network, batch

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits; a last batch that is too small is filled up with its last sample."""
        inputs = in_shape(inputs, self.network.input_shape)
        return self._logits(inputs) if self.batch is None else in_batches(inputs, self.batch, self._logits)

    def _logits(self, inputs: Tensor) -> Tensor:
        is_float32 = self.network.dtype is torch.float32  # a cast to what it is would stand in a verifier's trace
        logits: Tensor = self.network(inputs if is_float32 else inputs.to(self.network.dtype))
        return logits if is_float32 else logits.float()


def compare(path: Path, inputs: Tensor, limit: float = LIMIT) -> Agreement:
    """Read the graph at `path` as torch and compare the logits on `inputs` (N, *shape), float32.

    limit: the largest difference, of the logits' spread. Never raises: what stands in the way is the `reason`.
    """
    graph, samples = OnnxModule(path), len(inputs)
    if samples == 1:
        inputs = inputs.repeat(2, *[1] * (inputs.ndim - 1))  # a graph of one sample must not pass for one of any number
    expected = graph(inputs).double()
    if expected.ndim != 2:
        return Agreement(reason=f"its output has shape {tuple(expected.shape)} for {len(inputs)} samples, not (N, K)")
    rows = expected if expected.shape[1] > 1 else expected.T  # one output has no spread within a sample
    spread = float((rows.amax(1) - rows.amin(1)).max())
    reason, shape = "", tuple(inputs.shape[1:])
    # A graph of one size of batch often takes others, and is then many times faster.
    for batch in dict.fromkeys((None, graph.fixed_batch)):
        try:
            module = converted(path, batch, shape)
            with torch.no_grad():
                logits = torch.cat([module(part) for part in inputs.split(_ROWS)]).double()
            difference = float((logits - expected).abs().max())
        except (IncompatibleError, UserError) as error:
            reason = reason or first_line(error)
            continue
        except Exception as error:  # whatever torch raises where the graph does something else than its declared shapes
            reason = f"its torch form fails: {type(error).__name__}: {first_line(error)}"
            continue
        if difference <= limit * spread:
            return Agreement(_BY, float(f"{difference:.2g}"), float(f"{spread:.3g}"), samples, batch, "", shape)
        reason = (
            f"the logits of its torch form differ from onnxruntime's by {difference:.2g}, of a spread of "
            f"{spread:.3g} ({limit:g} of that is allowed)"
        )
    return Agreement(reason=reason)


def converted(path: Path, batch: int | None, shape: tuple[int, ...] | None = None) -> Converted:
    """Return the torch form of the graph at `path`, for batches of `batch` samples, of any size where that is None.

    Raises IncompatibleError, naming the operator, for a graph that cannot be read.
    """
    return Converted(OnnxNetwork(path, batch, shape).eval(), batch)
