"""The table of bad inputs: what is wrong, and the words that the one line about it holds.

A row is a name, what makes the project, the command, and the words. `make(folder)` writes into an empty folder.
"""

# ruff: noqa: E501  a row is a line, whatever its length
from __future__ import annotations

import csv
import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from tests.hostile.harness import BASE, params, write_params

Make = Callable[[Path], None]


@dataclass(frozen=True)
class Row:
    """One bad input. `words` must stand in the one line; `code` is the exit code."""

    name: str
    make: Make
    words: tuple[str, ...]
    command: tuple[str, ...] = ("check",)
    code: int = 2


def given(**blocks: object) -> Make:
    """A project whose params have these blocks merged in."""
    return lambda folder: write_params(folder, params(**blocks))


def text(content: str | bytes) -> Make:
    return lambda folder: write_params(folder, content)


def fgsm(**keys: object) -> dict[str, object]:
    return {"attacks": {"fgsm": {**BASE["attacks"]["fgsm"], **keys}}}  # type: ignore[index]


# --- params: every key with values of another kind ---

_NUMBERS: list[object] = ["abc", "1/0", "", "nan", "inf", "1e999", True, None, [1], {"a": 1}, -1, 0, "8//255", "0x10"]


def schema() -> Iterator[Row]:
    for value in _NUMBERS:
        yield Row(f"epsilon {value!r}", given(budget={"epsilon": value}), ("budget.epsilon",))
    for value in ["abc", -1, 1.5, None, [1], "1e400"]:
        yield Row(f"seed {value!r}", given(seed=value), ("seed",))
    for value in ["meta", "cuda:999", "teapot", "", "cpu:x", "mps", 3, ["cpu"]]:
        yield Row(f"device {value!r}", given(device=value), ("device",))
    for value in ["L3", "linf ", 2, None, ["Linf"], "latent_L2", ""]:
        yield Row(f"norm {value!r}", given(budget={"norm": value}), ("budget.norm",))
    for key, values in {
        "source": ["digit", "", None, 3, ["npz"]], "samples": [{"n": 0}, {"n": -3}, {"n": 1.5}, {"n": "all"}, {"selection": "best"}, {"m": 3}, 5],
        "resize": [0, -1, "abc", 200000, [8], [8, 8, 8], [8, 0], 1.5], "channels": [2, 4, "rgb", 0],
        "class_names": [0, -1, 10**9, [], ["a", "a"], "abc", {"a": 1}], "value_range": [[1], [0, "x"], [1, 0], 5, ["a", 1]],
        "test_fraction": [0, 1, 2, -1, "x", 0.9999], "kwargs": [3, [1], "x"], "time_limit": [0, -1, "soon"],
    }.items():  # fmt: skip
        for value in values:
            yield Row(f"data.{key} {value!r}", given(data={key: value}), (f"data.{key}",))
    for key, values in {
        "source": ["trained", None, 3, ""], "train": [{"epochs": 0}, {"architecture": "resnet"}, {"recipe": "x"}, {"epoch": 3}, 5, {"learning_rate": 0}],
        "kwargs": ["x", 3], "allow_pickle": ["maybe", 3, [1]], "time_limit": [0, "x", -1], "pth": [1],
    }.items():  # fmt: skip
        for value in values:
            yield Row(f"model.{key} {value!r}", given(model={key: value}), (f"model.{key}",))
    for key, values in {
        "library": ["torchatacks", None, 3, ""], "algorithm": ["PDG", None, 3, "", "pgd "], "budget": [{"epsilon": -1}, {"norm": "L9"}, {"eps": 1}, 5],
        "batch_size": [0, -1, "x", 1.5], "samples": [{"n": 0}, 3], "visualisers": ["x", [3], [{"x": {}}], ["NoSuchVisualiser"], ["CertifiedCurveVisualiser"]],
        "params": [3, ["x"], {"no_such_parameter": 1}], "restarts": [0, "x"], "target_classes": ["wrong_word", 99, -1, [1, 2]],
        "transfer_to": [3, {"o": 3}, {"o": {"factory": "a:b"}}, {"o": "nowhere"}, {"o": "models:/x/y/z"}], "on": [3, {}, {"survivors_of": []}, {"survivors_of": ["x"]}, {"uncertified_by": ["x"]}, {"corrupted_by": ["x"]}, {"corrupted_by": "x"}, {"corrupted_by": ["/x"]}, {"survivers_of": ["x"]}],
        "epsilon": [1],
    }.items():  # fmt: skip
        for value in values:
            yield Row(f"attacks.fgsm.{key} {value!r}", given(**fgsm(**{key: value})), ("attacks.fgsm",))
    for block, value in [
        ("attacks", 3), ("attacks", ["fgsm"]), ("attacks", {"x": None}), ("attacks", {"x": 3}), ("queries", "x"), ("sweeps", 1), ("verification", [1]),
        ("corruptions", "fog"), ("latent", 3), ("generators", 3), ("sanity", 3), ("report", [1]), ("tracking", "x"), ("gate", 5), ("clean", 3),
        ("budgets", 3), ("budgets", {"a": 3}), ("budgets", {"a": {"epsilon": 0}}), ("budget", "tight"), ("budget", "${budgets.x}"), ("budget", 5), ("budget", None),
        ("data", None), ("data", 3), ("model", "train"), ("atacks", {}), ("seeds", 3),
    ]:  # fmt: skip
        yield Row(f"{block}: {value!r}", given(**{block: value}), (block,))
    for value in [{"epsilons": {"start": 0, "stop": 1, "steps": 10**9}}, {"epsilons": {"start": 1, "stop": 0, "steps": 3}}, {"epsilons": []},
                  {"epsilons": [-1]}, {"epsilons": ["x"]}, {"epsilons": {"start": 0, "stop": 1}}, {"epsilons": {"start": 0, "stop": 1, "steps": 3, "spacing": "log"}},
                  {"epsilons": {"start": 0, "stop": 1, "steps": 3, "spacing": "geometric"}}, {"refine": 0}, {"thresholds": {"robust": 0.5}}, {"algorithm": "FGMS"},
                  {"epsilons": 5}, {"clip": "maybe"}]:  # fmt: skip
        yield Row(f"sweeps.s {value!r}", given(sweeps={"s": value}), ("sweeps.s",))
    counts: list[tuple[str, dict[str, object]]] = [
        ("params.steps", fgsm(algorithm="PGD", params={"steps": 10**15})), ("restarts", fgsm(restarts=10**6)), ("eot", fgsm(eot=10**9)), ("batch_size", fgsm(batch_size=1e15)),
        ("params.points", {"attacks": {"fgsm": {"library": "transformations", "algorithm": "grid", "budget": "t", "params": {"points": 10**12}}}, "budgets": {"t": {"rotation": 10}}}),
        ("epochs", {"model": {"source": "train", "train": {"epochs": 10**12}}}), ("s.refine", {"sweeps": {"s": {"refine": 61}}}),
        ("s.epsilons", {"sweeps": {"s": {"epsilons": [i / 10**5 for i in range(10_001)]}}}), ("generations", {"queries": {"q": {"algorithm": "EvoBA", "params": {"generations": 10**12}}}}),
        *((f"params.{key}: {count}", {"attacks": {"fgsm": {"library": "transformations", "algorithm": "grid", "budget": "t", "params": {key: count}}}, "budgets": {"t": {"rotation": 10}}}) for key, count in (("points", 0), ("starts", 10**9))),
        ("commas and lines", {"sweeps": {"s": {"epsilons": [0.1] * 90_000}}}),
    ]  # fmt: skip
    for key, blocks in counts:
        yield Row(f"a count that never ends: {key}", given(**blocks), (key,))
    many = (
        "sweep",
        "--budget",
        f"epsilon={','.join(map(str, range(1, 101)))}",
        "--set",
        f"seed={','.join(map(str, range(100)))}",
    )
    yield Row("a sweep of ten thousand experiments", given(), ("grid of 10000 experiments", "1000 at most"), many)
    turned = {"attacks": {"a": {"library": "transformations", "algorithm": "grid", "budget": "t"}}}
    for ranges in [
        {"rotation": "ten"},
        {"rotation": -10},
        {"rotation": [1, 2]},
        {"rotation": None},
        {"scale": 0},
        {"hue": 720},
        {"patch": 1.5},
        {"occlusion": {"size": 3}},
    ]:
        yield Row(f"budgets.t {ranges!r}", given(budgets={"t": ranges}, **turned), ("budgets.t", next(iter(ranges))))
    for passes in [-1, "many"]:
        adaptive = {"library": "windtunnel", "algorithm": "adaptive", "params": {"passes": passes}}
        yield Row(f"adaptive.passes {passes!r}", given(attacks={"a": adaptive}), ("attacks.a.params.passes",))
    yield Row(
        "gate in per cent",
        given(gate={"minimum": {"clean/accuracy": 70}}),
        ("gate.minimum", "clean/accuracy", "between 0 and 1"),
    )
    yield Row(
        "preprocessing of an own architecture",
        given(model={"preprocess": {"mean": [0.5], "std": [0.5]}}),
        ("model", "preprocess", "remove it"),
    )
    proof = {"library": "auto-LiRPA", "algorithm": "crown"}
    for value in [{"timeout": 0}, {"workers": 0}, {"steps": ["x"]}, {"other_classes": "some"}, {"radius": {"max": 1}}, {"radius": {"max": 0.1, "tolerance": 1}}, {"radius": 3},
                  {"examples_from": ["../../x"]}, {"examples_from": ["nobody"]}, {"algorithm": "crwon"}, {"library": "lirpa"}, {"budget": {"norm": "L0"}}, {"time_budget": -1}]:  # fmt: skip
        yield Row(f"verification.v {value!r}", given(verification={"v": {**proof, **value}}), ("verification.v",))
    for value in [{"algorithm": "fogg"}, {"severities": [0]}, {"severities": [6]}, {"severities": []}, {"severities": [1, 1]}, {"upsample": 0}, {"upsample": "x"},
                  {"reference": "nowhere"}, {"reference": "imagenet-alexnet", "upsample": 32}, {"corruptions": []}, {"corruptions": ["x"]}, {"workers": 0}, {"ci_level": 2},
                  {"algorithm": "choice"}, {"algorithm": "fog", "corruptions": ["fog"]}, {"ci_method": "x"}, {"upsample": 10**6}]:  # fmt: skip
        base = {"algorithm": "fog", "upsample": 32} if "corruptions" not in value else {"upsample": 32}
        yield Row(f"corruptions.c {value!r}", given(corruptions={"c": {**base, **value}}), ("corruptions.c",))
    for value in [
        {"algorithm": "EvoBa"},
        {"max_queries": 0},
        {"params": {"generation": 1}},
        {"batch_size": 0},
        {"target_classes": 77},
        {"params": {"generation_size": -1}},
    ]:
        yield Row(f"queries.q {value!r}", given(queries={"q": {"algorithm": "EvoBA", **value}}), ("queries.q",))
    for value in [
        {"noise_levels": [1, 1]},
        {"generated": 0},
        {"encoding": {"by": "x"}},
        {"bounded": {"rho": 0}},
        {"models": ["nowhere"]},
        {"models": [3]},
        {"decay_epsilon": "x"},
    ]:
        yield Row(f"latent.l {value!r}", given(generators={"source": "train"}, latent={"l": value}), ("latent.l",))
    for value in [{"source": "vae"}, {"source": "function"}, {"train": {"algorithm": "gan"}}, {"value_range": [1, 0]}, {"source": "function", "function": "mine"},
                  {"source": "function", "function": "no.such:thing"}]:  # fmt: skip
        yield Row(f"generators {value!r}", given(generators=value, latent={"l": {}}), ("generators",))
    for block, value in [
        ("sanity", {"profile": "all"}), ("sanity", {"thresholds": {"Z9": 1}}), ("sanity", {"expected_clean_accuracy": 2}), ("sanity", {"samples": 0}),
        ("report", {"layout": "wide"}), ("report", {"titel": "x"}), ("clean", {"ci_level": 1}), ("clean", {"calibration_bins": 0}), ("clean", {"ci_method": "wald"}),
        ("gate", {"minimum": {"worst_cas/accuracy": 0.3}}), ("gate", {"minimum": {"clean/accuracy": "x"}}), ("gate", {"maximum_regression": {"clean/accuracy": 2}}),
        ("gate", {"non_inferiority": {"alpha": 0.7}}), ("gate", {"minimum": 3}), ("tracking", {"experiment": 3}), ("tracking", {"url": "x"}),
    ]:  # fmt: skip
        yield Row(f"{block} {value!r}", given(**{block: value}), (block,))


# --- the file itself ---


def yaml_text() -> Iterator[Row]:
    laughs = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for name, content, words in [
        ("empty", "", "must be a map"), ("a list", "- 1\n", "must be a map"), ("a word", "hello", "must be a map"), ("5,000 brackets", "[" * 5000, "nested too deeply"),
        ("5,000 maps", "{a: " * 5000, "nested too deeply"), ("an open bracket", "seed: [1, 2\n", "not YAML"), ("a tab", "seed:\n\t- 1\n", "not YAML"),
        ("a key twice", "seed: 1\nseed: 2\n", "not YAML"), ("an unknown alias", "seed: *x\n", "not YAML"), ("billions of aliases", laughs, "aliases"),
        ("an alias of itself", "seed: &a [*a]\n", "holds itself"), ("a python object", "seed: !!python/object/apply:os.getcwd []\n", "not YAML"), ("two documents", "seed: 1\n---\nseed: 2\n", "not YAML"),
        ("a date that is none", "seed: 2020-99-99\n", "params.yaml"), ("an unknown tag", "seed: !x 3\n", "not YAML"), ("a NUL", "seed: \0\n", "not YAML"), ("2 MB", "#" + "x" * 2**21, "bytes; 1048576 at most"),
        ("merge of nothing", "<<: 3\n", "params.yaml"),
    ]:  # fmt: skip
        yield Row(f"params.yaml: {name}", text(content), (words,))
    for name, raw in [
        ("Latin-1", "seed: é".encode("latin-1")),
        ("UTF-16", "seed: 1".encode("utf-16")),
        ("noise", bytes(range(256)) * 20),
        ("a PNG", b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
    ]:
        yield Row(f"bytes of params.yaml: {name}", text(raw), ("is no text in UTF-8",))
    yield Row("params.yaml: a directory", lambda folder: (folder / "params.yaml").mkdir(), ("is a folder",))
    yield Row("params.yaml: a pipe", lambda folder: os.mkfifo(folder / "params.yaml"), ("is a named pipe",))
    yield Row("params.yaml: not there", lambda folder: None, ("no such file",))
    for key in BASE:
        if key not in {"tracking"}:
            whole = {k: v for k, v in BASE.items() if k != key}
            yield Row(f"params.yaml without {key}", lambda folder, whole=whole: write_params(folder, whole), (key,))  # type: ignore[misc]


def names() -> Iterator[Row]:
    entry = BASE["attacks"]["fgsm"]  # type: ignore[index]
    for name in [
        "x" * 300,
        "../x",
        "a/b",
        "a b",
        "",
        ".",
        "..",
        "clean",
        "summary",
        "sanity",
        "ä",
        "a\nb",
        "a;rm",
        "$(x)",
        "a*",
        "${budget}",
        "-",
        "%s",
        "\\",
    ]:
        if name == "-":
            continue  # a name
        yield Row(f"the name {name[:20]!r}", given(attacks={name: entry}), ("attacks",))
    yield Row("a name in two families", given(sweeps={"fgsm": {}}), ("the name is taken",))
    yield Row("a number as a name", given(attacks={7: entry}), ("attacks",))


# --- data files ---


def _image(path: Path, size: tuple[int, int] = (8, 8), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path)


def folder_of(work: Callable[[Path], None], **keys: object) -> Make:
    """A folder with two classes of two images each, changed by `work`."""

    def make(folder: Path) -> None:
        for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
            _image(folder / "images" / name)
        work(folder / "images")
        write_params(folder, params(data={"source": "folder", "path": "images", "train_path": "images", **keys}))

    return make


def npz_of(**arrays: object) -> Make:
    def make(folder: Path) -> None:
        np.savez(folder / "x.npz", **arrays)  # type: ignore[arg-type]
        write_params(folder, params(data={"source": "npz", "path": "x.npz", "train_path": "x.npz"}))

    return make


def file_of(name: str, content: bytes, **data: object) -> Make:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(content)
        write_params(folder, params(data={"path": name, **data}))

    return make


def _npz_bytes(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _claims(shape: str) -> bytes:
    """An .npz whose header claims another shape than it holds."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header = header + " " * (117 - len(header)) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\0" * 64
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", array)
    return buffer.getvalue()


X = np.zeros((20, 1, 8, 8), np.float32)
Y = np.arange(20) % 10


def data_files() -> Iterator[Row]:
    inf, nan = X.copy(), X.copy()
    inf[3, 0, 0, 0], nan[3, 0, 0, 0] = np.inf, np.nan
    for name, arrays, words in [
        ("no x", {"z": X}, "no array 'x'"), ("x a number", {"x": np.float32(3)}, "single value"), ("x of five axes", {"x": np.zeros((2, 1, 1, 8, 8)), "y": Y[:2]}, "shape"),
        ("x empty", {"x": X[:0], "y": Y[:0]}, "no samples"), ("x of text", {"x": np.array([["a"]]), "y": Y[:1]}, "not numbers"), ("x complex", {"x": X.astype(complex), "y": Y}, "not numbers"),
        ("x of dates", {"x": np.zeros((2, 3), "datetime64[s]"), "y": Y[:2]}, "data"), ("infinity", {"x": inf, "y": Y}, "infinity"), ("NaN", {"x": nan, "y": Y}, "NaN"), ("out of range", {"x": X + 7, "y": Y}, "outside"),
        ("fewer labels", {"x": X, "y": Y[:5]}, "labels"), ("labels of two axes", {"x": X, "y": Y[None]}, "labels"), ("labels of floats", {"x": X, "y": Y + 0.5}, "labels"), ("negative labels", {"x": X, "y": Y - 5}, "labels"),
        ("a label of 10^8", {"x": X, "y": Y + 10**8}, "label"), ("a label of 2^62", {"x": X, "y": Y + 2**62}, "label"), ("a label of 2^63 + 1", {"x": X, "y": Y.astype(np.uint64) + np.uint64(2**63 + 1)}, "label"),
        ("no labels", {"x": X}, "class_names"), ("ids twice", {"x": X, "y": Y, "ids": np.array(["a"] * 20)}, "ids"), ("fewer ids", {"x": X, "y": Y, "ids": np.array(["a", "b"])}, "ids"),
        ("class names twice", {"x": X, "y": Y, "class_names": np.array(["a"] * 10)}, "one name"), ("channels last", {"x": np.zeros((20, 8, 8, 3)), "y": Y}, "channels last"), ("one class", {"x": X, "y": Y * 0}, "class"),
        ("boolean labels", {"x": X, "y": Y > 5}, "labels"), ("labels beyond the names", {"x": X, "y": Y + 5, "class_names": np.array(list("abc"))}, "labels"),
    ]:  # fmt: skip
        yield Row(f"npz: {name}", npz_of(**arrays), (words,))
    for name, content, words in [
        ("empty", b"", "not an .npz"), ("noise", os.urandom(500), "not an .npz"), ("cut", _npz_bytes(x=X, y=Y)[:300], "not an .npz"), ("37 GB claimed", _claims("(10000, 1, 1000, 1000)"), "says it has"),
        ("a negative shape", _claims("(-1, 8, 8)"), "x.npz"), ("a shape of words", _claims("('a', 8)"), "x.npz"), ("a shape that is code", _claims("(__import__('os').getpid(),)"), "x.npz"),
        ("an overflow", _claims("(4294967296, 4294967296, 4)"), "x.npz"), ("an empty archive", b"PK\x05\x06" + b"\0" * 18, "no array 'x'"), ("a .npy", b"\x93NUMPY", "x.npz"),
    ]:  # fmt: skip
        yield Row(f"npz bytes: {name}", file_of("x.npz", content, source="npz"), (words,))
    for name, content, words in [
        ("empty", b"", "idx"), ("noise", b"\xff" * 100, "idx"), ("of floats", b"\x00\x00\x0d\x03" + b"\0" * 12, "idx"), ("cut in its header", b"\x00\x00\x08\x03\x00\x00", "header"),
        ("an overflow", b"\x00\x00\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 4), "needs"), ("no samples of 2^66 values", b"\x00\x00\x08\x04" + struct.pack(">4I", 0, 2**32 - 1, 2**32 - 1, 4), "no sample's"), ("an overflow to 0", b"\x00\x00\x08\x02" + struct.pack(">2I", 2**31, 2**31 * 0 + 2**31), "needs"),
        ("fewer values", b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 8, 8) + b"\0" * 10, "holds 10"), ("more values", b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 8, 8) + b"\0" * 999, "more than 128"),
        ("no samples", b"\x00\x00\x08\x03" + struct.pack(">3I", 0, 8, 8), "no samples"), ("no axes", b"\x00\x00\x08\x00\x05", "single value or none"), ("four billion samples of no values", b"\x00\x00\x08\x03" + struct.pack(">3I", 2**32 - 1, 0, 4), "single value or none"),
        ("255 axes", b"\x00\x00\x08\xff" + b"\0\0\0\1" * 255 + b"\1", "idx"),
    ]:  # fmt: skip
        yield Row(f"idx: {name}", file_of("x.idx", content, source="idx", labels="none", class_names=10), (words,))
    yield Row("idx: no gzip", file_of("x.gz", b"hello", source="idx", labels="none", class_names=10), ("x.gz",))
    bomb = gzip.compress(b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 8, 8) + b"\0" * 2**28)
    yield Row(
        "idx: a gzip bomb", file_of("x.gz", bomb, source="idx", labels="none", class_names=10), ("more than 128",)
    )
    yield Row(
        "idx: no labels named",
        file_of("x.idx", b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 8, 8) + b"\0" * 128, source="idx"),
        ("class_names",),
    )
    for key in ("npz", "idx", "folder"):
        yield Row(f"{key}: no path", given(data={"source": key}), ("data.path",))
        yield Row(f"{key}: nowhere", given(data={"source": key, "path": "no/where"}), ("no/where",))
        yield Row(f"{key}: a device", given(data={"source": key, "path": "/dev/zero"}), ("data.path",))
        yield Row(f"{key}: a NUL", given(data={"source": key, "path": "a\0b"}), ("data.path",))
        yield Row(f"{key}: a long path", given(data={"source": key, "path": "x" * 5000}), ("too long",))
    for name, work, words in [
        ("a pipe", lambda f: os.mkfifo(f / "a" / "2.png"), "is no file"), ("a link to nowhere", lambda f: (f / "a" / "2.png").symlink_to("gone.png"), "is no file"), ("a directory", lambda f: (f / "a" / "2.png").mkdir(), "is no file"),
        ("text", lambda f: (f / "a" / "2.png").write_text("hello"), "not an image"), ("empty", lambda f: (f / "a" / "2.png").write_bytes(b""), "not an image"), ("cut", lambda f: (f / "a" / "2.png").write_bytes((f / "a/0.png").read_bytes()[:40]), "not an image"),
        ("another size", lambda f: _image(f / "a" / "2.png", (9, 9)), "resize"), ("another mode", lambda f: _image(f / "a" / "2.png", mode="RGB"), "channels"), ("16 bits", lambda f: _image(f / "a" / "2.png", mode="I;16"), "8 bits"),
        ("no UTF-8", lambda f: (f / "a/0.png").rename(os.fsdecode(os.fsencode(str(f / "a")) + b"/\xff\xfe.png")), "no UTF-8"), ("a newline", lambda f: (f / "a/0.png").rename(f / "a" / "x\ny.png"), "rename it"),
        ("a loose image", lambda f: _image(f / "2.png"), "in no class folder"), ("a picture of 4 gigapixels", lambda f: (f / "a" / "2.png").write_bytes(_huge_png()), "not an image"), ("one class", lambda f: [p.unlink() for p in (f / "b").iterdir()], "class"),
        ("a GIF under another name", lambda f: Image.new("L", (8, 8)).save(f / "a" / "2.png", "GIF"), "not an image"),
    ]:  # fmt: skip
        yield Row(f"folder: {name}", folder_of(work), (words,))  # type: ignore[arg-type]
    yield Row(
        "folder: no image",
        lambda folder: (
            (folder / "images").mkdir(),
            write_params(folder, params(data={"source": "folder", "path": "images"})),
        )[-1],
        ("holds no images",),
    )
    for name, table, words in [
        ("short", [("a/0.png", "x")], "no line for"), ("strange", [(n, "x") for n in ("a/0.png", "a/1.png", "b/0.png", "b/1.png", "c.png")], "not in the folder"), ("empty", [], "no line for"),
    ]:  # fmt: skip
        yield Row(
            f"labels.csv: {name}",
            folder_of(lambda f, table=table: _csv(f.parent / "l.csv", table), labels="l.csv", train_labels="l.csv"),
            (words,),
        )  # type: ignore[misc]
    yield Row(
        "labels.csv: no UTF-8",
        folder_of(lambda f: (f.parent / "l.csv").write_bytes(b"a/0.png,\xff\n"), labels="l.csv"),
        ("UTF-8",),
    )  # type: ignore[arg-type, return-value]
    yield Row("labels.csv: nowhere", folder_of(lambda f: None, labels="l.csv"), ("l.csv: no such file",))


def _csv(path: Path, table: list[tuple[str, str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)


def _huge_png() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[16:24] = struct.pack(">2I", 65535, 65535)
    return bytes(content)


# --- code of the user's ---

_HEAD = "import numpy as np, torch\nfrom torch import nn\n"


def module(body: str, **blocks: object) -> Make:
    def make(folder: Path) -> None:
        (folder / "mine.py").write_text(_HEAD + body)
        torch.save(nn.Linear(64, 10).state_dict(), folder / "w.pt")
        write_params(folder, params(**blocks))

    return make


def data_functions() -> Iterator[Row]:
    data = {"source": "function", "function": "mine:data"}
    sound = "np.zeros((20, 1, 8, 8), np.float32), np.arange(20) % 10"
    for name, body, words in [
        ("ragged", "return [[1, 2], [3]], [0, 1]", "no array"), ("None", "return None", "NoneType"), ("a number", "return 3", "int"), ("x None", "return None, [1]", "data.function"), ("a set", "return {1, 2}, {3}", "data.function"),
        ("three things", f"return ({sound}, 3)", "tuple"), ("raises", "raise ValueError('no data\\nat all')", "mine.py, line 4: no data"), ("no words", "raise RuntimeError", "RuntimeError"), ("of objects", "return np.array([object()]), [0]", "data"),
        ("text", "return 'abc', 'def'", "data.function"), ("a generator", "return (i for i in range(3)), [1]", "data"), ("NaN", "x, y = " + sound + "; x[:] = np.nan; return x, y", "NaN"), ("empty", "return np.zeros((0, 1, 8, 8)), np.zeros(0, int)", "no samples"),
        ("recursion", "return data()", "RecursionError"), ("memory", "return np.zeros(10**13), [1]", "GB of memory"), ("sleeps", "import time; time.sleep(60)", "has not answered"), ("sys.exit", "import sys; sys.exit('bye')", "sys.exit"),
        ("KeyboardInterrupt", "raise SystemExit", "sys.exit"), ("an ill-made Dataset", "from windtunnel import Dataset; return Dataset(torch.zeros(2, 3), torch.zeros(3), ('a',), ('x',))", "data.function"),
        ("a Dataset of ints", "from windtunnel import Dataset; return Dataset(torch.zeros(2, 1, 8, 8).int(), torch.zeros(2).long(), ('a', 'b'), ('x', 'y'))", "float32"),
    ]:  # fmt: skip
        yield Row(
            f"data function: {name}", module(f"def data():\n    {body}\n", data={**data, "time_limit": 1}), (words,)
        )
    for name, reference, words in [
        ("no colon", "mine", "module:function"), ("no module", "nowhere:data", "cannot import"), ("no function", "mine:dta", "Did you mean 'data'"), ("two colons", "mine:data:x", "mine"), ("not callable", "mine:N", "is not a function"),
        ("empty", ":", "module:function"), ("relative", ".mine:data", "cannot import"), ("a path", "mine.py:data", "cannot import"), ("a builtin", "builtins:len", "TypeError"), ("a keyword it lacks", "mine:data", "TypeError"),
    ]:  # fmt: skip
        keys = {"kwargs": {"x": 1}} if "keyword" in name else {}
        yield Row(
            f"data.function: {name}",
            module("N = 3\ndef data():\n    return 3\n", data={**data, "function": reference, **keys}),
            (words,),
        )
    yield Row("a module with a mistake", module("def data(:\n", data=data), ("cannot import 'mine' (SyntaxError",))
    yield Row("a module that raises", module("1 / 0\n", data=data), ("ZeroDivisionError",))


def imports() -> Iterator[Row]:
    """Modules of the user's that take all the time or memory when they are imported, or end the process, by every key."""
    groups = {
        "library": "windtunnel",
        "algorithm": "EpsGreedy",
        "budget": {"norm": "L0", "epsilon": 5},
        "params": {"groups": "mine:f"},
    }
    keys: dict[str, dict[str, object]] = {
        "attacks.fgsm.algorithm": fgsm(library="function", algorithm="mine:f"), "attacks.fgsm.adapt": fgsm(adapt="mine:f"),
        "attacks.fgsm.invoker": fgsm(invoker="mine:f"), "queries.q.params.groups": {"queries": {"q": groups}},
        "data.function": {"data": {"source": "function", "function": "mine:f", "time_limit": 1}},
        "generators.function": {"generators": {"source": "function", "function": "mine:f", "time_limit": 1}, "latent": {"l": {}}},
    }  # fmt: skip
    for key, blocks in keys.items():
        for name, body, words in [
            ("sleeps", "import time; time.sleep(60)", "has not answered in 1 s"), ("takes all memory", "b = bytearray(10**13)", "GB of memory"),
            ("ends the process", "import os; os._exit(0)", "with exit code 0"), ("exits", "import sys; sys.exit(0)", "sys.exit(0)"),
            ("sleeps in C", "import ctypes; ctypes.PyDLL(None).sleep(60)", "has not answered in 1 s"),
        ]:  # fmt: skip
            yield Row(
                f"import by {key}: {name}", module(f"{body}\n", **{"model": {"time_limit": 1}, **blocks}), (words,)
            )


def models() -> Iterator[Row]:
    net = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(64, 10)\n    def forward(self, x):\n        {}\n\ndef make():\n    net = Net()\n    net.load_state_dict = lambda *a, **k: None\n    return net\n"
    own = {"source": "state_dict", "path": "w.pt", "factory": "mine:make", "time_limit": 1}
    logits = "self.linear(x.flatten(1))"
    for name, body, words in [
        ("NaN", f"return {logits} * float('nan')", "gives NaN"), ("changes its input", f"x.mul_(0.5); return {logits}", "changes its input"), ("integers", f"return {logits}.argmax(1, keepdim=True).expand(-1, 10)", "torch.int64"), ("complex", f"return {logits}.cfloat()", "complex"),
        ("one class", f"return {logits}[:, :1]", "1 classes"), ("another K", f"return {logits}[:, :7]", "7 classes"), ("one axis", f"return {logits}[:, 0]", "shape"), ("three axes", f"return {logits}[None]", "shape"), ("a tuple", f"return {logits}, 1", "tuple"), ("None", "return None", "NoneType"),
        ("numpy", f"return {logits}.detach().numpy()", "ndarray"), ("raises", "raise ValueError('no')", "no"), ("another shape", "return nn.Linear(3, 10)(x)", "data.resize"), ("api down", "raise ConnectionError('api down')", "api down"), ("hangs", "import time; time.sleep(60)", "has not answered"),
        ("half the samples", f"return {logits}[:1]", "model"), ("sys.exit", "import sys; sys.exit(0)", "sys.exit(0)"), ("os._exit", "import os; os._exit(0)", "exit code 0"), ("no_grad under a white-box attack", f"\n        with torch.no_grad(): return {logits}", "cuts off the gradient"),
        ("detach under a white-box attack", f"return {logits}.detach()", "cuts off the gradient"), ("boolean", f"return {logits} > 0", "torch.bool"), ("recursion", "return self(x)", "recursion"), ("infinite memory", "return torch.zeros(10**13)", "memory"),
    ]:  # fmt: skip
        limit = 1 if "sleep" in body else 30  # the others answer at once, but for a machine that is busy
        yield Row(f"model: {name}", module(net.format(body), model={**own, "time_limit": limit}), (words,))
    for name, body, words in [
        ("a word", "return 'net'", "returned a str"), ("a class", "return nn.Linear", "returned a type"), ("raises", "raise OSError('gone')", "mine.py, line 4: gone"), ("sleeps", "import time; time.sleep(60)", "has not answered"), ("another net", "return nn.Linear(3, 3)", "does not fit"), ("None", "return None", "NoneType"),
    ]:  # fmt: skip
        yield Row(f"factory: {name}", module(f"def make():\n    {body}\n", model=own), (words,))
    for name, content, words in [
        ("empty", b"", "state dict"), ("text", b"hello", "state dict"), ("noise", os.urandom(2000), "state dict"), ("a zip of nothing", b"PK\x05\x06" + b"\0" * 18, "state dict"),
    ]:  # fmt: skip
        yield Row(
            f"weights: {name}",
            _file_model(
                "w.pt", content, factory="windtunnel.boundary.models.architectures:lenet5", source="state_dict"
            ),
            (words,),
        )
        yield Row(f"export: {name}", _file_model("w.pt2", content, source="export"), ("w.pt2",))
        yield Row(f"onnx: {name}", _file_model("w.onnx", content, source="onnx"), ("not an ONNX model",))
    for name, keys, words in [
        ("no path", {"source": "state_dict"}, "model.path"), ("no factory", {"source": "state_dict", "path": "w.pt"}, "model.factory"), ("no function", {"source": "function"}, "model.function"), ("no uri", {"source": "mlflow"}, "model.uri"), ("nowhere", {"source": "onnx", "path": "x.onnx"}, "no such file"),
        ("no MLflow URI", {"source": "mlflow", "uri": "http://x"}, "no MLflow URI"), ("a directory", {"source": "onnx", "path": "."}, "model.path"), ("another digest", {"source": "state_dict", "path": "w.pt", "sha256": "00", "factory": "mine:make"}, "sha256"), ("a device", {"source": "export", "path": "/dev/zero"}, "model.path"),
        ("a NUL", {"source": "onnx", "path": "a\0b"}, "model.path"), ("no such model in MLflow", {"source": "mlflow", "uri": "models:/none/1"}, "models:/none/1"),
    ]:  # fmt: skip
        yield Row(f"model.source: {name}", module("def make():\n    return 3\n", model=keys), (words,))
    predict = {"source": "function", "function": "mine:predict", "time_limit": 1}
    quiet = {
        "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "Square"}},
        "queries": {"q": {"algorithm": "EvoBA"}},
    }
    for name, body, words in [
        ("logits", "return np.full((len(x), 10), 3.0)", "probabilities"), ("one axis", "return np.full(len(x), 0.1)", "shape"), ("None", "return None", "model.function"), ("text", "return [['a'] * 10] * len(x)", "model.function"), ("ragged", "return [[1, 2], [3]]", "model.function"),
        ("raises", "raise ConnectionError('api down')", "mine.py, line 4: api down"), ("negative", "return np.full((len(x), 10), -0.1)", "probabilities"), ("objects", "return np.array([[object()] * 10] * len(x))", "model.function"), ("complex", "return np.full((len(x), 10), 0.1j)", "complex"),
        ("NaN", "return np.full((len(x), 10), np.nan)", "NaN"), ("another K", "return np.full((len(x), 5), 0.2)", "5 classes"), ("sleeps", "import time; time.sleep(60)", "has not answered"), ("fewer rows", "return np.full((1, 10), 0.1)", "shape"),
    ]:  # fmt: skip
        yield Row(f"predict: {name}", module(f"def predict(x):\n    {body}\n", model=predict, **quiet), (words,))
    yield Row(
        "predict under a white-box attack",
        module("def predict(x):\n    return np.full((len(x), 10), 0.1)\n", model=predict),
        ("needs autograd",),
    )


def _file_model(name: str, content: bytes, **model: object) -> Make:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(content)
        write_params(folder, params(model={"path": name, **model}))

    return make


def assessments() -> Iterator[Row]:
    for name, blocks, words in [
        ("L2 attack under Linf", fgsm(algorithm="CW", budget={"norm": "Linf"}), "attacks.fgsm"), ("images under 32 pixels", {"corruptions": {"c": {"algorithm": "fog"}}}, "corruptions.c"),
        ("latent without generators", {"latent": {"l": {}}}, "generators.source"), ("mismatched reference", {"corruptions": {"c": {"algorithm": "fog", "upsample": 32, "reference": "."}}}, "reference"),
        ("targets for each sample", fgsm(target_classes=[1]), "target_classes"), ("survivors of itself", fgsm(on={"survivors_of": ["fgsm"]}), "survivors_of"),
    ]:  # fmt: skip
        yield Row(f"assessment: {name}", given(**blocks), (words,))


# --- command lines, and results that are damaged ---


def commands() -> Iterator[Row]:
    nothing: Make = given()
    for words, line in [
        (("chek",), "Did you mean 'check'"), (("check", "--parms", "x"), "--parms"), (("check", "extra"), "extra"), (("check", "--params"), "--params"), (("check", "--params", "no.yaml"), "no.yaml: no such file"), (("check", "--params", "."), "is a folder"),
        (("algorithms", "--norm", "L9"), "L9"), (("algorithms", "--family", "x"), "--family"), (("show", "--x"), "--x"), (("show",), "reports"), (("report",), "reports"), (("report", "--reports", "nowhere"), "nowhere"), (("report", "--only", "x"), "report"),
        (("sanity",), "sanity"), (("sanity", "--explain", "Z9"), "Z9"), (("track",), "reports"), (("compare", "a", "b"), "a"), (("compare",), "RUNS"), (("sweep",), "sweep"), (("sweep", "--budget", "epsilon"), "budget"), (("sweep", "--set", "x=1"), "x"),
        (("show", ""), "an argument is empty"), (("compare", "a\nb"), "line break"), (("show", "a\0b"), "control character"), (("show", "\udcff"), "udcff"), (("compare", "\udcff"), "udcff"),
        (("view", "--port", "-1"), "--port"), (("gate", "--sarif", "x" * 300), "too long"), (("sweep", "--budget", "epsilon=0.1", "--html", "x" * 300), "too long"),
        (("promote", "--version", "\udcff"), "udcff"), (("init", "--data", "a\0b"), "control character"), (("verify", "--result", "a\0b"), "control character"),
        (("promote",), "promote"), (("rollback",), "champion"), (("champion", "--fetch"), "champion"), (("ui", "--port", "x"), "--port"), (("params", "--params", "no.yaml"), "no.yaml"), (("--nothing",), "--nothing"),
    ]:  # fmt: skip
        yield Row(f"windtunnel {ascii(' '.join(words))[1:-1]}", nothing, (line,), words)
    for words, line in {
        ("view", "--port", "70000"): "--port", ("ui", "--port", "-1"): "--port", ("check", "--params", ""): "empty", ("compare", "a\nb", "c"): "control character", ("show", "\x1b[31m"): "control character",
        ("report", "--reports", "."): "has no results", ("compare", "x" * 5000, "y"): "too long",
    }.items():  # fmt: skip
        yield Row(f"windtunnel {' '.join(map(ascii, words))[:60]}", nothing, (line,), words)
    for words in (("gate",), ("retrain", "--summary", "/proc/x/y")):
        yield Row(f"windtunnel {' '.join(words)}", nothing, ("windtunnel",), words, 30 if words[0] == "gate" else 2)
    for file, content in [
        ("metadata.json", "[]"),
        ("metadata.json", "{}"),
        ("metadata.json", ""),
        ("metadata.json", '{"metrics": 3}'),
        ("robustness_data.pt", "cut"),
    ]:
        for command in ("show", "sanity", "track", "gate"):  # a report is made of what there is
            yield Row(
                f"{command} with {file} of {content or 'nothing'}",
                damaged(file, content),
                ("windtunnel",),
                (command,),
                30 if command == "gate" else 2,
            )


def damaged(file: str, content: str) -> Make:
    """Results in which one file of every assessment is not what it should be, and the others are not there."""

    def make(folder: Path) -> None:
        write_params(folder, params())
        for name in ("robustness/clean", "robustness/fgsm", "sanity", "summary"):
            path = folder / "reports" / name
            path.mkdir(parents=True)
            (path / file).write_text(content)

    return make
