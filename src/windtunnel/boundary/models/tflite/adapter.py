"""TFLite files, as devices run them: forward pass alone, by LiteRT's interpreter."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.boundary.files import check_file
from windtunnel.boundary.models.loaders import Loaded
from windtunnel.boundary.models.of_libraries import importing, wanted
from windtunnel.boundary.models.record import MODEL_JSON, KeptFile
from windtunnel.boundary.models.trust import Trust, require_sha256
from windtunnel.core.contracts import Capability, Json
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.references import first_line
from windtunnel.params.model import Model
from windtunnel.records.files import file_digest
from windtunnel.records.metadata import fitting

_FILE = "weights.tflite"


class _TfliteFile(KeptFile):
    # True if inputs in [0, 1] are stretched over the range of an integer input
    stretches: bool = False


def keep(model: Model, directory: Path, seed: int) -> dict[str, Json]:
    """Copy the file. Raises UserError where it is none, or has another digest than `model.sha256`."""
    path = check_file(Path(wanted(model, "path")), where="model.path")
    digest = file_digest(path)
    require_sha256(model, digest, str(path))
    shutil.copyfile(path, directory / _FILE)
    stretches = not model.preprocess.value_keys
    return {"source": "tflite", "file": _FILE, "sha256": digest, "original": path.name, "stretches": stretches}


def load(facts: dict[str, Json], directory: Path, trust: Trust) -> Loaded:
    """Return the model that `keep` copied."""
    record = fitting(_TfliteFile, facts, MODEL_JSON, "what `train` wrote")
    path = check_file(directory / record.file, where="model.path")
    module = TfliteModule(path.read_bytes(), record.original, stretches=record.stretches)
    name = f"TFLite ({record.original}{module.expects})"
    return Loaded(module, frozenset({Capability.FORWARD}), file_digest(path), name)


class TfliteModule(nn.Module):
    """A TFLite file as a module: (N, C, H, W) or (N, H, W, C) as the file takes them, in; float32 (N, K) out.

    Integer inputs and outputs are quantised and dequantised by the scale and zero point that the file declares.

    Args:
        content: the file.
        name: what the user calls it.
        stretches: True if inputs in [0, 1] are stretched over the range that an integer input can hold.
    """

    def __init__(self, content: bytes, name: str, *, stretches: bool) -> None:
        super().__init__()
        self.content, self.name, self.stretches = content, name, stretches
        self.interpreter = _interpreter(content, name)
        inputs, outputs = self.interpreter.get_input_details(), self.interpreter.get_output_details()
        if len(inputs) != 1 or len(outputs) != 1:
            raise UserError(
                f"model.path: {name} has {len(inputs)} inputs and {len(outputs)} outputs; a classifier has one of each"
            )
        self.input, self.output = inputs[0], outputs[0]
        self.shape = tuple(int(size) for size in self.input["shape_signature"][1:])
        self.low, self.high = _range(self.input) if stretches else (0.0, 1.0)

    @property
    def expects(self) -> str:
        """Name the range that the file takes, where inputs are stretched over it."""
        return f", {self.low:g} to {self.high:g}" if (self.low, self.high) != (0.0, 1.0) else ""

    def __reduce__(self) -> tuple[Callable[..., TfliteModule], tuple[bytes, str]]:
        """Pickle the file; an interpreter cannot travel."""
        return partial(TfliteModule, stretches=self.stretches), (self.content, self.name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the file, dequantised."""
        values = self._in_layout(x.detach()).cpu().numpy().astype(np.float32)
        if self.stretches:
            values = self.low + (self.high - self.low) * values
        index, details = self.input["index"], self.interpreter.get_input_details()[0]
        if tuple(details["shape"]) != values.shape:
            self.interpreter.resize_tensor_input(index, values.shape)
            self.interpreter.allocate_tensors()
        self.interpreter.set_tensor(index, _quantised(values, self.input))
        self.interpreter.invoke()
        raw = self.interpreter.get_tensor(self.output["index"])
        return torch.from_numpy(_dequantised(raw, self.output)).to(x.device)

    def _in_layout(self, x: Tensor) -> Tensor:
        for candidate in (x.permute(0, 2, 3, 1), x) if x.ndim == 4 else (x,):
            if len(self.shape) == candidate.ndim - 1 and all(
                size in (-1, actual) for size, actual in zip(self.shape, candidate.shape[1:], strict=True)
            ):
                return candidate
        raise IncompatibleError(
            f"{self.name} takes {'x'.join(map(str, self.shape))} (H x W x C), not samples of "
            f"{'x'.join(map(str, x.shape[1:]))}"
        )


def _interpreter(content: bytes, name: str) -> Any:
    with importing("tflite"):
        from ai_edge_litert.interpreter import Interpreter
    try:
        interpreter = Interpreter(model_content=content, num_threads=1)
        interpreter.allocate_tensors()
    except Exception as error:  # ValueError and RuntimeError, by what is wrong with the file
        raise UserError(f"model.path: {name} is not a TFLite model that LiteRT runs ({first_line(error)})") from error
    return interpreter


def _range(details: Any) -> tuple[float, float]:
    """Return the values that an integer tensor stands for at its ends; 0 and 1 for a tensor of floats."""
    scale, zero = details["quantization"]
    if not np.issubdtype(details["dtype"], np.integer):
        return 0.0, 1.0
    ends = np.iinfo(details["dtype"])
    return ((ends.min - zero) * scale, (ends.max - zero) * scale) if scale else (float(ends.min), float(ends.max))


def _quantised(values: np.ndarray, details: Any) -> np.ndarray:
    if not np.issubdtype(details["dtype"], np.integer):
        converted: np.ndarray = values.astype(details["dtype"])
        return converted
    scale, zero = details["quantization"]
    ends = np.iinfo(details["dtype"])
    rounded: np.ndarray = np.clip(np.rint(values / (scale or 1.0) + zero), ends.min, ends.max).astype(details["dtype"])
    return rounded


def _dequantised(raw: np.ndarray, details: Any) -> np.ndarray:
    scale, zero = details["quantization"]
    values = (raw.astype(np.float32) - zero) * (scale or 1.0) if np.issubdtype(raw.dtype, np.integer) else raw
    return np.array(values, dtype=np.float32)
