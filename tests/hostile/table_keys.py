"""Rows of the youngest keys: corrupted samples, regions, slices, heads, twins, prices and suites."""

# ruff: noqa: E501  a row is a line, whatever its length
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.hostile.harness import BASE, params, write_params
from tests.hostile.table import Make, Row, given, module
from tests.hostile.table_models import _external, _onnx

_FGSM = BASE["attacks"]["fgsm"]  # type: ignore[index]
_GRID = {"library": "transformations", "algorithm": "grid", "budget": "t"}
_PREDICT = "def predict(x):\n    return np.full((len(x), 10), 0.1)\n"
_FUNCTION = {"source": "function", "function": "mine:predict"}
_QUERY = {"attacks": {}, "queries": {"q": {"algorithm": "EvoBA"}}}
_HEADER = "sample,column,value\n"
_TRUE = "is not a number"


def rows_of_keys() -> Iterator[Row]:
    """Yield the rows."""
    haze = {"haze": {"library": "windtunnel", "algorithm": "camera"}}
    for on, word in [
        ({"corrupted_by": ["haze/nosuch-3"]}, "nosuch-3"), ({"corrupted_by": ["haze/fog-9"]}, "fog-9"), ({"corrupted_by": ["haze/"]}, "names no image"), ({"corrupted_by": ["haze/../x"]}, "../x"),
        ({"corrupted_by": ["haze", "haze"]}, "twice"), ({"corrupted_by": ["/"]}, "corrupted_by"), ({"corrupted_by": ["haze/fog-3/x"]}, "fog-3/x"), ({"corrupted_by": [3]}, "corrupted_by"),
        ({"corrupted_by": {"a": 1}}, "corrupted_by"), ({"corrupted_by": [None]}, "corrupted_by"), ({"corrupted_by": ["fgsm"]}, "entry of corruptions"), ({"corrupted_by": ["haze\n"]}, "entry of corruptions"),
        ({"corrupted_by": ["x" * 10000]}, "entry of corruptions"), ({"corrupted_by": ["haze"], "survivors_of": ["fgsm"]}, "other images"), ({"corrupted_by": ["haze"], "nosuch": []}, "nosuch"),
        ({"survivors_of": ["fgsm", "fgsm"]}, "twice"), ({"survivors_of": [["fgsm"]]}, "survivors_of"), ({"uncertified_by": [True]}, "uncertified_by"), ({"survivors_of": ""}, "survivors_of"),
    ]:  # fmt: skip
        entries = {"fgsm": _FGSM, "b": {**_FGSM, "on": on}}
        yield Row(f"on {str(on)[:60]}", given(corruptions=haze, attacks=entries), ("attacks.b.on", word))
    for region, word in [
        ({"rotation": 10, "border": "mirror"}, "border"), ({"rotation": 10, "border": 3}, "border"), ({"rotation": 10, "border": ""}, "border"), ({"rotation": 10, "border": ["edge"]}, "border"), ({"border": "edge"}, "border"),
        ({"brightness": 0.1, "border": "edge"}, "brightness does not"), ({"rotation": True}, "rotation"), ({"rotation": 1e300}, "rotation"), ({"rotation": "1/0"}, "rotation"), ({"rotation": {"max": 10}}, "rotation"), ({"rotation": 0}, "rotation"),
        ({"rotation": float("nan")}, "rotation"), ({"rotation": "9" * 5000}, "rotation"), ({"rotation": 1, "translation": 0.1, "scale": 0.1, "shear": 1, "blur": 1}, "5 kinds"), ({"patch": 3, "rotation": 1}, "only change"), ({"patch": 0}, "patch"),
        ({"patch": 10**9}, "patch"), ({"patch": -3}, "patch"), ({"occlusion": 2.5}, "occlusion"), ({"rotation": 10, "norm": "L2"}, "norm"), ({"rotation": 10, "epsilon": 0.1}, "epsilon"), ({"scale": 1.5}, "scale"), ({"gamma": "x"}, "gamma"),
        ({"saturation": -1}, "saturation"), ({"blur": 1e9}, "blur"), ({"contrast": 2}, "contrast"), ({"shear": 1e9}, "shear"), ({"norm": "patch=1e999", "epsilon": 1}, "norm"),
    ]:  # fmt: skip
        yield Row(f"region {str(region)[:60]}", given(budgets={"t": region}, attacks={"a": _GRID}), ("t", word))
    for name, content, word in [
        ("empty", "", "first line"), ("a header alone", _HEADER, "no lines"), ("another header", "a,b,c\n1,2,3\n", "first line"), ("two cells", _HEADER + "a,b\n", "line 2"), ("a NUL", _HEADER + "a\0b,b,c\n", "s.csv"), ("an open quote", _HEADER + '"a,b,c\n', "not a CSV"),
        ("Latin-1", _HEADER + "\udce9,b,c\n", "UTF-8"), ("nobody", _HEADER + "nobody,cam,a\n", "no sample"), ("a slash", _HEADER + "0,a/b,c\n", "a/b"), ("HTML", _HEADER + "0,<script>,x\n", "<script>"), ("502 slices", _HEADER + "".join(f"x{i},c,v{i}\n" for i in range(502)), "500"),
        ("a long cell", _HEADER + "a" * 200_000 + ",b,c\n", "not a CSV"), ("a line in a cell", _HEADER + '0,"a\nb",c\n', "no name of a slice"), ("commas", _HEADER + ",,\n", "line 2"),
    ]:  # fmt: skip
        yield Row(f"slices: {name}", _slices(content), ("data.slices", word))
    yield Row("slices: a pipe", _slices(None), ("data.slices", "named pipe"))
    for path, word in [(3, "text"), ("", "empty"), ("nowhere.csv", "no such file"), ("/dev/zero", "device"), ("a\0b", "null byte"), (".", "folder")]:  # fmt: skip
        yield Row(f"data.slices {path!r}", given(data={"slices": path}), ("data.slices", word))
    for head, word in [
        ("binari", "binari"), (3, "3"), ([], "[]"), ({"kind": "x"}, "'x'"), ({"top_k": 0}, "top_k"), ({"top_k": 10}, "top_k"), ({"top_k": True}, _TRUE), ({"top_k": 1.5}, "top_k"), ({"top_k": 10**12}, "too large"), ({"label": "a"}, "labels"),
        ({"labels": ["a"]}, "label"), ({"labels": [], "label": "a"}, "labels"), ({"labels": ["a", "a"], "label": "a"}, "twice"), ({"labels": ["a", "b"], "label": "c"}, "label"), ({"labels": 3, "label": "a"}, "labels"),
        ({"kind": "binary", "threshold": 0}, "threshold"), ({"kind": "binary", "threshold": "x"}, "threshold"), ({"kind": "softmax", "top_k": 3}, "top_k"), ({"output": "x"}, "output"), ("", "empty"),
    ]:  # fmt: skip
        yield Row(f"model.head {head!r}", given(model={"head": head}), ("model.head", word))
    onnx = {"source": "onnx"}
    for twin, word in [
        (3, "map of keys"), ({**onnx, "path": ""}, "empty"), ({"source": "train", "path": "x"}, "train"), ({**onnx, "path": "no.onnx"}, "model.twin.path: no.onnx: no such file"), ({**onnx, "path": 3}, "path"), ({**onnx, "path": "/dev/zero"}, "model.twin.path"),
        ({"source": "state_dict", "path": "w.pt"}, "model.twin.factory"), ({**onnx, "path": "a\0b"}, "model.twin.path"), ({**onnx, "path": "w.onnx"}, "not an ONNX model"), ({**onnx, "path": "w.onnx", "output": "x"}, "output"), ({**onnx, "path": "w.onnx", "nosuch": 1}, "nosuch"),
    ]:  # fmt: skip
        yield Row(f"model.twin {twin!r}", _twin(twin), ("model.twin", word))
    yield Row("model.twin of a recipe", given(model={"twin": {**onnx, "path": "x"}}), ("twin", "train"))
    for price in [0, -1, "x", "1/0", True, [1], float("inf"), "1e999", ""]:
        yield Row(
            f"model.price {price!r}", module(_PREDICT, model={**_FUNCTION, "price": price}, **_QUERY), ("model.price",)
        )
    yield Row("model.price of a recipe", given(model={"price": 1}), ("price", "train"))
    for interface in [
        3,
        {"batch_size": 0},
        {"batch_size": True},
        {"calls_per_second": 0},
        {"retries": 21},
        {"retries": 1.5},
    ]:
        yield Row(
            f"model.interface {interface!r}",
            module(_PREDICT, model={**_FUNCTION, "interface": interface}, **_QUERY),
            ("model.interface",),
        )
    for change in [
        {"algorithm": "cammera"}, {"upsample": True}, {"library": "folder"}, {"library": "folder", "path": "nowhere"}, {"library": "folder", "path": "/dev/zero"}, {"library": "folder", "path": ""}, {"path": "x"}, {"library": "folder", "path": ".", "severities": [9]},
        {"library": "function", "algorithm": "mine"}, {"severities": "all"}, {"severities": [True]}, {"reference": 3}, {"time_limit": 0}, {"corruptions": [["fog"]]},
    ]:  # fmt: skip
        yield Row(f"suite {change!r}", given(corruptions={"haze": {**haze["haze"], **change}}), ("corruptions.haze",))
    for tracking in [{"experiment": ""}, {"registered_model": ""}, {"uri": ""}, {"tags": {"a": {"b": {"c": 1}}}}]:
        yield Row(f"tracking {tracking!r}", given(tracking=tracking), (f"tracking.{next(iter(tracking))}",))
    yield Row(
        "report.title of a million characters", given(report={"title": "x" * 10**6}), ("report.title", "200 characters")
    )
    for command, word in [
        (("check", "--minutes", "nan"), "no finite number"), (("check", "--width", "nan"), "no finite number"), (("check", "--minutes", "inf"), "no finite number"), (("sweep", "--budget", "epsilon=*x"), "alias"), (("sweep", "--set", "seed=a: b: c"), "not YAML"),
        (("sweep", "--set", "seed=!!python/object:os.system 1"), "not YAML"), (("sweep", "--set", "..=1"), "is not there"), (("sweep", "--set", "data.samples.n=true"), _TRUE), (("sweep", "--set", "report.title=" + "x" * 201), "report.title"),
        (("compare", "--", "--upload-pack=x", "workspace"), "--upload-pack=x"), (("promote", "--version", "../1"), "no version"),
    ]:  # fmt: skip
        yield Row(f"windtunnel {' '.join(command)[:50]}", given(), (word,), command)


def _slices(content: str | None) -> Make:
    """A project with slices.csv; a named pipe in its place for None."""

    def make(folder: Path) -> None:
        path = folder / "s.csv"
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
        write_params(folder, params(data={"slices": "s.csv"}))

    return make


def _twin(twin: object) -> Make:
    """An ONNX graph with this twin; w.onnx is no graph."""

    def make(folder: Path) -> None:
        _onnx(_external("initializer"))(folder)
        (folder / "w.onnx").write_bytes(b"x")
        torch.save({}, folder / "w.pt")
        write_params(folder, params(model={"source": "onnx", "path": "net.onnx", "time_limit": 5, "twin": twin}))

    return make
