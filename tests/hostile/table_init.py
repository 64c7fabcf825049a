"""Rows of repositories in which `windtunnel init` comes across what it cannot read; it skips that with one line and ends well.

`words` stand somewhere in what it prints; nothing outside of the new folder changes.
"""

# ruff: noqa: E501  a row is a line, whatever its length
from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.hostile.table import Make, Row

_INIT = ("init", "--yes")


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _zip(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def _npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


_WHOLE = _npz(x=np.zeros((4, 1, 8, 8), np.float32))
_HUGE_PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBBI", 13, b"IHDR", 10**5, 10**5, 8, 2, 0, 0, 0, 0)
_DVC = {
    "a list of stages": "stages: [1, 2]", "a number of stages": "stages: 3", "outs of 5": "stages: {x: {outs: 5}}", "an out of null": "stages: {x: {outs: [null, 3, {}]}}",
    "dates": "stages: {2020-01-01: {outs: [2020-01-01, {2020-01-01: {}}]}}", "no date": "a: 2020-99-99", "brackets": "[" * 5000, "an alias of itself": "stages: &a {b: *a}",
    "merge keys": "a: &a {x: 1}\n" + "\n".join(f"b{i}: &b{i}\n  <<: [{', '.join([f'*b{i - 1}' if i else '*a'] * 9)}]" for i in range(12)), "Latin-1": "é".encode("latin-1"), "UTF-16": "stages: {}".encode("utf-16"), "a NUL": "\0",
    "a working folder of a list": "stages: {x: {wdir: [1], outs: [a.pt]}}", "foreach of a number": "stages: {x: {foreach: 3, do: 4}}", "a template": "stages: {x: {outs: ['${a}']}}", "outs above the root": "stages: {x: {outs: [../../../etc/passwd]}}",
    "a python object": "a: !!python/object/apply:os.system [ls]", "2 MB": "#" + "x" * 2**21, "nothing": "", "digits": "a: " + "9" * 10**5, "a map as key": "{{a: 1}: 2}", "a line break in an out": 'stages: {x: {outs: ["a\\nb.pt"]}}',
}  # fmt: skip
_FILES: dict[str, tuple[str, bytes]] = {
    "a cut npz": ("x.npz", _WHOLE[:200]), "an npz without its end": ("x.npz", _WHOLE[:-30]), "an empty npz": ("x.npz", b""), "an npz of text": ("x.npz", b"hello"), "an npz of noise": ("x.npz", _zip("x.npy", b"noise")),
    "an npz of objects": ("x.npz", _zip("x.npy", _npy("{'descr': '|O', 'fortran_order': False, 'shape': (4, 1, 8, 8), }"))), "an npz of negative shape": ("x.npz", _zip("x.npy", _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 1, 8, 8), }"))),
    "an npz of huge shape": ("x.npz", _zip("x.npy", _npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**30}, 1, 8, 8), }}"))), "an npz with code": ("x.npz", _zip("x.npy", _npy("__import__('os').system('ls')"))), "an npz of brackets": ("x.npz", _zip("x.npy", _npy("(" * 9000))),
    "an npz that leads out": ("x.npz", _zip("../../x.npy", b"")), "a cut idx": ("t10k-images-idx3-ubyte", b"\0\0\x08\x03\0"), "an idx of 255 axes": ("t10k-images-idx3-ubyte", b"\0\0\x08\xff" + b"\0" * 100), "an idx of another type": ("t10k-images-idx3-ubyte", b"\0\0\x0d\x03" + b"\0" * 12),
    "a gz of noise": ("t10k-images-idx3-ubyte.gz", b"\x1f\x8bxx"), "a gz of text": ("t10k-images-idx3-ubyte.gz", b"text"), "an ONNX of noise": ("m.onnx", b"\x08\xff\xff\xff"), "an empty ONNX": ("m.onnx", b""), "an ONNX of text": ("m.onnx", b"hello" * 100),
    "weights of noise": ("m.pt", b"PK\x03\x04noise"), "empty weights": ("m.pth", b""), "a pickle": ("m.pt", b"\x80\x02."), "a pickle that calls": ("m.ckpt", b"cos\nsystem\n(S'touch owned'\ntR."), "a zip of nothing": ("m.pt2", _zip("a", b"")), "weights of a zip": ("m.pt", _zip("x/data.pkl", b"\x80\x02.")),
    "a config of a list": ("hf/config.json", b"[1]"), "a config of kinds": ("hf/config.json", b'{"architectures": 5}'), "a config of brackets": ("hf/config.json", b"[" * 10**5), "a config of digits": ("hf/config.json", b"9" * 9999), "a config of noise": ("hf/config.json", bytes(range(256))), "a config of labels": ("hf/config.json", b'{"architectures": ["XForImageClassification"], "id2label": 3}'),
    "code of brackets": ("nets.py", b"(" * 3000), "code of NUL": ("nets.py", b"\0\xff"), "code of Latin-1": ("nets.py", b"x = '\xe9'"), "code of minuses": ("nets.py", b"x = " + b"-" * 50_000 + b"1"), "code of 2 MB": ("nets.py", b"x = 1\n" * 400_000),
    "a huge PNG": ("pics/cat/a.png", _HUGE_PNG), "a PNG of text": ("pics/cat/a.png", b"text"), "an empty PNG": ("pics/cat/a.png", b""), "PostScript called PNG": ("pics/cat/a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "a cut TIFF": ("pics/cat/a.tif", b"II*\0\xff\xff\xff\xff"), "a cut JPEG": ("pics/cat/a.jpg", b"\xff\xd8\xff\xe0"),
}  # fmt: skip
_PARAMS = {
    "a boolean size": "image_size: true", "a list": "[1]", "an alias of itself": "a: &a [*a]", "a huge size": f"image_size: {10**30}", "digits": "image_size: " + "9" * 10**5, "no date": "a: 2020-99-99", "noise": bytes(range(256)), "brackets": "[" * 5000, "a negative size": "image_size: -3", "text": "hello",
}  # fmt: skip


def rows_of_init() -> Iterator[Row]:
    for place in ("", "deep/er/"):
        for name, content in _DVC.items():
            yield Row(
                f"init {place or '.'} dvc.yaml: {name}",
                _repository({f"{place}dvc.yaml": content}),
                ("is set up",),
                _INIT,
                0,
            )
        for name, (file, raw) in _FILES.items():
            # A second class, so that pictures are data.
            yield Row(
                f"init {place or '.'} {name}",
                _repository({place + file: raw, f"{place}pics/dog/b.png": b""}),
                ("is set up",),
                _INIT,
                0,
            )
    for name, content in _PARAMS.items():
        yield Row(f"init params.yaml: {name}", _repository({"params.yaml": content}), ("is set up",), _INIT, 0)
    for file in (
        "x.npz",
        "m.pt",
        "m.onnx",
        "dvc.yaml",
        "params.yaml",
        "nets.py",
        "hf/config.json",
        "t10k-images-idx3-ubyte",
        "pics/cat/a.png",
    ):
        yield Row(f"init {file}: a pipe", _repository({}, lambda path: os.mkfifo(path), file), ("is set up",), _INIT, 0)
        yield Row(
            f"init {file}: a loop of links",
            _repository({}, lambda path: path.symlink_to(path.name), file),
            ("is set up",),
            _INIT,
            0,
        )
        yield Row(
            f"init {file}: a link to /dev/zero",
            _repository({}, lambda path: path.symlink_to("/dev/zero"), file),
            ("is set up",),
            _INIT,
            0,
        )
        yield Row(
            f"init {file}: a directory", _repository({}, lambda path: path.mkdir(), file), ("is set up",), _INIT, 0
        )
        yield Row(
            f"init {file}: a link to outside",
            _repository({}, lambda path: path.symlink_to("/etc/hostname"), file),
            ("is set up",),
            _INIT,
            0,
        )
    for name in (
        b"caf\xe9.pt",
        b"caf\xe9/x.npz",
        b"a\nb.pt",
        b"\x1b[31m.onnx",
        b"'; rm -rf x.pt",
        b"-x.pt",
        b"$(ls).npz",
        "\u202ex.pt".encode(),
    ):
        yield Row(f"init a file called {name!r}", _repository({}, _touch_bytes(name), "x"), ("is set up",), _INIT, 0)
    for option, file, words in [
        ("--model", "x.npz", "--model"), ("--model", "pipe.pt", "--model"), ("--model", "loop.pt", "--model"), ("--data", "pipe.npz", "pipe.npz"), ("--data", "cut.npz", "cut.npz"), ("--data", "loop.npz", "loop.npz"),
        ("--folder", "../x", "--folder"), ("--folder", "/x", "--folder"), ("--folder", "linked", "is a link"), ("--folder", "taken", "taken"), ("--folder", "a/b", "--folder"), ("--folder", "..", "--folder"),
    ]:  # fmt: skip
        yield Row(f"init {option} {file}", _odd_places, (words,), ("init", "--yes", option, file))
    for record in ("{", "[]", '{"files": 3}', '{"files": {"a": 1}}', "[" * 5000, "\0"):
        make = _repository({"robustness/.windtunnel.json": record})
        yield Row(
            f"init --remove a record of {record[:12]!r}", make, (".windtunnel.json",), ("init", "--remove", "--yes")
        )
    yield Row("init --remove nothing", _repository({}), ("nothing to take back",), ("init", "--remove", "--yes"))


def _repository(files: dict[str, str | bytes], special: object = None, place: str = "") -> Make:
    def make(folder: Path) -> None:
        (folder / ".git").mkdir()
        (folder / ".dvc").mkdir()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        if callable(special):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            special(folder / place)

    return make


def _touch_bytes(name: bytes) -> object:
    def touch(path: Path) -> None:
        full = os.path.join(os.fsencode(path.parent), name)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(b"x")

    return touch


def _odd_places(folder: Path) -> None:
    _repository({"cut.npz": _WHOLE[:200], "x.npz": _WHOLE, "taken/thesis.tex": b""})(folder)
    os.mkfifo(folder / "pipe.pt")
    os.mkfifo(folder / "pipe.npz")
    (folder / "loop.pt").symlink_to("loop.pt")
    (folder / "loop.npz").symlink_to("loop.npz")
    (folder.parent / "outside").mkdir()
    (folder / "linked").symlink_to(folder.parent / "outside")
