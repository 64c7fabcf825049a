"""PGD that skips repeated steps beside torchattacks' own, in one run: gradients, processor time and equality of the results.

    python benchmarks/pgd_cycles.py [--n 100] [--steps 40 200]

MNIST and two LeNet5 of WINDTUNNEL_SHARED (../shared), Linf 0.3; the shares are ours over the library's.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from pathlib import Path

import numpy as np
import torch
import torchattacks

from windtunnel.assessments.attacks.cycle_pgd import CyclePGD
from windtunnel.boundary.models.architectures import lenet5

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))


def main() -> None:
    """Print a row for each model, step size and number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--steps", type=int, nargs="+", default=[40, 200])
    asked = parser.parse_args()
    mnist = SHARED / "data" / "mnist"
    pixels, classes = (
        np.frombuffer(gzip.decompress((mnist / f"t10k-{name}.gz").read_bytes()), np.uint8, offset=offset)
        for name, offset in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
    )
    x = torch.from_numpy(pixels.reshape(-1, 1, 28, 28)[: asked.n].astype(np.float32) / 255)
    y = torch.from_numpy(classes[: asked.n].astype(np.int64))
    print("model        alpha  steps  gradients   time  equal bytes  equal verdicts")
    for name in ("clntrained", "advtrained"):
        model = lenet5().eval().requires_grad_(False)
        path = SHARED / "data" / "models" / f"mnist_lenet5_{name}.pt"
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
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
                    f"{name:12} {alpha:5.2f}  {steps:5d}  {share:9.2f}  {seconds[1] / seconds[0]:5.2f}  "
                    f"{torch.equal(*results)!s:>11}  {verdicts!s:>14}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
