"""The table of bad and of unusual arguments of the Python API: how it is called, and the words of the one line, or that it works.

`make()` returns the keywords by which a call differs from `attack(MODEL, X, Y, "fgsm", budget="Linf 0.1")`, and is run in the
process of the case.
"""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import fractions
import os
import signal
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import windtunnel as wt

torch.manual_seed(0)
N, K = 6, 3
X = torch.rand(N, 1, 4, 4)
Y = torch.arange(N) % K
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(16, K)).eval()
PGD = {"library": "torchattacks", "algorithm": "PGD"}
FGSM = {"library": "torchattacks", "algorithm": "FGSM"}


@dataclass(frozen=True)
class Case:
    """One call. `words` stand in its one line; a legitimate call has none and returns.

    function: of windtunnel. same: it gives what the plain call does.
    """

    name: str
    make: Callable[[], dict[str, Any]]
    words: tuple[str, ...] = ()
    function: str = "attack"
    same: bool = False


class Net(nn.Module):
    """MODEL, with something done to the input before and to the logits after it."""

    def __init__(self, before: Callable[[Any], Any] = lambda x: x, after: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.network, self.before, self.after = MODEL, before, after

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(self.network(self.before(x)))


class Scripted(nn.Module):
    """MODEL in a form that torch.jit.script takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = MODEL[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def probabilities(batch: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return MODEL(torch.from_numpy(batch)).softmax(1).numpy()


def own_attack(model, inputs, labels, budget, seed):
    return (inputs + budget.epsilon).clamp(0, 1)


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def after(calls: int, then: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns what it is given so many times, and calls `then` from then on."""
    left = [calls]

    def call(x: Any) -> Any:
        left[0] -= 1
        return x if left[0] >= 0 else then(x)

    return call


class ArrayLike:
    """An object whose `__array__` is the given function."""

    def __init__(self, give: Callable[..., Any]) -> None:
        self.give = give

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.give()


class Lengths:
    """A sequence with a length that is not true."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> float:
        return 0.5


def cases() -> list[Case]:
    """All of them."""
    found = [*arrays_that_work(), *arrays_refused(), *labels(), *models(), *words(), *other_functions()]
    names = collections.Counter(case.name for case in found)
    assert names.most_common(1)[0][1] == 1, names.most_common(3)
    return found


def read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return X.clone()


def arrays_that_work() -> Iterator[Case]:
    """Forms of one and the same array."""
    x = X.numpy()
    forms: dict[str, Callable[[], Any]] = {
        "numpy": lambda: x,
        "float64": lambda: x.astype(float),
        "big-endian float32": lambda: x.astype(">f4"),
        "big-endian float64": lambda: x.astype(">f8"),
        "negative strides": lambda: x[::-1].copy()[::-1],
        "negative strides everywhere": lambda: x[::-1, :, ::-1, ::-1].copy()[::-1, :, ::-1, ::-1],
        "Fortran order": lambda: np.asfortranarray(x),
        "every second of a larger array": lambda: np.repeat(x, 2, axis=0)[::2],
        "read-only": lambda: read_only(x.copy()),
        "nested lists": lambda: x.tolist(),
        "tuple of arrays": lambda: tuple(x),
        "list of tensors": lambda: list(X),
        "list of tensors with gradients": lambda: [t.clone().requires_grad_() for t in X],
        "list of arrays": lambda: list(x),
        "deque of arrays": lambda: collections.deque(x),
        "tensor with gradients": lambda: X.clone().requires_grad_(),
        "tensor of a graph": lambda: X.clone().requires_grad_() * 1,
        "float64 tensor": lambda: X.double(),
        "parameter": lambda: nn.Parameter(X.clone()),
        "channels_last tensor": lambda: X.to(memory_format=torch.channels_last),
        "tensor of a transposed view": lambda: X.transpose(2, 3).contiguous().transpose(2, 3),
        "tensor in inference mode": in_inference_mode,
        "conjugated view": lambda: torch.complex(X, torch.zeros_like(X)).conj().real,
        "negative view": lambda: torch.complex(torch.zeros_like(X), -X).conj().imag,
        "an object with __array__": lambda: ArrayLike(lambda: x),
        "subclass of ndarray": lambda: x.view(type("Mine", (np.ndarray,), {})),
        "subclass of Tensor": lambda: X.as_subclass(type("Mine", (torch.Tensor,), {})),
        "three dimensions": lambda: x[:, 0],
        "masked, nothing masked": lambda: np.ma.masked_array(x),
        "memory map": lambda: memory_map(x),
        "memoryview": lambda: memoryview(x),
        "without a channel, as lists of arrays": lambda: [list(image[0]) for image in x],
    }
    for name, make in forms.items():
        yield Case(f"x: {name}", lambda make=make: {"x": make()}, same=True)
    for name, make in {
        "uint8": lambda: (x * 255).astype(np.uint8),
        "uint8 tensor": lambda: (X * 255).to(torch.uint8),
        "float16": lambda: x.astype(np.float16),
        "bfloat16 tensor": lambda: X.bfloat16(),
        "float16 tensor": lambda: X.half(),
        "bool": lambda: x > 0.5,
        "bool tensor": lambda: X > 0.5,
        "integers of 0 and 1": lambda: (x > 0.5).astype(int),
        "expanded": lambda: X[:1].expand(N, 1, 4, 4),
        "broadcast": lambda: np.broadcast_to(x[:1], x.shape),
        "longdouble": lambda: x.astype(np.longdouble),
        "bytearrays of pixels": lambda: [[[array.array("f", row) for row in image[0].tolist()]] for image in x],
    }.items():
        yield Case(f"x: {name}", lambda make=make: {"x": make()})


def memory_map(values: np.ndarray) -> np.memmap:
    np.save("mapped.npy", values)
    return np.load("mapped.npy", mmap_mode="r")


def arrays_refused() -> Iterator[Case]:
    x = X.numpy()
    hole = x.copy()
    hole[2, 0, 1, 1] = np.nan
    masked = np.ma.masked_array(x, mask=x > 0.9)
    refused: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
        "None": (lambda: None, ("x", "None")),
        "text": (lambda: "images.npy", ("x", "images.npy")),
        "bytes": (lambda: b"abc", ("x", "bytes")),
        "a number": (lambda: 0.5, ("x", "0.5")),
        "a path": (lambda: Path("images"), ("x", "Path")),
        "True": (lambda: True, ("x",)),
        "a generator": (lambda: (image for image in x), ("x", "generator", "list")),
        "an iterator": (lambda: iter(x), ("x", "iterator")),
        "a map": (lambda: map(float, range(3)), ("x", "map")),
        "a dictionary": (lambda: {"x": x}, ("x", "dict")),
        "a set": (lambda: {1.0, 2.0}, ("x", "set")),
        "a function": (lambda: lambda: x, ("x", "function")),
        "a type": (lambda: np.ndarray, ("x", "type")),
        "a module": (lambda: MODEL, ("x", "Sequential")),
        "a data loader": (
            lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y)),
            ("x", "DataLoader"),
        ),
        "a data set": (lambda: torch.utils.data.TensorDataset(X, Y), ("x", "TensorDataset")),
        "a DataFrame of words": (lambda: pd.DataFrame({"a": ["b"] * N}), ("x", "numbers")),
        "sparse COO": (lambda: X.to_sparse(), ("x", "sparse", "to_dense")),
        "sparse CSR": (lambda: X[:, 0].reshape(N, 16).to_sparse_csr(), ("x", "sparse", "to_dense")),
        "quantised": (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), ("x", "quantized", "dequantize")),
        "meta": (lambda: torch.empty(N, 1, 4, 4, device="meta"), ("x", "meta")),
        "nested tensor": (lambda: torch.nested.nested_tensor([X[0], X[1]]), ("x", "nested")),
        "complex": (lambda: x.astype(complex), ("x", "complex")),
        "complex tensor": (lambda: torch.complex(X, X), ("x", "complex")),
        "objects": (lambda: np.array([object()] * N), ("x", "objects")),
        "objects that are numbers": (lambda: x.astype(object), ("x", "objects")),
        "fractions": (lambda: [[fractions.Fraction(1, 2)] * 16] * N, ("x", "objects")),
        "decimals": (lambda: [[decimal.Decimal("0.5")] * 16] * N, ("x", "objects")),
        "None inside": (lambda: [[None, 0.5]] * N, ("x", "objects")),
        "words": (lambda: np.array([["a", "b"]] * N), ("x", "numbers")),
        "an array of no dimension": (lambda: np.array(0.5), ("x", "single value")),
        "a tensor of no dimension": (lambda: torch.tensor(0.5), ("x", "single value")),
        "images of a palette": (lambda: [Image.new("P", (4, 4))] * N, ("x", "palette", "convert")),
        "numbers as words": (lambda: x.astype(str), ("x", "numbers")),
        "dates": (lambda: np.array([["2020-01-01"]] * N, dtype="M8[D]"), ("x", "numbers")),
        "durations": (lambda: np.zeros((N, 2), "m8[s]"), ("x", "numbers")),
        "structured": (lambda: np.zeros(N, [("a", "f4")]), ("x", "numbers")),
        "raw bytes": (lambda: np.zeros((N, 4), "V3"), ("x", "numbers")),
        "ragged": (lambda: [[1.0], [1.0, 2.0]] * 3, ("x",)),
        "ragged tensors": (lambda: [torch.rand(1, 4, 4), torch.rand(1, 5, 5)], ("x",)),
        "ragged arrays": (lambda: [np.zeros((1, 4, 4)), np.zeros((1, 5, 5))], ("x",)),
        "arrays and tensors of several kinds": (lambda: [X[0], None], ("x",)),
        "empty": (lambda: [], ("x", "no samples")),
        "an empty array": (lambda: np.zeros((0, 1, 4, 4)), ("x", "no samples")),
        "no features": (lambda: np.zeros((N, 0)), ("shape",)),
        "no pixels": (lambda: np.zeros((N, 1, 0, 4)), ("shape",)),
        "no dimension": (lambda: np.float32(1), ("x",)),
        "one dimension": (lambda: np.zeros(N), ("shape",)),
        "five dimensions": (lambda: np.zeros((N, 1, 1, 4, 4)), ("shape",)),
        "channels last": (lambda: np.zeros((N, 4, 4, 3)), ("channels last",)),
        "NaN": (lambda: hole, ("00002", "NaN")),
        "infinity": (lambda: np.full_like(x, np.inf), ("infinity",)),
        "beyond float32": (lambda: np.full(x.shape, 1e300), ("finite",)),
        "integers of 64 bits": (lambda: np.full(x.shape, 2**62), ("outside", "[0, 1]")),
        "integers beyond 64 bits": (lambda: [[2**70] * 16] * N, ("x",)),
        "above 1": (lambda: x + 1, ("outside", "[0, 1]")),
        "below 0": (lambda: x - 1, ("outside", "[0, 1]")),
        "masked": (lambda: masked, ("x", "masked")),
        "__array__ raises": (lambda: ArrayLike(raising(RuntimeError("no"))), ("x", "no")),
        "__array__ exits": (lambda: ArrayLike(raising(SystemExit(0))), ("x", "sys.exit")),
        "__array__ returns text": (lambda: ArrayLike(lambda: "abc"), ("x",)),
        "__array__ returns None": (lambda: ArrayLike(lambda: None), ("x",)),
        "__len__ lies": (Lengths, ("x",)),
        "holds itself": (lambda: (a := []).append(a) or a, ("x",)),
        "nested deeply": (lambda: nested(5000), ("x",)),
        "petabytes of one value": (lambda: np.broadcast_to(np.float32(0.5), (10**9, 1, 1000, 1000)), ("x", "GB")),
        "petabytes, a tensor": (lambda: torch.full((1,), 0.5).expand(10**9, 1, 1000, 1000), ("x", "GB")),
        "samples without a batch": (lambda: x[0], ("x",)),
        "images of two channels": (lambda: np.zeros((N, 2, 4, 4)), ("does not take inputs of shape",)),
    }
    for name, (make, said) in refused.items():
        yield Case(f"x: {name}", lambda make=make: {"x": make()}, said)


def nested(depth: int) -> list[Any]:
    values: list[Any] = [0.5]
    for _ in range(depth):
        values = [values]
    return values


def labels() -> Iterator[Case]:
    y = Y.numpy()
    good: dict[str, Callable[[], Any]] = {
        "list": lambda: y.tolist(),
        "big-endian": lambda: y.astype(">i8"),
        "int8": lambda: y.astype(np.int8),
        "negative strides": lambda: y[::-1].copy()[::-1],
        "a Series of Int64": lambda: pd.Series(y, dtype="Int64"),
        "an Index": lambda: pd.Index(y),
        "an array of Python's": lambda: array.array("i", y.tolist()),
        "a Series": lambda: pd.Series(y, index=[f"row {i}" for i in range(N)]),
        "list of 0-d tensors": lambda: list(Y),
        "list of numpy integers": lambda: list(y),
        "range": lambda: [0, 1, 2, 0, 1, 2],
        "uint64": lambda: y.astype(np.uint64),
        "read-only": lambda: read_only(y.copy()),
        "tensor of uint8": lambda: Y.to(torch.uint8),
    }
    for name, make in good.items():
        yield Case(f"y: {name}", lambda make=make: {"y": make()}, same=True)
    for name, make in {
        "names": lambda: ["cat", "dog", "emu"] * 2,
        "names as objects": lambda: np.array(["cat", "dog", "emu"] * 2, dtype=object),
        "a Series of names": lambda: pd.Series(["cat", "dog", "emu"] * 2),
        "a categorical": lambda: pd.Series(["cat", "dog", "emu"] * 2, dtype="category"),
        "None": lambda: None,
    }.items():
        yield Case(f"y: {name}", lambda make=make: {"y": make()})
    refused: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
        "text": (lambda: "012012", ("y", "012012")),
        "names of no encoding": (lambda: ["\udcff", "dog", "emu"] * 2, ("class", "udcff")),
        "a number": (lambda: 1, ("y",)),
        "a generator": (lambda: (label for label in y), ("y", "generator")),
        "one too few": (lambda: y[:-1], ("6 samples in x", "(5,)")),
        "one-hot": (lambda: np.eye(K)[y], ("6 samples in x", "(6, 3)")),
        "a column": (lambda: y[:, None], ("6 samples in x", "(6, 1)")),
        "floats": (lambda: y.astype(float), ("float64",)),
        "booleans": (lambda: y > 0, ("bool",)),
        "negative": (lambda: y - 1, ("-1",)),
        "beyond the classes": (lambda: y + 1, ("outside",)),
        "2**63": (lambda: np.full(N, 2**63, np.uint64), ("9223372036854775808",)),
        "2**70": (lambda: [2**70] * N, ("y",)),
        "complex": (lambda: y.astype(complex), ("complex",)),
        "None inside": (lambda: [0, 1, None, 0, 1, 2], ("y", "objects")),
        "numbers and names": (lambda: np.array([0, "cat", 1, 2, "dog", 0], dtype=object), ("y", "objects")),
        "dates": (lambda: [datetime.date(2020, 1, 1)] * N, ("y", "objects")),
        "a dictionary": (lambda: {i: i for i in range(N)}, ("y", "dict")),
        "sparse": (lambda: Y.to_sparse(), ("y", "sparse")),
        "meta": (lambda: Y.to("meta"), ("y", "meta")),
        "ragged": (lambda: [[0], [1, 2]] * 3, ("y",)),
        "masked": (lambda: np.ma.masked_array(y, mask=y == 1), ("y", "masked")),
    }
    for name, (make, said) in refused.items():
        yield Case(f"y: {name}", lambda make=make: {"y": make()}, said)


class InPlace(nn.Module):
    """Normalises its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return MODEL(x.sub_(0.5))


class OwnTensor(nn.Module):
    """Keeps a tensor that is no leaf, which copy.deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1)) * 1
        self.network = MODEL

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x * self.scale)


class Uncopied(Net):
    def __deepcopy__(self, memo: object) -> Any:
        raise SystemExit(3)


class BadName:
    """A function whose name is none."""

    def __init__(self) -> None:
        self.__qualname__ = self.__name__ = self.__module__ = None  # type: ignore[assignment]

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        return probabilities(batch)


QUERY = {"evoba": {"library": "windtunnel", "algorithm": "EvoBA", "max_queries": 40}}


def blackbox(function: object) -> dict[str, Any]:
    return {"model": function, "attacks": None, "queries": QUERY, "budget": "L0 4"}


def models() -> Iterator[Case]:
    scripted = lambda: torch.jit.script(Scripted().eval())  # noqa: E731
    good: dict[str, tuple[Callable[[], Any], bool]] = {
        "torch.jit.script": (scripted, True),
        "torch.jit.trace": (lambda: torch.jit.trace(MODEL, X[:2]), True),
        "torch.jit.freeze": (lambda: torch.jit.freeze(scripted()), True),
        "DataParallel": (lambda: nn.DataParallel(MODEL), True),
        "torch.compile": (lambda: torch.compile(MODEL, backend="eager"), True),
        "torch.export": (
            lambda: torch.export.export(MODEL, (X[:2],), dynamic_shapes=({0: torch.export.Dim("n")},)).module(),
            True,
        ),
        "torch.fx": (lambda: torch.fx.symbolic_trace(MODEL), True),
        "in training mode": (lambda: nn.Sequential(nn.Flatten(), MODEL[1], nn.Dropout()).train(), False),
        "weight norm": (
            lambda: nn.Sequential(nn.Flatten(), torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, K))),
            False,
        ),
        "old weight norm": (lambda: nn.Sequential(nn.Flatten(), torch.nn.utils.weight_norm(nn.Linear(16, K))), False),
        "float64 inside": (lambda: Net(lambda x: x, lambda z: z.double()), False),
        "an object with logits": (lambda: Net(after=lambda z: type("Output", (), {"logits": z})()), True),
        "weights that are tied": (tied_layers, False),
        "pruned": (pruned, False),
        "channels_last": (
            lambda: nn.Sequential(nn.Conv2d(1, 4, 3), MODEL[0], nn.Linear(16, K)).to(memory_format=torch.channels_last),
            False,
        ),
        "a hook that changes the logits": (lambda: hooked(), False),
        "frozen": (lambda: Net().requires_grad_(False), True),
        "checkpointed": (lambda: Net(after=lambda z: checkpoint(torch.neg, z, use_reentrant=False)), False),
        "lazy layers, used once": (lazy_layers_used, False),
    }
    for name, (make, same) in good.items():
        yield Case(f"model: {name}", lambda make=make: {"model": make()}, same=same)
    yield Case("model: quantised dynamically", lambda: {**blackbox(None), "model": quantised()}, function="assess")
    yield Case("model: a function", lambda: blackbox(probabilities), function="assess")
    yield Case("model: a lambda", lambda: blackbox(lambda batch: probabilities(batch)), function="assess")
    yield Case("model: a method", lambda: blackbox(BadName().__call__), function="assess")
    yield Case("model: an object without a name", lambda: blackbox(BadName()), function="assess")
    yield Case(
        "model: a function that gives lists", lambda: blackbox(lambda b: probabilities(b).tolist()), function="assess"
    )
    yield Case(
        "model: a function that gives tensors",
        lambda: blackbox(lambda b: torch.from_numpy(probabilities(b)).requires_grad_()),
        function="assess",
    )
    yield Case("model: a function that changes its batch", lambda: blackbox(changing_function), function="assess")
    ends: dict[str, tuple[Callable[[Any], Any], str]] = {
        "os._exit": (lambda x: os._exit(0), "with exit code 0"),
        "os.abort": (lambda x: os.abort(), "by SIGABRT"),
        "SIGKILL": (lambda x: os.kill(os.getpid(), signal.SIGKILL), "by SIGKILL"),
        "a null pointer": (lambda x: ctypes.string_at(0), "by SIGSEGV"),
    }
    for name, (before, how) in ends.items():
        yield Case(f"model: ends its process, {name}", lambda before=before: {"model": Net(before)}, ("model", how))
    refused: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
        "None": (lambda: None, ("model", "None")),
        "text": (lambda: "resnet18", ("model", "str")),
        "bfloat16": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, K)).bfloat16(), ("bfloat16", "module.float()")),
        "a state dict": (lambda: MODEL.state_dict(), ("model", "OrderedDict", "state dict")),
        "a class": (lambda: Net, ("model", "class", "Net()")),
        "a path": (lambda: Path("model.pt"), ("model", "Path")),
        "swapped with x": (lambda: X, ("model", "Tensor")),
        "works in place": (InPlace, ("in place",)),
        "exits with 0": (lambda: Net(raising(SystemExit(0))), ("model", "sys.exit(0)")),
        "exits with a word": (lambda: Net(raising(SystemExit("bye"))), ("model", "sys.exit('bye')")),
        "exits later": (lambda: Net(after(4, raising(SystemExit(0)))), ("model", "sys.exit(0)")),
        "raises": (lambda: Net(raising(ValueError("bad\nmany lines"))), ("model", "bad")),
        "raises nothing said": (lambda: Net(raising(KeyError())), ("model", "KeyError")),
        "raises later": (lambda: Net(after(4, raising(ValueError("late")))), ("late",)),
        "raises what cannot be printed": (lambda: Net(raising(Unprintable())), ("model", "Unprintable")),
        "no memory": (lambda: Net(raising(MemoryError())), ("model",)),
        "endless recursion": (lambda: Net(recurse), ("model", "recursion")),
        "gives None": (lambda: Net(after=lambda z: None), ("NoneType", "logits")),
        "gives a tuple": (lambda: Net(after=lambda z: (z, z)), ("tuple", "logits")),
        "gives a dictionary": (lambda: Net(after=lambda z: {"logits": z}), ("dict", "logits")),
        "gives numpy": (lambda: Net(after=lambda z: z.detach().numpy()), ("ndarray", "logits")),
        "gives one dimension": (lambda: Net(after=lambda z: z[:, 0]), ("shape (1,)",)),
        "gives three dimensions": (lambda: Net(after=lambda z: z[:, None]), ("shape (1, 1, 3)",)),
        "gives fewer rows for larger batches": (lambda: Net(after=lambda z: z[:-1] if len(z) > 2 else z), ("shape",)),
        "gives a row for all": (lambda: Net(after=lambda z: z[:1]), ("two samples",)),
        "gives two classes less for many samples": (
            lambda: Net(after=lambda z: z if len(z) <= 2 else z[:, :2]),
            ("logits of shape",),
        ),
        "eval() returns nothing": (EvalOfNothing, ("eval()", "self")),
        "gives integers": (lambda: Net(after=lambda z: z.argsort(1)), ("int64",)),
        "gives complex": (lambda: Net(after=lambda z: z * 1j), ("complex",)),
        "gives NaN": (lambda: Net(after=lambda z: z * torch.nan), ("NaN",)),
        "gives sparse": (lambda: Net(after=lambda z: z.to_sparse()), ("sparse",)),
        "gives meta": (lambda: Net(after=lambda z: z.to("meta")), ("meta",)),
        "one class": (lambda: Net(after=lambda z: z[:, :1]), ("class",)),
        "half precision": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, K)).half(), ("model",)),
        "on meta": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, K)).to("meta"), ("model", "meta")),
        "lazy layers": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(K)), ("model", "initialized")),
        "cannot be copied": (Uncopied, ("model", "copied")),
        "NaN weights": (lambda: poisoned(torch.nan), ("NaN",)),
        "needs two arguments": (lambda: nn.Bilinear(4, 4, 3), ("model",)),
        "no parameters, no forward": (nn.Module, ("model", "forward")),
        "a loss": (nn.CrossEntropyLoss, ("model",)),
        "a generator function": (lambda: yielding, ("probabilities",)),
    }
    for name, (make, said) in refused.items():
        yield Case(f"model: {name}", lambda make=make: {"model": make()}, said)
    functions: dict[str, tuple[object, tuple[str, ...]]] = {
        "exits": (raising(SystemExit(0)), ("sys.exit(0)",)),
        "raises": (raising(ValueError("broken")), ("broken",)),
        "gives None": (lambda b: None, ("probabilities",)),
        "gives logits": (lambda b: probabilities(b) * 10, ("softmax",)),
        "gives text": (lambda b: "abc", ("probabilities",)),
        "gives one row": (lambda b: probabilities(b)[0], ("shape",)),
        "gives labels": (lambda b: probabilities(b).argmax(1), ("shape",)),
        "gives ragged lists": (lambda b: [[1.0], [0.5, 0.5]], ("model", "inhomogeneous")),
        "gives complex": (lambda b: probabilities(b).astype(complex), ("complex",)),
        "is a generator": (lambda b: (row for row in probabilities(b)), ("probabilities",)),
        "takes nothing": (lambda: None, ("argument",)),
        "gives a tensor of gradients in a list": (lambda b: [None] * len(b), ("probabilities",)),
    }
    for name, (function, said) in functions.items():
        yield Case(f"predict: {name}", lambda function=function: blackbox(function), said, function="assess")


class EvalOfNothing(Net):
    def eval(self) -> None:
        self.train(False)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to print")


def changing_function(batch: np.ndarray) -> np.ndarray:
    given = probabilities(batch)
    batch[:] = 0
    return given


def recurse(x: object) -> object:
    return recurse(x)


def yielding(x: object) -> Iterator[object]:
    yield x


def tied_layers() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, K))
    model[3].weight = model[1].weight
    return model


def pruned() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, K))
    prune.l1_unstructured(model[1], "weight", amount=0.3)
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, K))
    model[1].register_forward_hook(lambda module, inputs, logits: logits * 2)
    return model


def lazy_layers_used() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(K))
    model(X)
    return model


def poisoned(value: float) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, K))
    nn.init.constant_(model[1].weight, value)
    return model


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Flatten(), nn.Linear(16, K)), {nn.Linear}, torch.qint8
    )


def words() -> Iterator[Case]:
    good: dict[str, dict[str, Any]] = {
        "params of an attack": {"algorithm": "pgd", "budget": "Linf 8/255", "params": {"steps": 5}},
        "params.alpha of an attack": {"algorithm": "pgd", "budget": "Linf 8/255", "params": {"alpha": 0.01}},
        "params of both": {"algorithm": "pgd", "budget": "Linf 8/255", "params": {"alpha": 0.01, "steps": 5}},
        "a function that leaves the ball": {"algorithm": lambda m, x, y, budget, seed: 1 - x},
        "a function that gives NaN": {"algorithm": lambda m, x, y, budget, seed: x * torch.nan},
        "restarts": {"restarts": 2},
        "a function": {"algorithm": own_attack},
        "a lambda": {"algorithm": lambda m, x, y, budget, seed: x.clone()},
        "an object that is called": {
            "algorithm": type("Shift", (), {"__call__": lambda self, m, x, y, budget, seed: x.clone()})()
        },
        "capitals": {"algorithm": "FgSm"},
        "numbers of numpy in params": {"algorithm": "pgd", "params": {"steps": np.int64(5), "alpha": np.float32(0.01)}},
        "numbers of torch in params": {"algorithm": "pgd", "params": {"steps": torch.tensor(5)}},
        "numbers of numpy in the budget": {"budget": {"norm": "Linf", "epsilon": np.float32(0.1)}},
        "a decimal in the budget": {"budget": {"norm": "Linf", "epsilon": decimal.Decimal("0.1")}},
        "an array of no dimension in the budget": {"budget": {"norm": "Linf", "epsilon": np.array(0.1)}},
        "a budget that cannot be changed": {"budget": types.MappingProxyType({"norm": "Linf", "epsilon": 0.1})},
        "words of numpy": {"algorithm": np.str_("fgsm"), "budget": np.str_("Linf 0.1")},
        "fractions in the budget": {"budget": {"norm": "Linf", "epsilon": fractions.Fraction(1, 10)}},
    }
    for name, change in good.items():
        yield Case(f"words: {name}", lambda change=change: change)
    whole: dict[str, dict[str, Any]] = {
        "attacks by name, a function": {"attacks": {"mine": own_attack}},
        "attacks by name, a lambda": {"attacks": {"mine": lambda m, x, y, budget, seed: x.clone()}},
        "attacks by name, a word": {"attacks": {"mine": "fgsm", "other": "pgd"}},
        "attacks by name, entries": {"attacks": {"mine": FGSM}},
        "attacks, a list of both": {"attacks": ["fgsm", own_attack]},
        "attacks, a tuple": {"attacks": ("fgsm", "pgd")},
        "attacks, a generator": {"attacks": (word for word in ("fgsm",))},
        "class names": {"class_names": ["a", "b", "c"]},
        "class names as a Series": {"class_names": pd.Series(["a", "b", "c"])},
        "a number of classes of numpy": {"class_names": np.int64(3)},
        "class names as an array": {"class_names": np.array(["a", "b", "c"])},
        "a training split": {"train": (X, Y)},
        "a seed of numpy": {"seed": np.int64(3)},
        "a torch device": {"device": torch.device("cpu")},
        "two lambdas by name": {
            "attacks": {"a": lambda m, x, y, budget, seed: x, "b": lambda m, x, y, budget, seed: x.clone()}
        },
    }
    for name, change in whole.items():
        yield Case(
            f"words: {name}", lambda change=change: {"attacks": "fgsm", "sanity": None, **change}, function="assess"
        )
    refused: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "budget a number": ({"budget": 0.1}, ("budget", "0.1", '"Linf 0.1"')),
        "budget a pair": ({"budget": ("Linf", 8 / 255)}, ("budget", '"Linf 0.0313725')),
        "budget a pair with a number": ({"budget": (2, 0.5)}, ("budget", '"L2 0.5"')),
        "budget None": ({"budget": None}, ("budget", "None")),
        "budget True": ({"budget": True}, ("budget", "True")),
        "budget a list": ({"budget": ["Linf"]}, ("budget",)),
        "budget a function": ({"budget": own_attack}, ("budget",)),
        "budget a tensor": ({"budget": torch.tensor(0.1)}, ("budget",)),
        "budget empty": ({"budget": ""}, ("budget",)),
        "budget bytes": ({"budget": b"Linf 0.1"}, ("budget",)),
        "budget of three words": ({"budget": "Linf 8 255"}, ("budget",)),
        "budget with an equals sign": ({"budget": "Linf=8/255"}, ("budget",)),
        "budget infinite": ({"budget": "Linf inf"}, ("budget['epsilon']",)),
        "budget NaN": ({"budget": "Linf nan"}, ("budget['epsilon']",)),
        "budget of a fraction beyond doubles": (
            {"budget": {"norm": "Linf", "epsilon": fractions.Fraction(10**400)}},
            ("epsilon", "too large"),
        ),
        "algorithm a function of C": ({"algorithm": max}, ("called with",)),
        "eot without end": ({"eot": 10**9}, ("eot", "10000")),
        "budget negative": ({"budget": "Linf -0.1"}, ("budget['epsilon']",)),
        "budget 1/0": ({"budget": "Linf 1/0"}, ("budget['epsilon']",)),
        "budget of a huge exponent": ({"budget": "Linf 1/1e999999999"}, ("budget['epsilon']",)),
        "budget of many digits": ({"budget": "Linf 0." + "1" * 10**5}, ("budget['epsilon']",)),
        "budget of the wrong case": ({"budget": "linf 0.1"}, ("budget['norm']", "Linf")),
        "budget with keys that are no words": ({"budget": {1: 2}}, ("budget",)),
        "budget with a strange key": ({"budget": {"norm": "Linf", "eps": 0.1}}, ("eps",)),
        "budget without a norm and an epsilon": ({"budget": {}}, ("epsilon",)),
        "algorithm a number": ({"algorithm": 3}, ("attacks", "3")),
        "algorithm None": ({"algorithm": None}, ("attacks", "None")),
        "algorithm empty": ({"algorithm": ""}, ("attacks",)),
        "algorithm a list": ({"algorithm": ["pgd"]}, ("attacks", "pgd")),
        "algorithm bytes": ({"algorithm": b"pgd"}, ("attacks",)),
        "algorithm a type": ({"algorithm": int}, ("attacks",)),
        "algorithm of a wrong signature": ({"algorithm": lambda x: x}, ("called with",)),
        "algorithm raises": ({"algorithm": raising(ValueError("broken"))}, ("broken",)),
        "algorithm exits": ({"algorithm": raising(SystemExit(0))}, ("sys.exit(0)",)),
        "algorithm gives None": ({"algorithm": lambda m, x, y, budget, seed: None}, ("NoneType",)),
        "steps": ({"algorithm": "pgd", "steps": 10}, ("steps", 'params={"steps": 10}')),
        "alpha": ({"algorithm": "pgd", "alpha": 0.1}, ("alpha", 'params={"alpha": 0.1}')),
        "a strange keyword": ({"algorithm": "pgd", "stepps": 10}, ("stepps",)),
        "params a number": ({"algorithm": "pgd", "params": 3}, ("params", "3")),
        "params with a strange key": ({"algorithm": "pgd", "params": {"stepps": 3}}, ("stepps", "steps")),
        "params with an array": ({"algorithm": "pgd", "params": {"steps": np.zeros(3)}}, ("steps",)),
        "params with an object": ({"algorithm": "pgd", "params": {"steps": object()}}, ("steps",)),
        "params with a key that is no word": ({"algorithm": "pgd", "params": {3: 3}}, ("params", "3")),
        "steps in the budget": (
            {"algorithm": "pgd", "budget": {"norm": "Linf", "epsilon": 0.1, "steps": 5}},
            ("steps",),
        ),
    }
    for name, (change, said) in refused.items():
        yield Case(f"words: {name}", lambda change=change: change, said)
    refused_whole: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "attacks [3]": ({"attacks": [3]}, ("attacks", "3")),
        "attacks 3": ({"attacks": 3}, ("attacks", "3")),
        "attacks True": ({"attacks": True}, ("attacks", "True")),
        "attacks [None]": ({"attacks": [None]}, ("attacks", "None")),
        "attacks {3: word}": ({"attacks": {3: "pgd"}}, ("attacks", "3")),
        "attacks {name: 3}": ({"attacks": {"mine": 3}}, ("attacks['mine']", "3")),
        "attacks {name: None}": ({"attacks": {"mine": None}}, ("attacks['mine']", "None")),
        "attacks with a path as name": ({"attacks": {"../mine": FGSM}}, ("../mine",)),
        "attacks twice the same": ({"attacks": ["fgsm", "fgsm"]}, ("attacks", "fgsm", "twice")),
        "attacks without end": ({"attacks": endless()}, ("attacks",)),
        "verify an attack": ({"verify": "pgd"}, ("verification", "pgd")),
        "verify a function": ({"verify": own_attack}, ("verification",)),
        "corrupt a verifier": ({"corrupt": "cascade"}, ("corruptions", "cascade")),
        "queries 3": ({"queries": 3}, ("queries", "3")),
        "sweeps [[]]": ({"sweeps": [[]]}, ("sweeps",)),
        "sanity 3": ({"sanity": 3}, ("sanity", "3")),
        "sanity unknown": ({"sanity": "strict"}, ("sanity: 'strict'",)),
        "class names text": ({"class_names": "abc"}, ("class_names", "'abc'")),
        "class names a number": ({"class_names": 3.5}, ("class_names", "3.5")),
        "class names of numbers": ({"class_names": [1, 2, 3]}, ("class_names",)),
        "class names too few": ({"class_names": ["a"]}, ("class",)),
        "class names twice the same": ({"class_names": ["a", "a", "b"]}, ("name",)),
        "train an array": ({"train": X}, ("train", "(x, y)")),
        "train a number": ({"train": 3}, ("train", "(x, y)")),
        "train of three": ({"train": (X, Y, Y)}, ("train", "(x, y)")),
        "train of another shape": ({"train": (torch.rand(3, 1, 5, 5), [0, 1, 2])}, ("train",)),
        "train with None": ({"train": (None, Y)}, ("train", "None")),
        "seed text": ({"seed": "abc"}, ("seed",)),
        "seed None": ({"seed": None}, ("seed",)),
        "seed negative": ({"seed": -1}, ("seed",)),
        "seed True": ({"seed": True}, ("seed", "True")),
        "seed 2**70": ({"seed": 2**70}, ("seed", "too large")),
        "device unknown": ({"device": "gpu"}, ("device",)),
        "device None": ({"device": None}, ("device",)),
        "device meta": ({"device": "meta"}, ("device", "meta")),
        "device a number": ({"device": 0}, ("device",)),
    }
    for name, (change, said) in refused_whole.items():
        yield Case(
            f"words: {name}",
            lambda change=change: {"attacks": "fgsm", "sanity": None, **change},
            said,
            function="assess",
        )


def endless() -> Iterator[str]:
    while True:
        yield "fgsm"


def other_functions() -> Iterator[Case]:
    """Functions that take other arguments; `call` of the keywords is called with the others."""

    def calls(function: Callable[[], object], said: tuple[str, ...] = ()) -> Callable[[], dict[str, Any]]:
        return lambda: {"call": function}

    refused: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
        "read(None)": (lambda: wt.read(None), ("None",)),
        "read(3)": (lambda: wt.read(3), ("3",)),
        "read of nothing": (lambda: wt.read("nowhere"), ("nowhere",)),
        "read of a NUL": (lambda: wt.read("a\0b"), ("a",)),
        "read of bytes": (lambda: wt.read(b"\xff"), ("bytes",)),
        "read of a long name": (lambda: wt.read("a" * 5000), ("too long",)),
        "load_params(None)": (lambda: wt.load_params(None), ("None",)),
        "load_params of text": (lambda: wt.load_params("nowhere.yaml"), ("nowhere.yaml", "no such file")),
        "load_params of a folder": (lambda: wt.load_params("."), ("regular file",)),
        "load_params of a NUL": (lambda: wt.load_params("a\0b"), ("a",)),
        "read_artifacts(None)": (lambda: wt.read_artifacts(None), ("None",)),
        "read_artifacts of text": (lambda: wt.read_artifacts("nowhere"), ("nowhere",)),
        "write_artifacts of nothing": (
            lambda: wt.write_artifacts(None, "here", None, started=0.0),
            ("AssessmentResult", "None"),
        ),
        "subject_of a module": (lambda: wt.subject_of(MODEL, X), ("Classifier", "Sequential")),
        "subject_of no data": (lambda: wt.subject_of(None, None), ("Classifier", "None")),
        "verify with a function": (lambda: wt.verify(probabilities, X, Y, "ibp", budget="Linf 0.1"), ("function",)),
        "verify with a callable": (lambda: wt.verify(MODEL, X, Y, own_attack, budget="Linf 0.1"), ("verification",)),
        "corrupt with steps": (lambda: wt.corrupt(MODEL, X, Y, "fog", steps=3), ("steps",)),
        "corrupt(None)": (lambda: wt.corrupt(None, X, Y), ("model", "None")),
    }
    for name, (function, said) in refused.items():
        yield Case(name, calls(function), said, function="call")
    good: dict[str, Callable[[], object]] = {
        "under no_grad": lambda: torch.no_grad()(plain)(),
        "under inference_mode": lambda: torch.inference_mode()(plain)(),
        "under autocast": lambda: torch.autocast("cpu")(plain)(),
        "with float64 as the default": lambda: with_default(torch.set_default_dtype, torch.float64, torch.float32),
        "with meta as the default device": lambda: with_default(torch.set_default_device, "meta", None),
        "in a thread": in_a_thread,
        "with numpy's errors raised": lambda: np.errstate(all="raise")(plain)(),
        "with warnings as errors": warnings_as_errors,
        "within a running loop": in_a_loop,
        "a result of a read-only folder": lambda: plain().metrics,
    }
    for name, function in good.items():
        yield Case(name, calls(function), function="call")


def plain() -> Any:
    return wt.attack(MODEL, X, Y, "pgd", budget="Linf 0.1")


def with_default(setter: Callable[[Any], None], value: Any, before: Any) -> Any:
    setter(value)
    try:
        return plain()
    finally:
        setter(before)


def in_a_thread() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(plain).result()


def warnings_as_errors() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return plain()


def in_a_loop() -> Any:
    import asyncio

    async def call() -> Any:
        return plain()

    return asyncio.run(call())
