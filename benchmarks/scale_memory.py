"""How time and memory grow with the number of samples: every stage of a run, each in its own process, as DVC starts it.

    python benchmarks/scale.py --memory [--sizes 1000 10000 100000] [--large 2000]

MNIST-sized samples (the real ones where ../shared is, each repetition with noise of its own) through prepare, clean, FGSM, PGD-10,
CROWN-IBP, sanity, summary, report and track; and `--large` images of 3x224x224 through FGSM and three corruptions. A line per
stage: seconds, and the most memory that was the process's own (anonymous and shared; mapped files, which the system drops and reads
again as it likes, are not counted).
Wanted: at most 1 GiB at every size, at most 4 GiB for the large images, and ten times the samples in ten times the time, within 10 %.
Seconds are of this machine under the load it had, which is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.inputs.data.sources import read_idx

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))
POLL = 0.01  # seconds between looks at a process

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
  suite: {algorithm: [fog, gaussian_noise, brightness], severities: [3], workers: 2}
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
    """A stage: seconds, and the most bytes of memory of its own."""

    stage: str
    seconds: float
    memory: int


def small(n: int, storage: str, network: str) -> list[Measured]:
    """A run on n MNIST-sized samples: of a trained `lenet5`, or of a `linear` network, whose time is that of the pipeline."""
    images, labels = _digits()
    rng = np.random.default_rng(0)
    x = np.empty((n, 28, 28), np.uint8)
    for start in range(0, n, len(images)):
        part = images[: min(len(images), n - start)].astype(np.int16)
        noise = rng.integers(-8, 9, part.shape, dtype=np.int16) if start else 0  # else sanity would find copies
        x[start : start + len(part)] = (part + noise).clip(0, 255)
    y = np.tile(labels, -(-n // len(labels)))[:n].astype(np.int64)
    stages = "prepare, train, clean, attack fgsm, attack pgd, verify crown_ibp, sanity, summary, report, gate, track"
    with tempfile.TemporaryDirectory() as folder:
        place, factory = Path(folder), "windtunnel.inputs.models.architectures:lenet5"
        weights = SHARED / "data" / "models" / "mnist_lenet5_clntrained.pt"
        if network == "linear":
            factory, weights = "networks:linear", _own_network(place, "linear")
        params = _SMALL.replace("STORAGE", storage).replace("FACTORY", factory)
        return _run(place, params, (x, y), weights, stages.split(", "))


def large(n: int, storage: str) -> list[Measured]:
    """A run on n images of 3x224x224."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, n)
    x = np.empty((n, 3, 224, 224), np.uint8)
    for i in range(n):  # smooth images, of a class each
        coarse = rng.integers(0, 255, (3, 7, 7), dtype=np.uint8)
        x[i] = np.kron(coarse, np.ones((1, 32, 32), np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        stages = ["prepare", "train", "clean", "attack fgsm", "corrupt suite", "summary", "report"]
        return _run(place, _LARGE.replace("STORAGE", storage), (x, y), _own_network(place, "striding"), stages)


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


def _run(
    place: Path, params: str, data: tuple[np.ndarray, np.ndarray], weights: Path, stages: list[str]
) -> list[Measured]:
    (place / "weights.pt").write_bytes(weights.read_bytes())
    (place / "params.yaml").write_text(params)
    np.savez(place / "data.npz", x=data[0], y=data[1])
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    _measured(place, "resolve")
    return [_measured(place, stage) for stage in stages]


def _measured(place: Path, stage: str) -> Measured:
    """Run a stage; the memory of its process is looked at all the time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(place)])}
    started = time.perf_counter()
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "windtunnel", "stage", *stage.split()],
            cwd=place,
            stdout=log,
            stderr=log,
            env=environment,
        )
        most = 0
        while process.poll() is None:
            most = max(most, sum(_own(Path(f"/proc/{process.pid}/status"))))
            time.sleep(POLL)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{stage} failed:\n{(place / 'log').read_text()[-2000:]}")
    return Measured(stage, seconds, most)


def _own(status: Path) -> Iterator[int]:
    """Bytes of memory that are in no file."""
    try:
        lines = status.read_text().splitlines()
    except (OSError, ProcessLookupError):
        return
    for line in lines:
        if line.startswith(("RssAnon", "RssShmem")):
            yield int(line.split()[1]) * 1024


def main(sizes: list[int], large_images: int, storage: str, network: str) -> None:
    """Measure and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; {storage}; {network}")
    runs: dict[int, list[Measured]] = {}
    for n in sizes:
        runs[n] = small(n, storage, network)
        print(f"\n{n} samples of 1x28x28")
        _print(runs[n])
    for less, more in zip(sizes, sizes[1:], strict=False):
        for one, other in zip(runs[less], runs[more], strict=True):
            print(
                f"{one.stage}: {more / less:.3g} times the samples, {other.seconds / one.seconds:.2f} times the seconds"
            )
    if large_images:
        print(f"\n{large_images} images of 3x224x224")
        _print(large(large_images, storage))


def _print(rows: list[Measured]) -> None:
    for row in rows:
        print(f"| {row.stage} | {row.seconds:.1f} s | {row.memory / 2**20:.0f} MiB |", flush=True)
