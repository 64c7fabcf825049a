"""How time and memory grow with the number of samples: every stage of a run, each in its own process, as DVC starts it.

    python -m benchmarks.scale --time [--sizes 1000 10000 100000] [--network lenet5]
    python -m benchmarks.scale --memory [--sizes 100000]
    python -m benchmarks.scale --images [--large 2000]

MNIST-sized samples (the real ones where ../shared is, each repetition with noise of its own): `--time` through clean, FGSM, PGD-10 and
CROWN-IBP, `--memory` through sanity, summary, report, track besides; `--images`: 3x224x224 through FGSM, three corruptions. A line per
stage: seconds, the load before it, and the most memory that was its own and its workers' (anonymous and shared, what processes share
counted once; mapped files, which the system drops and reads again as it likes, are not counted).
Wanted: at most 1 GiB at every size, at most 4 GiB for the large images, and ten times the samples in ten times the time, within 10 %.
A stage costs seconds that no sample has a share in (what it imports): the second ratio leaves them out, being of what each further
sample costs between one size and the next. Growth is that of the processor's time, which others on the machine hardly touch.
What is measured is kept in `--folder`: the same command goes on where it was stopped, in the middle of a stage too, whose seconds add up.
Another version of the code needs another folder, or none of the old one.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from windtunnel.boundary.data.sources import read_idx

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))
POLL = 0.02  # seconds between looks at a process and those below it
NOTE_EVERY = 5.0  # seconds after which what is known of a stage at work is kept
TIMED = ("prepare", "train", "clean", "attack fgsm", "attack pgd", "verify crown_ibp")
WHOLE = (*TIMED, "sanity", "summary", "report", "gate", "track")
LARGE = ("prepare", "train", "clean", "attack fgsm", "corrupt suite", "summary", "report")

_SMALL = """
seed: 0
device: cpu
data: {source: npz, path: data.npz, class_names: 10}
model: {source: state_dict, path: weights.pt, factory: "FACTORY"}
budget: {norm: Linf, epsilon: 0.1}
STORAGE
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
  pgd: {library: torchattacks, algorithm: PGD, budget: {steps: 10, step_size: 0.02}}
verification:
  crown_ibp: {library: auto-LiRPA, algorithm: crown-ibp, budget: {epsilon: 0.01}}
"""
_LARGE = """
seed: 0
device: cpu
data: {source: npz, path: data.npz, class_names: 10}
model: {source: state_dict, path: weights.pt, factory: "networks:striding"}
budget: {norm: Linf, epsilon: 0.03}
STORAGE
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM, batch_size: 32}
corruptions:
  suite: {corruptions: [fog, gaussian_noise, brightness], severities: [3]}
"""
_NETWORK = '''
from torch import nn


def linear() -> nn.Module:
    """As little of a network as there can be."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def striding() -> nn.Module:
    """A small network for 224 px: what is measured is the pipeline."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)
    )
'''


@dataclass(frozen=True, slots=True)
class Measured:
    """A stage: seconds of the clock and of a processor, the most bytes of memory of its own, and the load of the machine before.

    whole: it is at its end; the seconds of a processor are those of what was done in one go.
    """

    stage: str
    seconds: float
    memory: int
    load: float
    whole: bool = True
    processor: float = 0.0


def small(n: int, storage: str, network: str, stages: Sequence[str], folder: Path) -> Iterator[Measured]:
    """A run on n MNIST-sized samples: of a trained `lenet5`, or of a `linear` network, whose time is that of the pipeline."""
    place = folder / f"{network}-{n}"
    if not (place / "data.npz").exists():
        _make_small(n, storage, network, place)
    yield from _run(place, stages)


def _make_small(n: int, storage: str, network: str, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    images, labels = _digits()
    rng = np.random.default_rng(0)
    x = np.empty((n, 28, 28), np.uint8)
    for start in range(0, n, len(images)):
        part = images[: min(len(images), n - start)].astype(np.int16)
        noise = rng.integers(-8, 9, part.shape, dtype=np.int16) if start else 0  # else sanity would find copies
        x[start : start + len(part)] = (part + noise).clip(0, 255)
    y = np.tile(labels, -(-n // len(labels)))[:n].astype(np.int64)
    factory, weights = (
        "windtunnel.boundary.models.architectures:lenet5",
        SHARED / "data/models/mnist_lenet5_clntrained.pt",
    )
    if network == "linear":
        factory, weights = "networks:linear", _own_network(place, "linear")
    _write(place, _SMALL.replace("STORAGE", storage).replace("FACTORY", factory), (x, y), weights)


def large(n: int, storage: str, folder: Path) -> Iterator[Measured]:
    """A run on n images of 3x224x224."""
    place = folder / f"images-{n}"
    if not (place / "data.npz").exists():
        place.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, n)
        x = np.empty((n, 3, 224, 224), np.uint8)
        for i in range(n):  # smooth images, of a class each
            coarse = rng.integers(0, 255, (3, 7, 7), dtype=np.uint8)
            x[i] = np.kron(coarse, np.ones((1, 32, 32), np.uint8))
        _write(place, _LARGE.replace("STORAGE", storage), (x, y), _own_network(place, "striding"))
    yield from _run(place, LARGE)


def _own_network(place: Path, name: str) -> Path:
    """Untrained weights of a network of `_NETWORK`, whose text is put beside them."""
    import torch

    (place / "networks.py").write_text(_NETWORK)
    scope: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(_NETWORK, scope)  # our own text above
    torch.manual_seed(0)
    torch.save(scope[name]().state_dict(), place / "own.pt")
    return place / "own.pt"


def _digits() -> tuple[np.ndarray, np.ndarray]:
    folder = SHARED / "data" / "mnist"
    if not folder.is_dir():
        raise SystemExit(f"benchmarks/scale.py --memory: needs {folder} (WINDTUNNEL_SHARED)")
    images, labels = (read_idx(folder / f"t10k-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
    return images, labels


def _write(place: Path, params: str, data: tuple[np.ndarray, np.ndarray], weights: Path) -> None:
    (place / "weights.pt").write_bytes(weights.read_bytes())
    (place / "params.yaml").write_text(params)
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    np.savez(place / "new.npz", x=data[0], y=data[1])
    (place / "new.npz").rename(place / "data.npz")  # the last of all: where it is, all is


def _run(place: Path, stages: Sequence[str]) -> Iterator[Measured]:
    """Every stage as it is done; what an earlier command has measured is not done again."""
    for stage in ("resolve", *stages):
        before = _noted(place, stage)
        found = before if before and before.whole else _measured(place, stage, before)
        if stage != "resolve":
            yield found


def _noted(place: Path, stage: str) -> Measured | None:
    note = place / f"measured-{stage}.json"
    return Measured(**json.loads(note.read_text())) if note.is_file() else None


def _note(place: Path, found: Measured) -> Measured:
    (place / "note").write_text(json.dumps(asdict(found)))
    (place / "note").rename(place / f"measured-{found.stage}.json")
    return found


def _measured(place: Path, stage: str, before: Measured | None) -> Measured:
    """Run a stage; the memory of its process is looked at all the time. before: what was seen of it until it was stopped."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(place)])}
    load = os.getloadavg()[0]
    spent, most = (before.seconds, before.memory) if before else (0.0, 0)
    started = noted = time.perf_counter()
    used = _children_used()
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "windtunnel", "stage", *stage.split()],
            cwd=place,
            stdout=log,
            stderr=log,
            env=environment,
        )
        watched = psutil.Process(process.pid)
        try:
            while process.poll() is None:
                most = max(most, _own_of_all(watched))
                time.sleep(POLL)
                if (now := time.perf_counter()) - noted > NOTE_EVERY:
                    noted = now
                    _note(place, Measured(stage, spent + now - started, most, load, whole=False))
        finally:
            process.terminate()
            process.wait()
    if process.returncode:
        raise SystemExit(f"{stage} failed:\n{(place / 'log').read_text()[-2000:]}")
    seconds = spent + time.perf_counter() - started
    return _note(place, Measured(stage, seconds, most, load, processor=_children_used() - used))


def _children_used() -> float:
    """Seconds of a processor of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _own_of_all(root: psutil.Process) -> int:
    """Bytes of memory that are in no file, of a process and all below it; what they share is counted once."""
    processes = [root]
    with contextlib.suppress(psutil.Error):
        processes += root.children(recursive=True)
    return sum(sum(_own(Path(f"/proc/{process.pid}/smaps_rollup"))) for process in processes)


def _own(rollup: Path) -> Iterator[int]:
    """Bytes of memory of a process that are in no file; its share of what several processes hold."""
    try:
        lines = rollup.read_text().splitlines()
    except (OSError, ProcessLookupError):
        return
    for line in lines:
        if line.startswith(("Pss_Anon", "Pss_Shmem")):
            yield int(line.split()[1]) * 1024


def times(sizes: list[int], storage: str, network: str, folder: Path) -> None:
    """Seconds of each stage at each size, and how those of a processor grow."""
    runs: dict[int, list[Measured]] = {}
    for n in sizes:
        runs[n] = _printed(f"{n} samples of 1x28x28, {network}", small(n, storage, network, TIMED, folder))
    print(
        "\n| stage | samples | processor's seconds, by those of a linear growth | of a further sample, by that before |"
        "\n| --- | --- | --- | --- |"
    )
    for i, stage in enumerate(TIMED):
        seconds = {n: rows[i].processor for n, rows in runs.items()}
        further = {
            more: (seconds[more] - seconds[less]) / (more - less) for less, more in zip(sizes, sizes[1:], strict=False)
        }
        for less, more in zip(sizes, sizes[1:], strict=False):
            growth = seconds[more] / seconds[less] / (more / less)
            each = f"{further[more] / further[less]:.2f}" if further.get(less) else ""
            print(f"| {stage} | {less} to {more} | {growth:.2f} | {each} |", flush=True)


def memory(sizes: list[int], storage: str, network: str, folder: Path) -> None:
    """The memory of every stage, to the end of a run."""
    for n in sizes:
        _printed(f"{n} samples of 1x28x28, {network}", small(n, storage, network, WHOLE, folder))


def images(n: int, storage: str, folder: Path) -> None:
    """Seconds and memory of every stage on large images."""
    _printed(f"{n} images of 3x224x224", large(n, storage, folder))


def _printed(title: str, rows: Iterator[Measured]) -> list[Measured]:
    print(
        f"\n{title}; {os.cpu_count()} processors\n"
        "\n| stage | seconds | of a processor | load before | memory |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    found = []
    for row in rows:
        numbers = f"{row.seconds:.1f} | {row.processor:.1f} | {row.load:.1f} | {row.memory / 2**20:.0f} MiB"
        print(f"| {row.stage} | {numbers} |", flush=True)
        found.append(row)
    return found
