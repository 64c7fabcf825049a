"""Our verifier and installed peers on a benchmark folder of VNN-COMP: decided, contradictions and seconds, on the same cores.

    python -m benchmarks.vnncomp FOLDER [--timeout 60] [--every 2] [--threads 1] [--peer vibecheck] [--peer NAME='COMMAND'] [--write FILE]

FOLDER holds instances.csv (onnx, vnnlib, seconds), as the competition and `windtunnel vnnlib export` write it. Each instance is
decided by one process of each tool, one after the other, start-up included; `--timeout` replaces the seconds of the file.

A peer is a command with {onnx}, {vnnlib}, {timeout} and {result}, which writes the competition's result into {result} (or prints
it). vibecheck (vibecheck-nn of PyPI) is known by name and used where it is installed; a COMMAND takes any other. NeuralSAT:
--peer neuralsat='PYTHON SITE_PACKAGES/src/main.py --device cpu --net {onnx} --spec {vnnlib} --timeout {timeout}
--result_file {result} --export_cex'.
Peers are no dependencies of this project.

Every `sat` is evaluated by onnxruntime: a counter-example that the graph does not confirm counts as wrong, not as decided. Two tools
that answer `sat` (confirmed) and `unsat` on one instance contradict each other, and the exit code is 1. The ratio of decided
instances is given only against peers that answered every instance without an error.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch

from windtunnel.boundary.vnnlib_text import read_specifications

OURS = "windtunnel"
_COMMANDS = {
    OURS: f"{shlex.quote(sys.executable)} -m windtunnel verify --onnx {{onnx}} --vnnlib {{vnnlib}} "
    "--timeout {timeout} --result {result}",
    "vibecheck": "vibecheck --device cpu --net {onnx} --spec {vnnlib} --timeout {timeout} --results-file {result}",
}
_GRACE = 30.0  # seconds after the time limit until a process is ended
_DECIDED = ("sat", "unsat")
_PAIR = re.compile(r"\(\s*(?:X_|X\[)(\d+)\]?\s+([^\s()]+)\s*\)")
_TOLERANCE = 1e-4  # by which the competition lets a counter-example leave its box


@dataclass(frozen=True)
class Instance:
    """One line of instances.csv. timeout: seconds."""

    onnx: Path
    vnnlib: Path
    timeout: float

    @property
    def name(self) -> str:
        """Return network/specification, without endings."""
        return f"{self.onnx.name.split('.')[0]}/{self.vnnlib.name.split('.vnnlib')[0]}"


@dataclass(frozen=True)
class Answer:
    """What a tool answered. word: sat, unsat, unknown, timeout, error, or wrong for a counter-example that is none."""

    word: str
    seconds: float
    reason: str = ""


def read_instances(folder: Path, timeout: float | None) -> list[Instance]:
    """Return the instances of `folder`/instances.csv; `.gz` files stand in for unpacked ones."""
    found = []
    with (folder / "instances.csv").open(newline="") as file:
        for row in csv.reader(file):
            paths = [folder / name.strip() for name in row[:2]]
            paths = [path if path.exists() else path.with_name(path.name + ".gz") for path in paths]
            found.append(Instance(paths[0], paths[1], timeout or float(row[2])))
    return found


def is_counter_example(instance: Instance, result: str) -> bool:
    """Return whether the input that `result` names lies in the box and has outputs that the specification asks for."""
    values = {int(index): float(value) for index, value in _PAIR.findall(result)}
    specifications = read_specifications(instance.vnnlib)
    if sorted(values) != list(range(len(specifications[0].low))):
        return False
    point = torch.tensor([values[i] for i in range(len(values))], dtype=torch.float64)
    packed = instance.onnx.read_bytes()
    session = onnxruntime.InferenceSession(gzip.decompress(packed) if instance.onnx.suffix == ".gz" else packed)
    graph_input = session.get_inputs()[0]
    shape = [side if isinstance(side, int) else 1 for side in graph_input.shape]
    for specification in specifications:
        low, high = specification.low - _TOLERANCE, specification.high + _TOLERANCE
        inside = point.clamp(specification.low, specification.high).float()
        if ((point < low) | (point > high)).any():
            continue
        outputs = session.run(None, {graph_input.name: inside.view(shape).numpy()})[0]
        if specification.holds_at(torch.from_numpy(outputs).flatten()):
            return True
    return False


def answer(command: str, instance: Instance, threads: int) -> Answer:
    """Run one tool on one instance, at most its timeout and `_GRACE`."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.txt"
        fields = {
            "onnx": instance.onnx.resolve(),
            "vnnlib": instance.vnnlib.resolve(),
            "timeout": f"{instance.timeout:g}",
        }
        arguments = [part.format(**fields, result=result) for part in shlex.split(command)]
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))}
        start = time.perf_counter()
        try:
            process = subprocess.run(
                arguments,
                capture_output=True,
                text=True,
                cwd=scratch,
                env=environment,
                timeout=instance.timeout + _GRACE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer("timeout", time.perf_counter() - start, "ended from outside")
        seconds = time.perf_counter() - start
        text = result.read_text() if result.exists() else process.stdout
    words = re.findall(r"\b(unsat|sat|unknown|timeout|timed-out)\b", text)
    if not words:
        lines = (process.stderr or process.stdout).strip().splitlines() or ["no output"]
        return Answer("error", seconds, lines[-1][:200])
    word = "timeout" if words[0] == "timed-out" else words[0]
    if word == "sat" and not is_counter_example(instance, text):
        return Answer("wrong", seconds, "onnxruntime does not confirm the counter-example")
    return Answer(word, seconds)


def contradictions(answers: dict[str, list[Answer]], instances: list[Instance]) -> list[str]:
    """Name the instances on which two tools decided differently."""
    found = []
    for index, instance in enumerate(instances):
        words = {name: given[index].word for name, given in answers.items() if given[index].word in _DECIDED}
        if len(set(words.values())) > 1:
            found.append(f"{instance.name}: " + ", ".join(f"{name} {word}" for name, word in words.items()))
    return found


def table(answers: dict[str, list[Answer]]) -> Iterable[str]:
    """Yield the table in Markdown: a row for each tool."""
    yield "| tool | decided | unsat | sat | unknown or timeout | errors | wrong | median s of decided | quickest s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, given in answers.items():
        count = {
            word: sum(a.word == word for a in given) for word in (*_DECIDED, "unknown", "timeout", "error", "wrong")
        }
        seconds = [a.seconds for a in given if a.word in _DECIDED]
        times = f"{statistics.median(seconds):.1f} | {min(seconds):.1f}" if seconds else "- | -"
        decided, undecided = count["sat"] + count["unsat"], count["unknown"] + count["timeout"]
        yield (
            f"| {name} | {decided} of {len(given)} | {count['unsat']} | {count['sat']} | {undecided} | {count['error']} | "
            f"{count['wrong']} | {times} |"
        )


def main() -> int:
    """Print a line an instance, then the table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--every", type=int, default=1, help="every n-th instance")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME[=COMMAND]")
    parser.add_argument("--write", type=Path, help="also write the table into this file")
    arguments = parser.parse_args()
    given = dict(peer.partition("=")[::2] for peer in arguments.peer)
    tools = {OURS: _COMMANDS[OURS], **{name: command or _COMMANDS[name] for name, command in given.items()}}
    tools |= {name: command for name, command in _COMMANDS.items() if name not in tools and shutil.which(name)}
    instances = read_instances(arguments.folder, arguments.timeout)[:: arguments.every]
    answers: dict[str, list[Answer]] = {name: [] for name in tools}
    for instance in instances:
        for name, command in tools.items():
            answers[name].append(answer(command, instance, arguments.threads))
        last = {name: a[-1] for name, a in answers.items()}
        words = "; ".join(f"{name} {a.word} {a.seconds:.1f} s {a.reason}".rstrip() for name, a in last.items())
        print(f"{instance.name}: {words}", flush=True)
    lines = list(table(answers))
    print("\n".join(["", *lines]))
    decided = {name: sum(a.word in _DECIDED for a in rows) for name, rows in answers.items()}
    sound = [n for n, rows in answers.items() if n != OURS and not any(a.word in ("error", "wrong") for a in rows)]
    best = max(sound, key=decided.__getitem__, default=None)
    if best is None:
        print("no ratio: no peer answered every instance without an error")
    else:
        ratio = f": {decided[OURS] / decided[best]:.2f} times" if decided[best] else ""
        print(f"{OURS} decided {decided[OURS]}, {best} {decided[best]}{ratio}")
    wrong = contradictions(answers, instances)
    print(f"contradictions: {len(wrong)}", *wrong, sep="\n  ")
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
