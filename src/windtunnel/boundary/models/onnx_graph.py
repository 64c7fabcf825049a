"""Read an ONNX graph that has been checked when it was copied to the run, and run it."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnxruntime

_SILENT = 4  # of onnxruntime's levels: what it raises says the same as what it would print
CPU = ("CPUExecutionProvider",)


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the graph with its weights. Raises what protobuf raises."""
    return onnx.load(str(path))


def session_of(graph: onnx.ModelProto | Path, providers: Sequence[str] = CPU) -> onnxruntime.InferenceSession:
    """Return a session of onnxruntime, which prints nothing. Raises what onnxruntime raises."""
    onnxruntime.set_default_logger_severity(_SILENT)
    content = str(graph) if isinstance(graph, Path) else graph.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=list(providers))
