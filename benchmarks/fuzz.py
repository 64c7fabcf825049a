"""Fuzz the readers of what comes from outside: how many inputs were tried, and which ended otherwise than by one line.

    python -m benchmarks.fuzz [text|arrays|files|models|vnnlib|results ...] [--minutes 1] [--seed 0]

Hypothesis makes the inputs, or sound files are damaged. They are read in rounds, each in a process of its own of at most 2 GiB.
An input passes, or is refused by a UserError whose lines have at most 1,000 characters: a traceback, a longer line, more than
20 s of processor time or the end of the process are findings. Wanted: none.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import multiprocessing
import random
import resource
import signal
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from ruamel.yaml import YAML
from torch import nn

from tests.hostile.harness import MEMORY, params, stage, write_params
from windtunnel.boundary.arrays import array_of, plain_value
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.boundary.models.record import read_model
from windtunnel.boundary.text import parse_json, parse_map, parse_yaml
from windtunnel.boundary.vnnlib_text import read_specifications
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.operations.dvc_files import read_lock
from windtunnel.params.data import Data
from windtunnel.params.entry import parse_number
from windtunnel.params.load import validate_schema
from windtunnel.params.model import Model
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.findings import read_findings
from windtunnel.records.gate import read_gate, read_record
from windtunnel.records.sandwich import read_summary
from windtunnel.runtime.shutdown import as_user_error

SECONDS, LONGEST, ROUND = 20, 1000, 200
FUZZ = {
    "max_examples": ROUND, "deadline": None, "database": None, "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}  # fmt: skip
VNNLIB = (
    "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
    "(assert (>= X_0 0.1))\n(assert (<= X_0 0.9))\n(assert (>= X_1 -1e-3))\n(assert (<= X_1 2))\n"
    "(assert (or (and (>= Y_0 Y_1)) (and (<= Y_1 3.5))))\n"
)
WORDS = (
    "(", ")", "(assert", "(and", "(or", "<=", ">=", "X_0", "Y_1", "X_999999999999", "1e400", "-1e-400", "nan", "inf", "0x1", "1/3",
    "(vnnlib-version <2.0>)", "(declare-network N", "(declare-input X float32 [1,1000000000])", "X[0]", ";", "&a", "*a", "<<:", "!!binary",
    "!!python/object:os.system", "- ", "? ", "[", "{", "}", "]", ":", "|", ">", "%YAML 1.1", "---", "\ufeff", "\u2028", "\0",
    "1e999", "1/1e999999999",
    "9" * 400, "2020-99-99", "1:60:60", "~", "0o17", "\t", "'", '"', "\\u",
)  # fmt: skip

ODD = (None, True, -1, 0, 2**63, 1e308, float("nan"), "", "x" * 3000, "../x", [], {}, [[]], {"a": [1]}, "9" * 50)


class TooSlowError(BaseException):
    """An input that took more than SECONDS of processor time."""


class Count:
    """What was tried, and what was found: the place in the code, the error and the first input that led there."""

    def __init__(self) -> None:
        self.tried, self.refused, self.findings = 0, 0, dict[str, str]()

    def of(self, work: Callable[[], object], shown: object) -> None:
        """Try one input."""
        self.tried += 1
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            work()
        except UserError as error:
            self.refused += 1
            if max(map(len, str(error).splitlines())) > LONGEST:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                self._found(f"a long line from {Path(frame.filename).name}:{frame.lineno}", shown)
        except MemoryError as error:  # which both the command line and the Python API make a line of
            self.refused += as_user_error(error) is not None
        except (Exception, TooSlowError) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
            self._found(f"{place}: {str(error)[:100]}", shown)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def add(self, other: Count) -> None:
        """Add what another process counted."""
        self.tried, self.refused = self.tried + other.tried, self.refused + other.refused
        self.findings = {**other.findings, **self.findings}

    def _found(self, place: str, shown: object) -> None:
        self.findings.setdefault(place, repr(shown)[:1000])


def mutated(draw: random.Random, text: str) -> str:
    """The text with pieces cut, repeated, moved, and words put in between."""
    for _ in range(draw.randint(1, 6)):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        end = min(end, at + 40)
        piece = draw.choice(
            [draw.choice(WORDS), "", text[at:end] * 2, chr(draw.randrange(0x250)), draw.choice(WORDS) * 50]
        )
        text = text[:at] + piece + text[end if draw.random() < 0.5 else at :]
    return text


def damaged(draw: random.Random, content: bytes) -> bytes:
    """The bytes of a file with some changed, cut or repeated; headers are hit most."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(min(len(changed), draw.choice([32, 200, 10**6])) or 1)
        changed[at : at + draw.choice([0, 1, 1, 1, 4])] = draw.randbytes(draw.choice([1, 1, 1, 4, 8]))
    return bytes(changed[: draw.randrange(1, len(changed) + 1)] if draw.random() < 0.1 else changed)


def damaged_archive(draw: random.Random, content: bytes) -> bytes:
    """The archive with one of its files damaged and sound checksums; its JSON has other values in it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(files, key=lambda name: not name.endswith(".json"))[: draw.choice([3, 1000])])
    files[name] = changed_json(draw, files[name]) if name.endswith(".json") else damaged(draw, files[name] or b"0")
    with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
        for other, part in files.items():
            archive.writestr(other, part)
    return whole.getvalue()


def changed_json(draw: random.Random, content: bytes) -> bytes:
    """The JSON with up to three values replaced, taken away or moved."""
    whole = json.loads(content)
    for _ in range(draw.randint(1, 3)):
        nodes = [node for node in _nodes(whole) if node]
        if not nodes:
            break
        node = draw.choice(nodes)
        place = draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if draw.random() < 0.2:
            del node[place]
        else:
            node[place] = copy.deepcopy(draw.choice([*ODD, draw.choice(nodes)]))
    return json.dumps(whole).encode()


def _nodes(value: object) -> Iterator[object]:
    """Every list and map of a value."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _nodes(inner)


def damaged_graph(draw: random.Random, content: bytes) -> bytes:
    """The ONNX graph with up to three of its fields holding other numbers or names, or a part twice or not at all."""
    graph = onnx.load_from_string(content)
    for _ in range(draw.randint(1, 3)):
        messages = [message for message in _messages(graph) if message.ListFields()]
        message = draw.choice(messages)
        field, value = draw.choice(message.ListFields())
        if field.message_type is not None:
            if field.is_repeated and draw.random() < 0.5:
                value.append(draw.choice(list(value)))
            elif field.is_repeated:
                del value[draw.randrange(len(value))]
            else:
                message.ClearField(field.name)
            continue
        other = draw.choice([b"", b"\xff"] if field.type == field.TYPE_BYTES else ["", "x", "Loop", "y"] if field.type == field.TYPE_STRING
                            else [-1, 0, 1, 7, 2**31 - 1, 2**62, -(2**62), 1e30, float("nan")])  # fmt: skip
        with suppress(TypeError, ValueError, OverflowError):  # a number that the field does not take
            if field.is_repeated:
                value[draw.randrange(len(value))] = other
            else:
                setattr(message, field.name, other)
    whole: bytes = graph.SerializeToString()
    return whole


def _messages(message: object) -> Iterator[object]:
    yield message
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def text_inputs(draw: random.Random, count: Count) -> None:
    """One round of YAML, params, JSON and numbers."""
    whole = io.StringIO()
    YAML(typ="safe", pure=True).dump(params(), whole)
    for _ in range(ROUND // 4):
        text = mutated(draw, whole.getvalue())
        count.of(lambda text=text: validate_schema(parse_map(text, "params.yaml"), "params.yaml"), text)
        count.of(lambda text=text: parse_yaml(text, "dvc.lock", fast=True), text)
        text = mutated(draw, json.dumps(params()))
        count.of(lambda text=text: parse_json(text, "x.json"), text)

    @seed(draw.getrandbits(32))
    @settings(**FUZZ)
    @given(
        st.one_of(
            st.text(),
            st.text("0123456789eE./-+ _", max_size=30),
            st.sampled_from(WORDS),
            st.floats(),
            st.integers(),
            st.binary(),
        )
    )
    def numbers(value: object) -> None:
        def parse() -> None:
            with suppress(ValueError):  # which pydantic makes a line of
                parse_number(value)

        count.of(parse, value)
        if isinstance(value, str):
            count.of(lambda: parse_yaml(value, "x"), value)
        if isinstance(value, str | bytes):
            count.of(lambda: parse_json(value, "x"), value)

    numbers()


def array_likes() -> st.SearchStrategy[object]:
    """Array-likes of every kind: numpy of all types and orders, tensors, nested lists, and what is none."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3)
    arrays = hnp.arrays(st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(), hnp.array_dtypes()), shapes)
    views = arrays.map(lambda a: a[::-1] if a.ndim else a)
    tensors = hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]), shapes
    ).map(torch.from_numpy)
    odd = tensors.flatmap(
        lambda t: st.sampled_from(
            [t, t.to("meta"), t.to_sparse() if t.ndim else t, t.expand(2, *t.shape), t.T if t.ndim == 2 else t]
        )
    )
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.complex_numbers(),
    )
    nested = st.recursive(
        st.one_of(leaves, arrays, tensors),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=2),
        ),
        max_leaves=6,
    )
    return st.one_of(arrays, views, odd, nested, st.sets(st.integers()), st.iterables(st.integers()))


def array_inputs(draw: random.Random, count: Count) -> None:
    """One round of array-likes."""

    @seed(draw.getrandbits(32))
    @settings(**FUZZ)
    @given(array_likes())
    def arrays(value: object) -> None:
        count.of(lambda: array_of(value, "x"), value)
        count.of(lambda: array_of(value, "y", names=True), value)
        count.of(lambda: plain_value(value, "params"), value)

    arrays()


def sound_files() -> Iterator[tuple[str, str, bytes]]:
    """(source, name, bytes) of a small sound file of each kind."""
    x, y = np.zeros((6, 1, 4, 4), np.float32), np.arange(6) % 2
    for name, save in (("a.npz", np.savez), ("b.npz", np.savez_compressed)):
        save(file := io.BytesIO(), x=x, y=y)
        yield "npz", name, file.getvalue()
    yield "idx", "a.idx", b"\0\0\x08\x03" + (6).to_bytes(4, "big") + (4).to_bytes(4, "big") * 2 + bytes(96)
    for kind, ending in (
        ("PNG", "png"),
        ("JPEG", "jpg"),
        ("BMP", "bmp"),
        ("TIFF", "tif"),
        ("WEBP", "webp"),
        ("PPM", "ppm"),
    ):
        Image.new("RGB", (8, 8), (3, 200, 9)).save(file := io.BytesIO(), kind)
        yield "folder", f"a.{ending}", file.getvalue()


def file_inputs(draw: random.Random, count: Count) -> None:
    """One round of array files and pictures, through the reader of `data`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "labels.idx").write_bytes(b"\0\0\x08\x01\0\0\0\x06" + bytes([0, 1] * 3))
        for source, file, content in sound_files():
            for label in ("a", "b") if source == "folder" else ():
                (folder / "pictures" / label).mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8)).save(folder / "pictures" / label / "sound.png")
            path = folder / "pictures" / "a" / file if source == "folder" else folder / file
            data = Data(
                source=source, path=str(folder / "pictures" if source == "folder" else path), samples={"n": 4},
                labels=str(folder / "labels.idx") if source == "idx" else None,
            )  # fmt: skip
            for _ in range(ROUND // 8):
                path.write_bytes(bad := damaged(draw, content))
                count.of(lambda data=data: load_dataset(data, 0), (file, bad))
            path.unlink()


def vnnlib_inputs(draw: random.Random, count: Count) -> None:
    """One round of VNN-LIB files, of text and of bytes that should be gzip."""
    with tempfile.TemporaryDirectory() as name:
        for number in range(ROUND):
            path = Path(name) / ("p.vnnlib.gz" if number % 50 == 0 else "p.vnnlib")
            text = mutated(draw, VNNLIB)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            count.of(lambda path=path: read_specifications(path), text)


@cache
def sound_models() -> tuple[tuple[str, str, bytes], ...]:
    """(source, name, bytes) of a small sound model of each kind that is read without a user's code."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    sample = torch.zeros(2, 1, 4, 4)
    with tempfile.TemporaryDirectory() as name:
        torch.onnx.export(
            module, (sample,), str(Path(name) / "m.onnx"), dynamo=False, dynamic_axes={"x": {0: "n"}}, input_names=["x"]
        )
        torch.export.save(
            torch.export.export(module, (sample,), dynamic_shapes=({0: torch.export.Dim("n")},)), Path(name) / "m.pt2"
        )
        torch.save(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).state_dict(), Path(name) / "m.pt")
        kinds = (("onnx", "m.onnx"), ("export", "m.pt2"), ("state_dict", "m.pt"))
        return tuple((source, file, (Path(name) / file).read_bytes()) for source, file in kinds)


def linear() -> nn.Module:
    """The factory of the weights that are damaged."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


def model_inputs(draw: random.Random, count: Count) -> None:
    """One round of models, as `windtunnel check` reads them."""
    dataset = Dataset(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 0, 1]), tuple("abcd"), ("0", "1"))
    with tempfile.TemporaryDirectory() as name:
        for source, file, content in sound_models():
            path = Path(name) / file
            factory = {"factory": f"{__name__}:linear"} if source == "state_dict" else {}
            model = Model(source=source, path=str(path), **factory)
            for _ in range(ROUND // 8):
                deep = damaged_graph if source == "onnx" else damaged_archive
                path.write_bytes(bad := draw.choice([damaged, deep, deep])(draw, content))
                count.of(lambda model=model: preview_classifier(model, dataset, None, "cpu"), (file, bad))


@cache
def sound_results() -> dict[str, bytes]:
    """metadata.json, model.json and robustness_data.pt as stages write them, and a dvc.lock."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_params(folder, params())
        ended = [stage(part, cwd=folder, seconds=300) for part in ("prepare", "train", "clean")]
        assert not any(step.code for step in ended), ended
        clean = folder / "reports" / "robustness" / "clean"
        files = {
            "model.json": folder / "reports" / "model" / "model.json",
            **{path.name: path for path in clean.iterdir()},
        }
        found = {file: path.read_bytes() for file, path in files.items() if path.suffix in {".json", ".pt"}}
    file = {"path": "reports/x", "md5": "a" * 32, "size": 3}
    lock = {
        "schema": "2.0",
        "stages": {"clean": {"cmd": "x", "deps": [file], "outs": [file], "params": {"params.yaml": {"seed": 0}}}},
    }
    return {**found, "dvc.lock": json.dumps(lock).encode()}


def result_inputs(draw: random.Random, count: Count) -> None:
    """One round of our own files, as a stranger's repository or remote may hold them."""
    sound = sound_results()
    readers = (read_artifacts, read_findings, read_summary, lambda folder: read_record(folder / "metadata.json"), read_model,
               lambda folder: read_gate(folder / "metadata.json"), lambda folder: read_lock(folder / "dvc.lock"))  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(ROUND // 4):
            for file, content in sound.items():
                (folder / file).write_bytes(content)
            file = draw.choice(sorted(sound))
            deep = damaged_archive if file.endswith(".pt") else changed_json
            bad = draw.choice([damaged, deep, deep])(draw, sound[file])
            (folder / file).write_bytes(b"[" * 10**5 if draw.random() < 0.02 else bad)
            for read in readers:
                count.of(lambda read=read: read(folder), (file, bad))


TARGETS = {"text": text_inputs, "arrays": array_inputs, "files": file_inputs, "models": model_inputs, "vnnlib": vnnlib_inputs,
           "results": result_inputs}  # fmt: skip


def tried(name: str, number: int, count: Count) -> None:
    """Try one round of a target in a process of its own; `number` seeds it."""
    context = multiprocessing.get_context("fork")
    there, here = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:  # of what the process leaves when it is killed
        child = context.Process(target=_round, args=(name, number, folder, here))
        child.start()
        here.close()
        try:
            count.add(there.recv())
        except EOFError:
            child.join()
            count.findings.setdefault(f"a process ended with {child.exitcode}", f"round {number} of {name}")
        child.join()


def _round(name: str, number: int, folder: str, pipe: object) -> None:
    def interrupt(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGPROF, interrupt)
    warnings.simplefilter("ignore")
    tempfile.tempdir = folder
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    torch.set_num_threads(1)
    TARGETS[name](random.Random(f"{name} {number}"), count := Count())
    pipe.send(count)  # type: ignore[attr-defined]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--minutes", type=float, default=1, help="of each target")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    arguments = parser.parse_args()
    found = False
    sound_models(), sound_results()
    for name in arguments.targets or TARGETS:
        count, number, started = Count(), arguments.seed, time.monotonic()
        while time.monotonic() - started < 60 * arguments.minutes:
            tried(name, number, count)
            number += 1
        seconds = time.monotonic() - started
        findings = f"{count.refused} refused in one line, {len(count.findings)} findings"
        print(f"{name}: {count.tried} inputs in {seconds:.0f} s, {findings}", flush=True)
        for place, shown in count.findings.items():
            print(f"  {place}\n    {shown}", flush=True)
        found |= bool(count.findings)
    raise SystemExit(found)


if __name__ == "__main__":
    main()
