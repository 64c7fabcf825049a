"""FGSM over a epsilon grid against the passes it cannot do without. Ratios of one run, on one machine.

    python -m benchmarks.sweeps [--n 10000] [--repeats 5]

The sweep (`assess`: one gradient a sample for the whole epsilon grid, predictions, critical epsilons, every metric and the model's
digest before and after) over one forward and backward pass plus E forward passes of the same batches, in alternating
repeats, medians. Data: MNIST's test images where ../shared has them, else noise of their shape. Wanted: at most 1.3 with 20
epsilons on 10,000 images.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.assessments.sweeps.assess import assess
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.architectures import cnn
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry

MNIST = Path(__file__).parents[2] / "shared/data/mnist"
EPSILONS = [0.01 * i for i in range(1, 21)]


def subject(n: int) -> Subject:
    """The small CNN of the pipeline, untrained: what it costs does not depend on its weights."""
    if MNIST.is_dir():
        images, labels = (str(MNIST / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
        data, _ = load_dataset(Data(source="idx", path=images, labels=labels, samples={"n": n}), 0)
        print(f"MNIST, {len(data)} images")
    else:
        inputs = torch.rand(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        data = Dataset(inputs, torch.arange(n) % 10, tuple(map(str, range(n))), tuple("0123456789"))
        print(f"noise of MNIST's shape, {n} images")
    torch.manual_seed(0)
    module: nn.Module = cnn((1, 28, 28), 10).requires_grad_(False).eval()
    return subject_of(Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), "cnn"), data)


def passes(it: Subject, batch_size: int, epsilons: int) -> None:
    """One forward and backward pass with the gradient of the inputs, and `epsilons` forward passes."""
    module, inputs, targets = it.classifier.module, it.dataset.inputs, it.dataset.targets
    for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
        leaf: Tensor = x.clone().requires_grad_()
        torch.autograd.grad(nn.functional.cross_entropy(module(leaf), y, reduction="sum"), leaf)
    for _ in range(epsilons):
        it.classifier.predict(inputs)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000, help="images")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    it = subject(options.n)
    entry = SweepEntry(epsilons=EPSILONS)
    passes(it, entry.batch_size, 1)
    floor, ours = [], []
    for _ in range(options.repeats):
        floor.append(seconds(lambda: passes(it, entry.batch_size, len(EPSILONS))))
        ours.append(seconds(lambda: assess("benchmark", entry, Budget(epsilon=0.1), it)))
    ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
    print(f"one forward-backward + {len(EPSILONS)} forward passes  {statistics.median(floor):7.2f} s")
    print(f"the sweep                                  {statistics.median(ours):7.2f} s  {ratio:5.2f} times")


if __name__ == "__main__":
    main()
