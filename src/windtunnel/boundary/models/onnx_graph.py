"""Read an ONNX graph that has been checked when it was copied to the run, and run it."""

from pathlib import Path

import onnx
import onnxruntime


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the graph with its weights. Raises what protobuf raises."""
    return onnx.load(str(path))


def session_of(graph: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of onnxruntime on the CPU."""
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
