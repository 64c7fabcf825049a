"""How many samples are quickest together when auto-LiRPA bounds them: seconds a sample by the size of the batch.

    python benchmarks/bound_batches.py [--method crown] [--samples 1 2 4 8 20 40] [--threads 1]

The networks are untrained and the images are noise: at this epsilon about as many units are unstable as in trained ones. The
quickest of three runs counts. `together` is what `samples_that_suit` says.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from verification_models import ResidualCNN, dense

from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.lirpa import bound_batch
from windtunnel.assessments.verification.memory import samples_that_suit
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import subject_of

EPSILON = 0.02


def _cnn(width: int, hidden: int) -> nn.Sequential:
    convolutions = [nn.Conv2d(1, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU()]
    dense_part = [nn.Flatten(), nn.Linear(2 * width * 49, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
    return nn.Sequential(*convolutions, *dense_part)


NETWORKS = {
    "2 x 256": lambda: dense(2),
    "CNN of width 16": lambda: _cnn(16, 100),
    "CNN of width 32": lambda: _cnn(32, 256),
    "residual CNN of width 8": ResidualCNN,
    "residual CNN of width 32": lambda: ResidualCNN(32),
}


def main() -> None:
    """Print a row for each network and size of a batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="crown")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 2, 4, 8, 20, 40])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--longest", type=float, default=20.0, help="seconds beyond which a network gets no larger batch"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        module = make().eval().requires_grad_(False)
        classifier = Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), name)
        inputs = torch.rand(max(options.samples), 1, 28, 28)
        ids = tuple(map(str, range(len(inputs))))
        data = Dataset(inputs, classifier.predict(inputs), ids, tuple("0123456789"))
        it = canonical_subject(subject_of(classifier, data)).subject
        together = samples_that_suit(it.classifier.module, inputs[:1])
        print(f"{name}, {options.method}, threads: {options.threads}, together: {together}", flush=True)
        for n in options.samples:
            took = min(_seconds(it.classifier, it.dataset, n, options.method) for _ in range(3))
            print(f"  {n:3} samples: {took / n * 1000:8.1f} ms a sample", flush=True)
            if took > options.longest:
                break


def _seconds(classifier: Classifier, data: Dataset, n: int, method: str) -> float:
    started = time.monotonic()
    bound_batch(classifier, data.inputs[:n], data.targets[:n], Norm.LINF, EPSILON, method)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
