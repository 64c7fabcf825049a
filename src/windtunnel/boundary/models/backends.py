"""Models that are no torch module, wrapped as one: forward pass only."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx
import onnxruntime
import torch
from onnx.external_data_helper import uses_external_data
from torch import Tensor, nn

from windtunnel.boundary.files import check_file
from windtunnel.boundary.models.heads import Headed
from windtunnel.boundary.models.onnx_network import has_batch
from windtunnel.core.errors import UserError
from windtunnel.core.references import users_code
from windtunnel.params.model import Interface
from windtunnel.runtime.supervised import limited

_SILENT = 4  # of onnxruntime's levels: what it raises says the same as what it would print
CPU = ("CPUExecutionProvider",)
_INPUT_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
# Probabilities may leave [0, 1] and their sums 1 by rounding; more means that they are something else, logits perhaps.
_PROBABILITY_TOLERANCE = 1e-3
# Exceptions that say that code is wrong: to call it again would not help.
_MISTAKES = (UserError, TypeError, ValueError, LookupError, AttributeError, NameError, AssertionError, ImportError)
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds before a call is repeated; doubled each time


class FixedMode(nn.Module):
    """A program as a module like any other, which takes hooks: eval() and train() leave its mode as it is."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> FixedMode:
        """Itself, unchanged: a program has one mode and no other. Attacks call this around every run."""
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (N, K)."""
        logits: Tensor = self.program(inputs)
        return logits


class Program(FixedMode):
    """A torch.export program, which raises where its mode is to change."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__(program)
        # torch.export unflattens every program as if it were in training; what it was exported in stands in its graph.
        for part in self.modules():
            part.training = False

    def training_operations(self) -> list[str]:
        """Return the operations that were exported in training mode: active dropout, batch statistics."""
        assert isinstance(self.program, torch.fx.GraphModule)
        calls = [node for node in self.program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        return [node.target._schema.name.removeprefix("aten::") for node in calls if _in_training(node)]


def _in_training(node: torch.fx.Node) -> bool:
    """Return True if a call of an operation has its `train` (dropout) or `training` (batch_norm) set."""
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))
    return any({**arguments, **node.kwargs}.get(name) is True for name in ("train", "training"))


class LogitsOf(nn.Module):
    """Module that returns the `.logits` of a network's output object, as in Hugging Face models."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (N, K)."""
        logits: Tensor = self.network(inputs).logits
        return logits


def giving_logits(module: nn.Module, output: object) -> nn.Module:
    """Return the module for what `output`, an answer of it, needs: `LogitsOf` it where that is an object with `.logits`, else itself."""
    if not isinstance(output, Tensor) and isinstance(getattr(output, "logits", None), Tensor):
        return LogitsOf(module).eval()
    return module


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the graph with its weights. Raises what protobuf raises."""
    return onnx.load(str(path))


def session_of(graph: onnx.ModelProto | Path, providers: Sequence[str] = CPU) -> onnxruntime.InferenceSession:
    """Return a session of onnxruntime, which prints nothing. Raises what onnxruntime raises."""
    onnxruntime.set_default_logger_severity(_SILENT)
    content = str(graph) if isinstance(graph, Path) else graph.SerializeToString()
    try:  # onnxruntime's own fallback prints to stdout
        return onnxruntime.InferenceSession(content, providers=list(providers), enable_fallback=0)
    except Exception:  # a provider that this machine lacks, as TensorRT, or what is no graph
        if tuple(providers) == tuple(CPU):
            raise
        return onnxruntime.InferenceSession(content, providers=list(CPU), enable_fallback=0)


class OnnxModule(nn.Module):
    """An ONNX graph run by onnxruntime. Input (N, *shape) float32, output (N, K) float32; of several the
    first, where `numbers` says how many numbers a sample has: then the graph may also have no dimension for the batch.

    A graph that declares as many numbers in another shape, as 784x1 for an image of 1x28x28, is given them in its own.
    """

    def __init__(self, path: Path, *, numbers: int | None = None) -> None:
        super().__init__()
        self.path, self.numbers = path, numbers
        self.content: bytes | None = None  # of a copy, whose file is gone
        check_file(path, where="model.path")
        try:
            self.session = session_of(path, onnxruntime.get_available_providers())
        except Exception as error:  # onnxruntime's own errors share no base but this
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"model.path: {path.name}: not an ONNX model onnxruntime can run ({reason})") from error
        outputs = self.session.get_outputs()
        self.output_name: str = outputs[0].name
        if len(outputs) != 1 and numbers is None:
            names = ", ".join(o.name for o in outputs)
            raise UserError(
                f"model.path: {path} has {len(outputs)} outputs ({names}); a classifier has one, the logits"
            )
        if len(self.session.get_inputs()) != 1:
            raise UserError(f"model.path: {path} has {len(self.session.get_inputs())} inputs; a classifier has one")
        self.input_name: str = self.session.get_inputs()[0].name
        kind = self.session.get_inputs()[0].type
        if kind not in _INPUT_TYPES:
            raise UserError(
                f"model.path: {path} takes {kind}; a classifier of inputs in [0, 1] takes {' or '.join(_INPUT_TYPES)}"
            )
        self.input_type = _INPUT_TYPES[kind]
        declared = self.session.get_inputs()[0].shape
        sizes = [size if isinstance(size, int) else 0 for size in declared]
        self.has_batch = has_batch(sizes, numbers)
        first = sizes[0] if self.has_batch else 1
        self.fixed_batch: int | None = first or None
        self.shape = declared_shape(declared if self.has_batch else [1, *declared])

    def __reduce__(self) -> tuple[Callable[[bytes], OnnxModule], tuple[bytes]]:
        """Pickle the graph alone: a session cannot be pickled."""
        return _of_bytes, (self.path.read_bytes() if self.content is None else self.content,)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, in batches of the graph's own size where that is fixed."""
        x = in_shape(x, self.shape)
        return (in_batches(x, self.fixed_batch, self._run) if self.fixed_batch else self._run(x)).to(x.device)

    def _run(self, x: Tensor) -> Tensor:
        values = x.detach().cpu().numpy().astype(self.input_type)
        (logits,) = self.session.run([self.output_name], {self.input_name: values if self.has_batch else values[0]})
        outputs = torch.from_numpy(np.asarray(logits, dtype=np.float32))
        return outputs if self.numbers is None else outputs.reshape(len(x), -1)


def in_batches(x: Tensor, size: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what `function` gives for x (N, ...) in batches of `size`; the last is filled up with its last sample."""
    lacking = -len(x) % size
    padded = torch.cat([x, x[-1:].expand(lacking, *x.shape[1:])]) if lacking else x
    return torch.cat([function(part) for part in padded.split(size)])[: len(x)]


def declared_shape(dimensions: Sequence[int | str | None]) -> tuple[int, ...] | None:
    """Return the shape that a graph declares for a sample, without the batch; None where a size is left open."""
    sizes = tuple(size for size in dimensions[1:] if isinstance(size, int) and size > 0)
    return sizes if len(sizes) == len(dimensions) - 1 else None


def in_shape(x: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Return the samples x (N, ...) in a graph's own shape, where sizes of 1 or a flat vector make the difference; else as they are."""
    same = shape is None or x.shape[1:] == shape or not same_pixels(x.shape[1:], shape)
    return x if same else x.reshape(x.shape[0], *(shape or ()))


def same_pixels(preprocess: Sequence[int], declared: Sequence[int]) -> bool:
    """Return True if a reshape from one sample shape to the other keeps the meaning of each pixel.

    So it is where the two differ by sizes of 1, and where one of them is a flat vector but for such sizes.
    """
    ours, theirs = ([size for size in sizes if size != 1] for sizes in (preprocess, declared))
    return ours == theirs or ((len(ours) < 2 or len(theirs) < 2) and np.prod(ours) == np.prod(theirs))


def _of_bytes(graph: bytes) -> OnnxModule:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(graph)
        module = OnnxModule(path)
        module.content = graph
        return module


def weights_beside(path: Path) -> list[str]:
    """Names, relative to its folder, of the files in which an ONNX graph keeps weights; none for what is no ONNX file."""
    try:
        model = onnx.load(str(path), load_external_data=False)
        beside = [tensor for tensor in _tensors(model.graph) if uses_external_data(tensor)]
    except Exception:  # protobuf raises many kinds for what is no ONNX file; onnxruntime says what it is
        return []
    return sorted({entry.value for tensor in beside for entry in tensor.external_data if entry.key == "location"})


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a graph: initializers, those in attributes of nodes, and those of subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def copy_graph(path: Path, target: Path) -> None:
    """Copy an ONNX file; weights that it keeps in files beside it come into the copy.

    Raises UserError, in one line, where one of them is missing or is not in the file's own directory.
    """
    if not weights_beside(path):
        shutil.copyfile(path, target)
        return
    try:
        onnx.save(onnx.load(str(path)), str(target))
    except Exception as error:  # as above
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"model.path: {path}: the weights that it keeps in files beside it cannot be read ({reason})"
        ) from error


class PredictFunction(nn.Module):
    """A Python `predict(batch) -> probabilities`: numpy (N, *shape) float32 in, (N, K) out; logits are their logs.

    Its calls may cost money, so every query (a sample that it is asked about) is counted: `queries_asked` in `calls_made`, and
    apart from them `queries_repeated`, those of calls that failed and were made again. interface: batch size, rate and retries.
    `allowed` queries may be made, any number where it is None. num_classes: K, once it is known. time_limit: seconds for an
    answer, in `windtunnel check`. preprocess: what the function is given instead of inputs in [0, 1]; None for those.
    """

    preprocess: nn.Module | None
    # gives two logits of an array (N, outputs) or (N,), of probabilities where `is_probability`; None for softmax
    head: Headed | None

    def __init__(self, predict: Callable[[np.ndarray], object], name: str = "model.function") -> None:
        super().__init__()
        self.predict, self.name = predict, name
        self.queries_asked = self.calls_made = self.queries_repeated = 0
        self.interface, self._next_call = Interface(), 0.0
        self.allowed: int | None = None
        self.num_classes: int | None = None
        self.time_limit, self.preprocess, self.head = 60.0, None, None

    def __reduce__(self) -> NoReturn:
        """Another process would count its own queries, and none would count all."""
        raise TypeError("every query of a function is counted, in the process that began")

    def forward(self, x: Tensor) -> Tensor:
        """Log of the probabilities, clipped away from 0 so that every logit is finite. Raises UserError beyond `allowed`."""
        if self.allowed is not None and self.queries_asked + len(x) > self.allowed:
            raise UserError(f"{self.name}: {len(x)} queries more would exceed the {self.allowed} that may be made here")
        self.queries_asked += len(x)
        with users_code(self.name):
            prepared = x.detach() if self.preprocess is None else self.preprocess(x.detach())
            parts = prepared.cpu().split(self.interface.batch_size or max(len(x), 1))
            answers = [self._answer(part.numpy()) for part in parts]
            outputs = np.concatenate(answers) if len(answers) > 1 else answers[0]
        if outputs.dtype.kind not in "fiub":
            raise UserError(f"{self.name} returned {outputs.dtype}; (N, K) probabilities are needed")
        probabilities = outputs.astype(np.float32)
        low, high = probabilities.min(initial=0), probabilities.max(initial=1)
        leaves_range = low < -_PROBABILITY_TOLERANCE or high > 1 + _PROBABILITY_TOLERANCE
        if self.head is not None:
            if self.head.is_probability and leaves_range:
                raise UserError(
                    f"{self.name} returned values from {low:g} to {high:g}; model.head.output: logit reads such values"
                )
            if len(probabilities) != len(x):
                raise UserError(f"{self.name} returned shape {probabilities.shape} for {len(x)} samples")
            return self.head.logits_of(torch.from_numpy(probabilities)).to(x.device)
        if probabilities.ndim != 2 or len(probabilities) != len(x):
            raise UserError(
                f"{self.name} returned shape {probabilities.shape} for {len(x)} samples; (N, K) probabilities are needed"
            )
        if self.num_classes is not None and probabilities.shape[1] != self.num_classes:
            raise UserError(
                f"{self.name} returned {probabilities.shape[1]} classes, the data has {self.num_classes}; "
                f"data.class_names says how many there are"
            )
        sums = probabilities.sum(1)
        off = np.abs(sums - 1).max(initial=0)  # NaN passes: it is a prediction of nothing, told apart later
        if leaves_range or off > _PROBABILITY_TOLERANCE:
            raise UserError(
                f"{self.name} returned values from {low:g} to {high:g}, rows summing to {sums.min():g} to "
                f"{sums.max():g}; probabilities are needed (softmax the logits)"
            )
        return torch.from_numpy(probabilities).clamp_min(1e-12).log().to(x.device)

    def _answer(self, inputs: np.ndarray) -> np.ndarray:
        """Call the function, not sooner than the interface allows, and again where the call fails; its answer."""
        for attempt in range(self.interface.retries + 1):
            time.sleep(max(0.0, self._next_call - time.monotonic()))
            if self.interface.calls_per_second is not None:
                self._next_call = time.monotonic() + 1 / self.interface.calls_per_second
            self.calls_made += 1
            try:
                with limited(f"{self.name}: the model", self.time_limit, "model.time_limit"):
                    return np.asarray(self.predict(inputs.copy()))
            except (*_MISTAKES, MemoryError):
                raise
            except Exception:  # the function's own: of sockets, of clients of HTTP
                if attempt == self.interface.retries:
                    raise
            self.queries_repeated += len(inputs)
            time.sleep(min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT))
        raise AssertionError("the loop returns or raises")
