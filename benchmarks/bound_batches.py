"""How many samples are quickest together when auto-LiRPA bounds them: seconds a sample by the size of the batch.

    python -m benchmarks.bound_batches [--method crown] [--samples 1 2 4 8 20 40] [--threads 1]

The networks are untrained and the images are noise: at this epsilon about as many units are unstable as in trained ones. The
quickest of three runs counts. `together` is what `samples_that_suit` says.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from benchmarks.verification_models import ResidualCNN, dense, untrained
from windtunnel.assessments.verification.bound_propagation.lirpa import bound_batch
from windtunnel.assessments.verification.bound_propagation.memory import samples_that_suit
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.boundary.models.architectures import cnn
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import Dataset

EPSILON = 0.02


def _wide_cnn() -> nn.Module:
    convolutions = [nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 49, 256), nn.ReLU(), nn.Linear(256, 10))


NETWORKS = {
    "2 x 256": lambda: dense(2),
    "CNN of width 16": lambda: cnn((1, 28, 28), 10),
    "CNN of width 32": _wide_cnn,
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
        it = canonical_subject(untrained(name, make, max(options.samples))).subject
        together = samples_that_suit(it.classifier.module, it.dataset.inputs[:1])
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
