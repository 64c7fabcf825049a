"""Rows of bad instances for `windtunnel verify`, and of outputs that would replace what a command reads."""

# ruff: noqa: E501  a row is a line, whatever its length
from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.hostile.harness import params, write_params
from tests.hostile.table import Make, Row

_GOOD = (
    "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
    "(assert (>= X_0 0.0))\n(assert (<= X_0 1.0))\n(assert (>= X_1 0.0))\n(assert (<= X_1 1.0))\n(assert (<= Y_0 Y_1))\n"
)
_V2 = (
    "(vnnlib-version <2.0>)\n(declare-network N\n(declare-input X float32 [2])\n(declare-output Y float32 [2]))\n"
    "(assert (>= X[0] 0.0))\n(assert (<= Y[0] Y[1]))\n"
)


def _graph() -> bytes:
    weight = numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", value[:1], value[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()


_NET = _graph()
_TEXTS: dict[str, str | bytes] = {
    "an exponent of 400": _GOOD.replace("<= X_0 1.0", "<= X_0 1e400"), "an exponent of 999999999": _GOOD.replace("<= X_0 1.0", "<= X_0 1e999999999"), "a small exponent": _GOOD.replace(">= X_0 0.0", ">= X_0 1e-999999999"), "5,000 digits": _GOOD.replace("<= X_0 1.0", "<= X_0 " + "9" * 5000),
    "a bound beyond float32": _GOOD.replace("<= X_0 1.0", "<= X_0 1e39"), "an index of 10^15": _GOOD.replace("X_1", "X_1000000000000000"), "an output index of 10^15": _GOOD.replace("Y_1", "Y_1000000000000000"), "an index of 100 digits": _GOOD.replace("X_1", "X_" + "9" * 100), "a million of variables": _GOOD.replace("X_1 ", "X_999999 "),
    "a missing bound": _GOOD.replace("(assert (<= X_0 1.0))\n", ""), "a gap": _GOOD.replace("X_1", "X_7"), "crossed bounds": _GOOD.replace("<= X_0 1.0", "<= X_0 -1.0"), "NaN": _GOOD.replace("1.0", "nan"), "infinity": _GOOD.replace("1.0", "inf"), "a fraction": _GOOD.replace("1.0", "1/2"), "a product": _GOOD + "(assert (<= (* X_0 X_1) 1.0))\n", "inputs with outputs": _GOOD + "(assert (<= X_0 Y_0))\n",
    "brackets": _GOOD + "(" * 100_000, "an open bracket": _GOOD[:-3], "100,000 closing": _GOOD + ")" * 100_000, "deep and": _GOOD + "(assert " + "(and " * 3000 + "(<= Y_0 Y_1)" + ")" * 3001, "no file of text": bytes(range(256)), "UTF-16": _GOOD.encode("utf-16"), "a NUL": "\0" * 10, "nothing": "", "comments": ";" * 10**6, "words": "hello", "XML": "<a/>", "no output": "\n".join(_GOOD.splitlines()[:-1]),
    "an undeclared output": _GOOD.replace("(declare-const Y_1 Real)\n", ""), "a negative index": _GOOD.replace("X_1", "X_-1"), "three inputs": _GOOD.replace("(declare-const X_1", "(declare-const X_2 Real)\n(assert (>= X_2 0.0))\n(assert (<= X_2 1.0))\n(declare-const X_1"), "three outputs": _GOOD.replace("(declare-const Y_1", "(declare-const Y_2 Real)\n(declare-const Y_1"),
    "version 2 of 10^11 values": _V2.replace("[2])\n(declare-o", "[99999999999])\n(declare-o"), "version 2 of 10^10 in a product": _V2.replace("[2])\n(declare-o", "[99999,99999])\n(declare-o"), "version 2 of digits": _V2.replace("[2])\n(declare-o", "[" + "9" * 10_000 + "])\n(declare-o"), "version 2 outside": _V2.replace("Y[1]", "Y[9]"), "version 2 far outside": _V2.replace("Y[1]", "Y[99999999999999999999]"), "version 9": _V2.replace("2.0", "9.0"), "version 2 cut": _V2[:60],
    "a negation": _GOOD.replace("(<= Y_0 Y_1)", "(not (> Y_0 Y_1))"), "a definition": "(define-fun f () Real 1.0)\n" + _GOOD, "a quantifier": _GOOD + "(assert (forall ((z Real)) (<= z Y_0)))",
}  # fmt: skip


def _changed(*, shape: list[int] | None = None, **tensor: object) -> bytes:
    """The graph with another shape of its input, or other fields of its weight."""
    model = onnx.load_from_string(_NET)
    if shape:
        for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
            dimension.dim_value = size
    if tensor:
        model.graph.initializer[0].CopyFrom(onnx.TensorProto(name="w", **{"data_type": 1, "dims": [2, 2], **tensor}))
    return model.SerializeToString()


def _of_nodes(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] | None = None) -> bytes:
    """A graph of these nodes, from x (1, 2) to y."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8, functions=functions or []).SerializeToString()


def _doubling(times: int) -> list[onnx.FunctionProto]:
    """Functions F0, F1 ... of which each calls the next twice: 2^times nodes once they are written out."""
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    calls = [
        [helper.make_node(f"F{i + 1}", [a], [b], domain="own") for a, b in (("a", "c"), ("c", "b"))]
        for i in range(times)
    ]
    bodies = [*calls, [helper.make_node("Relu", ["a"], ["b"])]]
    return [helper.make_function("own", f"F{i}", ["a"], ["b"], body, sets) for i, body in enumerate(bodies)]


_DIVIDES_BY_ZERO = _of_nodes(
    [
        helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64),
        helper.make_node("Sub", ["i", "i"], ["zero"]),
        helper.make_node("Div", ["i", "zero"], ["z"]),
        helper.make_node("Cast", ["z"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
)
_NEVER_READ = _of_nodes([helper.make_node("F0", ["x"], ["y"], domain="own")], _doubling(30))
_GRAPHS: dict[str, bytes] = {
    "a division by zero": _DIVIDES_BY_ZERO,
    "a negative batch": _changed(shape=[-1, 2]),
    "a batch of 2^60": _changed(shape=[2**60, 2]),
    "a cut weight": _changed(raw_data=bytes(3)),
    "a weight of 2^80 values": _changed(dims=[2**40, 2**40], raw_data=bytes(16)),
    "a weight of 2^99 values": _changed(dims=[2**33] * 3),
    "a weight of type 99": _changed(data_type=99, raw_data=bytes(16)),
    "noise": bytes(range(256)) * 9,
    "cut": _NET[:40],
    "empty": b"",
    "text": b"hello",
    "a zip": b"PK\x03\x04" + b"\0" * 99,
}


# What the line holds; "not VNN-LIB" where nothing stands here.
_SYNTAX, _DIGITS, _BOUNDS = (
    ("not VNN-LIB", "Parse error: syntax error at line"),
    ("more than 300 digits or an exponent beyond 300",),
    ("input", "has no bound below or above"),
)
_WORDS: dict[str, tuple[str, ...]] = {
    "an exponent of 400": ("'1e400'", *_DIGITS), "an exponent of 999999999": ("'1e999999999'", *_DIGITS), "a small exponent": ("1e-999999999", *_DIGITS), "5,000 digits": _DIGITS, "a bound beyond float32": ("range of float32",),
    "an index of 10^15": ("index '1000000000000000'", "999999 at most"), "an output index of 10^15": ("index '1000000000000000'", "999999 at most"), "an index of 100 digits": ("index '999", "999999 at most"),
    "a million of variables": _BOUNDS, "a missing bound": _BOUNDS, "a gap": _BOUNDS, "crossed bounds": ("empty input region",), "NaN": ("line 10", "Undeclared variable"), "infinity": ("line 10", "Undeclared variable"),
    "a fraction": _SYNTAX, "a product": ("Non-linear",), "inputs with outputs": ("Input-output mixed",), "brackets": _SYNTAX, "an open bracket": _SYNTAX, "100,000 closing": _SYNTAX, "deep and": ("sat",),
    "no file of text": ("is no text in UTF-8",), "UTF-16": ("is no text in UTF-8",), "a NUL": _SYNTAX, "nothing": _SYNTAX, "comments": _SYNTAX, "words": _SYNTAX, "XML": _SYNTAX, "no output": ("constrains no output",),
    "an undeclared output": ("line 12", "Index out of bounds"), "a negative index": _SYNTAX, "three inputs": ("declares 3",), "three outputs": ("declares 3",),
    "version 2 of 10^11 values": ("declares '99999999999' values",), "version 2 of 10^10 in a product": ("declares '99999,99999' values",), "version 2 of digits": ("(10002 characters) values",),
    "version 2 outside": ("line 6", "Index out of bounds"), "version 2 far outside": ("index '99999999999999999999'", "999999 at most"), "version 9": ("line 1", "Incompatible VNNLib version"), "version 2 cut": _SYNTAX,
    "a negation": ("uses not;",), "a definition": ("uses define-fun;",), "a quantifier": ("uses forall;",),
}  # fmt: skip


def rows_of_vnnlib() -> Iterator[Row]:
    for name, content in _TEXTS.items():
        raw = content if isinstance(content, bytes) else content.encode()
        for suffix, written in (("", raw), (".gz", gzip.compress(raw, 1))):
            file = f"s.vnnlib{suffix}"
            about = "net.onnx" if name.startswith("three") else "s.vnnlib"  # of the graph, which has two of each
            words, code = ((about, *_WORDS[name]), 2) if name != "deep and" else (_WORDS[name], 0)
            yield Row(f"verify {file}: {name}", _instance({file: written}), words, _verify(file), code)
    for name, raw in {
        "noise": b"\x1f\x8bxx",
        "text": b"text",
        "cut": gzip.compress(_GOOD.encode())[:-9],
        "a bomb": gzip.compress(b";" * 2**20) * 300,
    }.items():
        yield Row(
            f"verify s.vnnlib.gz: {name} for gzip",
            _instance({"s.vnnlib.gz": raw}),
            ("s.vnnlib.gz",),
            _verify("s.vnnlib.gz"),
        )
    for name, raw in _GRAPHS.items():
        yield Row(
            f"verify a graph of {name}",
            _instance({"net.onnx": raw, "s.vnnlib": _GOOD.encode()}),
            ("net.onnx",),
            _verify("s.vnnlib"),
        )
    never = _instance({"net.onnx": _NEVER_READ, "s.vnnlib": _GOOD.encode()})
    yield Row("verify a graph of 2^30 nodes", never, ("timeout",), (*_verify("s.vnnlib"), "--timeout", "4"), 0)
    many = _instance({"net.onnx": _NET, "s.vnnlib": (_GOOD + "(assert (<= Y_0 Y_1))\n" * 100_000).encode()})
    yield Row("verify 10^5 assertions", many, ("timeout",), (*_verify("s.vnnlib"), "--timeout", "4"), 0)
    for kind in ("pipe", "folder", "loop", "nothing"):
        yield Row(f"verify --vnnlib {kind}", _odd("s.vnnlib", kind), ("s.vnnlib",), _verify("s.vnnlib"))
        yield Row(f"verify --onnx {kind}", _odd("net.onnx", kind), ("net.onnx",), _verify("s.vnnlib"))
    good = _instance({"s.vnnlib": _GOOD.encode(), "mine.yaml": b"a", "mine.py": b"a", "a/b": b"a", "notes.md": b"a"})
    for place in (
        "net.onnx",
        "s.vnnlib",
        "params.yaml",
        "mine.yaml",
        "mine.py",
        "dvc.lock",
        "notes.md",
        ".git/x",
        "a/b/c.txt",
        "./net.onnx",
        "a/../s.vnnlib",
    ):
        yield Row(f"verify --result {place}", good, ("--result",), (*_verify("s.vnnlib"), "--result", place))
    for name, raw in {
        "a mark": b"\xef\xbb\xbf" + _GOOD.encode(),
        "plain": _GOOD.encode(),
        "Windows": _GOOD.replace("\n", "\r\n").encode(),
    }.items():
        yield Row(
            f"verify works: {name}",
            _instance({"s.vnnlib": raw}),
            ("sat",),
            (*_verify("s.vnnlib"), "--result", "new/folder/result.txt"),
            0,
        )
        yield Row(
            f"verify works: {name}, packed",
            _instance({"s.vnnlib.gz": gzip.compress(raw)}),
            ("sat",),
            _verify("s.vnnlib.gz"),
            0,
        )
    for place in ("mine.yaml", "net.onnx", "a/b/c", ".git", ".git/x", ".dvc/x", "a"):
        yield Row(f"vnnlib export --to {place}", good, ("--to",), ("vnnlib", "export", "proof", "--to", place))
    for place in ("mine.yaml", "a/b", ".git", ".dvc/x"):
        yield Row(f"report --output {place}", good, ("--output",), ("report", "--output", place))
    for command, option in (
        ("evidence", "--output"),
        ("gate", "--junit"),
        ("sanity", "--junit"),
        ("retrain", "--summary"),
        ("sweep", "--html"),
        ("compare", "--html"),
    ):
        for place in ("params.yaml", "net.onnx", "mine.py", ".git/config", "dvc.yaml"):
            runs = ("a", "b") if command == "compare" else ()
            yield Row(f"{command} {option} {place}", good, (option, place), (command, *runs, option, place), 2)


def _verify(specification: str) -> tuple[str, ...]:
    return ("verify", "--vnnlib", specification, "--onnx", "net.onnx", "--timeout", "100")


def _instance(files: dict[str, bytes]) -> Make:
    def make(folder: Path) -> None:
        write_params(folder, params())
        for name, content in {"net.onnx": _NET, **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return make


def _odd(name: str, kind: str) -> Make:
    def make(folder: Path) -> None:
        _instance({"s.vnnlib": _GOOD.encode()})(folder)
        (folder / name).unlink()
        if kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "folder":
            (folder / name).mkdir()
        elif kind == "loop":
            (folder / name).symlink_to(name)

    return make
