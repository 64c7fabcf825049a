"""PGD that skips repeated steps beside torchattacks' own, in one run: gradients, processor time and equality of the results.

    python -m benchmarks.pgd_cycles [--n 100] [--steps 40 200]

MNIST and two LeNet5 of WINDTUNNEL_SHARED (../shared), a CNN on digits where they are absent; Linf 0.3. The shares are ours over
the library's.
"""

from __future__ import annotations

import argparse
import time

import torch
import torchattacks

from benchmarks.attacks import subjects
from windtunnel.assessments.attacks.torchattacks.adapter import CyclePGD


def main() -> None:
    """Print a row for each model, step size and number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--steps", type=int, nargs="+", default=[40, 200])
    asked = parser.parse_args()
    print("model                         alpha  steps  gradients   time  equal bytes  equal verdicts")
    for name, subject, _ in subjects(asked.n):
        model, x, y = subject.classifier.module, subject.dataset.inputs, subject.dataset.targets
        for alpha in (0.01, 0.1):
            for steps in asked.steps:
                results, seconds = [], []
                for kind in (torchattacks.PGD, CyclePGD):
                    attack = kind(model, eps=0.3, alpha=alpha, steps=steps)
                    torch.manual_seed(0)
                    attack.set_device(x.device)
                    started = time.process_time()
                    results.append(attack(x, y))
                    seconds.append(time.process_time() - started)
                share = attack.gradients / (steps * len(x))
                verdicts = torch.equal(*(model(result).argmax(1) for result in results))
                print(
                    f"{name:29} {alpha:5.2f}  {steps:5d}  {share:9.2f}  {seconds[1] / seconds[0]:5.2f}  "
                    f"{torch.equal(*results)!s:>11}  {verdicts!s:>14}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
