"""Randomised smoothing with copies that end when the verdict is decided beside a fixed number of copies, in one run.

    python -m benchmarks.smoothing [--samples 100] [--n 10000] [--sigma 0.25] [--epsilon 0.1 0.25 0.5]

MNIST and two LeNet5 of WINDTUNNEL_SHARED (../shared), a CNN on digits where they are absent; the shares are sequential over fixed.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.attacks import subjects
from windtunnel.assessments.verification.smoothing import ABSTAIN, certify, radius_of
from windtunnel.core.classifier import Classifier
from windtunnel.params.verification import Smoothing


def main() -> None:
    """Print a row for each model and epsilon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    asked = parser.parse_args()
    print(
        "model                         epsilon  certified: fixed  sequential  correct: fixed  sequential  passes   time"
    )
    for name, subject, _ in subjects(asked.samples):
        classifier, x, y = subject.classifier, subject.dataset.inputs, subject.dataset.targets
        fixed = Smoothing(sigma=asked.sigma, n=asked.n)
        early = fixed.model_copy(update={"sequential": True})
        reference = _run(classifier, x, y, fixed, float("inf"))
        for epsilon in asked.epsilon:
            found = _run(classifier, x, y, early, epsilon)
            certified = [int((radii >= epsilon).sum()) for radii, *_ in (reference, found)]
            correct = [run[1] for run in (reference, found)]
            print(
                f"{name:29} {epsilon:7.2f}  {certified[0]:16d}  {certified[1]:10d}  {correct[0]:14d}  {correct[1]:10d}  "
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
