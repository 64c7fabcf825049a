"""Randomised smoothing with copies that end when the verdict is decided beside a fixed number of copies, in one run.

    python benchmarks/smoothing.py [--samples 100] [--n 10000] [--sigma 0.25] [--epsilon 0.1 0.25 0.5]

MNIST and two LeNet5 of WINDTUNNEL_SHARED (../shared); the shares are sequential over fixed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from pathlib import Path

import numpy as np
import torch

from windtunnel.assessments.verification.smoothing.randomised import ABSTAIN, certify, radius_of
from windtunnel.boundary.models.architectures import lenet5
from windtunnel.core.classifier import Classifier
from windtunnel.params.verification import Smoothing

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))


def main() -> None:
    """Print a row for each model and epsilon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    asked = parser.parse_args()
    mnist = SHARED / "data" / "mnist"
    pixels, classes = (
        np.frombuffer(gzip.decompress((mnist / f"t10k-{name}.gz").read_bytes()), np.uint8, offset=offset)
        for name, offset in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
    )
    x = torch.from_numpy(pixels.reshape(-1, 1, 28, 28)[: asked.samples].astype(np.float32) / 255)
    y = torch.from_numpy(classes[: asked.samples].astype(np.int64))
    print("model        epsilon  certified: fixed  sequential  correct: fixed  sequential  passes   time")
    for name in ("clntrained", "advtrained"):
        model = lenet5().eval().requires_grad_(False)
        path = SHARED / "data" / "models" / f"mnist_lenet5_{name}.pt"
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        classifier = Classifier(model, 10, (1, 28, 28), frozenset(), digest="", source=name)
        fixed = Smoothing(sigma=asked.sigma, n=asked.n)
        early = fixed.model_copy(update={"sequential": True})
        reference = _run(classifier, x, y, fixed, float("inf"))
        for epsilon in asked.epsilon:
            found = _run(classifier, x, y, early, epsilon)
            certified = [int((radii >= epsilon).sum()) for radii, *_ in (reference, found)]
            correct = [run[1] for run in (reference, found)]
            print(
                f"{name:12} {epsilon:7.2f}  {certified[0]:16d}  {certified[1]:10d}  {correct[0]:14d}  {correct[1]:10d}  "
                f"{found[2] / reference[2]:6.2f}  {found[3] / reference[3]:5.2f}",
                flush=True,
            )


def _run(
    classifier: Classifier, x: torch.Tensor, y: torch.Tensor, given: Smoothing, epsilon: float
) -> tuple[torch.Tensor, int, int, float]:
    """(radius of each sample, 0 where the class is wrong; correct predictions; passes; processor time)."""
    radii, correct, passes, started = [], 0, 0, time.process_time()
    for i, (image, target) in enumerate(zip(x, y.tolist(), strict=True)):
        chosen, count, copies = certify(classifier, image, given, i, epsilon)
        radius = radius_of(count, copies, given)
        predicted = chosen if radius > 0 else ABSTAIN
        correct += predicted == target
        passes += given.n0 + copies
        radii.append(radius if predicted == target else 0.0)
    return torch.tensor(radii), correct, passes, time.process_time() - started


if __name__ == "__main__":
    main()
