"""Fuzz the readers of texts, arrays and VNN-LIB with coverage as the guide; needs atheris (pip install atheris).

    python -m benchmarks.fuzz_coverage text|arrays|vnnlib [--minutes 10] [--seed 0]

libFuzzer changes seeds and keeps what reaches new branches of the instrumented readers. An input passes or is refused by a
UserError of short lines; whatever else it does is printed once for each place in the code. Wanted: no finding.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["windtunnel.boundary", "windtunnel.params", "ruamel.yaml", "numpy.lib"]):
    from benchmarks.fuzz import VNNLIB, WORDS, Count, sound_files
    from tests.hostile.harness import params
    from windtunnel.boundary.arrays import array_of, plain_value
    from windtunnel.boundary.data.load import load_dataset
    from windtunnel.boundary.text import parse_json, parse_map, parse_yaml, yaml_text
    from windtunnel.boundary.vnnlib_text import read_specifications
    from windtunnel.params.data import Data
    from windtunnel.params.entry import parse_number
    from windtunnel.params.load import validate_schema

COUNT = Count()
FOLDER = Path(tempfile.mkdtemp())


def text_input(data: bytes) -> None:
    """One text, read as YAML, params.yaml, JSON and a number."""
    text = data.decode("utf-8", "replace")
    COUNT.of(lambda: parse_yaml(text, "x"), text)
    COUNT.of(lambda: parse_yaml(text, "dvc.lock", fast=True), text)
    COUNT.of(lambda: validate_schema(parse_map(text, "params.yaml"), "params.yaml"), text)
    COUNT.of(lambda: parse_json(data, "x.json"), data)

    def number() -> None:
        with suppress(ValueError):  # which pydantic makes a line of
            parse_number(text)

    COUNT.of(number, text)


def array_input(data: bytes) -> None:
    """One array file (the first byte chooses its kind), and one value built from the bytes."""
    kind = ("npz", "idx", "npy")[data[0] % 3] if data else "npz"
    path = FOLDER / f"a.{kind}"
    path.write_bytes(data[1:])
    (FOLDER / "labels.idx").write_bytes(b"\0\0\x08\x01\0\0\0\x06" + bytes([0, 1] * 3))
    labels = str(FOLDER / "labels.idx") if kind == "idx" else None
    source = "idx" if kind == "idx" else "npz"
    COUNT.of(lambda: load_dataset(Data(source=source, path=str(path), samples={"n": 4}, labels=labels), 0), data)
    built = _value(atheris.FuzzedDataProvider(data), 0)
    COUNT.of(lambda: array_of(built, "x"), built)
    COUNT.of(lambda: plain_value(built, "params"), built)


def _value(source: object, depth: int) -> object:
    choice = source.ConsumeIntInRange(0, 11)  # type: ignore[attr-defined]
    if depth < 20 and choice < 4:
        items = [_value(source, depth + 1) for _ in range(source.ConsumeIntInRange(0, 4))]  # type: ignore[attr-defined]
        return (items, tuple(items), {str(i): item for i, item in enumerate(items)}, dict(enumerate(items)))[choice]
    import numpy as np
    import torch

    with suppress(ValueError, TypeError, RuntimeError):
        shape = tuple(source.ConsumeIntListInRange(source.ConsumeIntInRange(0, 4), 0, 3))  # type: ignore[attr-defined]
        dtype = np.dtype("?bhilBHfdegFDOUSMmV"[source.ConsumeIntInRange(0, 18)])  # type: ignore[attr-defined]
        array = np.zeros(shape, dtype)
        return (
            array, array[..., None], torch.from_numpy(array), array.astype(dtype.newbyteorder(">")), array[()], 1.5, None,
            source.ConsumeUnicode(3),  # type: ignore[attr-defined]
        )[choice - 4]  # fmt: skip
    return b""


def vnnlib_input(data: bytes) -> None:
    """One VNN-LIB file."""
    path = FOLDER / ("p.vnnlib.gz" if data[:1] == b"\x1f" else "p.vnnlib")
    path.write_bytes(data)
    COUNT.of(lambda: read_specifications(path), data)


def seeds(target: str) -> list[bytes]:
    """Sound inputs from which libFuzzer begins."""
    if target == "vnnlib":
        version_2 = "(vnnlib-version <2.0>)\n(declare-network N\n(declare-input X float32 [2])\n"
        version_2 += "(declare-output Y float32 [2]))\n(assert (<= X[0] 1.0))"
        return [VNNLIB.encode(), version_2.encode()]
    if target == "arrays":
        import numpy as np

        np.save(file := io.BytesIO(), np.zeros((6, 1, 4, 4), np.float32))
        files = [b"\0" + content for source, _, content in sound_files() if source == "npz"]
        return [
            *files,
            *(b"\1" + content for source, _, content in sound_files() if source == "idx"),
            b"\2" + file.getvalue(),
        ]
    return [
        yaml_text(params(), plain=True).encode(),
        json.dumps(params()).encode(),
        b"1/255",
        b"&a [*a, <<: *a]\n",
        b"%YAML 1.1\n---\na: 0o7\n",
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    targets = {"text": text_input, "arrays": array_input, "vnnlib": vnnlib_input}
    parser.add_argument("target", choices=targets)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    corpus, words = FOLDER / "corpus", FOLDER / "words"
    corpus.mkdir()
    for number, content in enumerate(seeds(arguments.target)):
        (corpus / str(number)).write_bytes(content)
    shown = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS if len(word) < 60)
    words.write_text("".join(f'"{word}"\n' for word in shown))
    limits = [
        f"-max_total_time={60 * arguments.minutes:.0f}",
        f"-seed={arguments.seed or 1}",
        "-max_len=4000",
        "-timeout=60",
        "-rss_limit_mb=3000",
    ]
    run, tried, reported = targets[arguments.target], 0, 0

    def one(data: bytes) -> None:
        nonlocal tried, reported
        run(data)
        tried += 1
        if len(COUNT.findings) > reported or not tried % 1000:
            reported = len(COUNT.findings)
            state = {"inputs": tried, "calls": COUNT.tried, "refused": COUNT.refused, "findings": COUNT.findings}
            print(json.dumps(state), flush=True)

    atheris.Setup([sys.argv[0], str(corpus), f"-dict={words}", *limits], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
