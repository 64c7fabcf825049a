"""What it costs to compute with the instructions that all processors have: ratios of one run, on one machine.

    python -m benchmarks.instruction_sets [--repeats 7]

Processor time of a gradient step on three networks, one thread, in a process for each of the settings of docs/what-runs.md; the
settings take turns, and the shortest step of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

SETTINGS: dict[str, dict[str, str]] = {
    "nothing set": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "COMPATIBLE": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"},
}


class Tokens(nn.Module):
    """Patches of 4 x 4 as tokens, (n, 64, 192)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, 32, 32) in."""
        found: Tensor = self.patches(x).flatten(2).transpose(1, 2)
        return found


def block(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip


def networks() -> dict[str, tuple[nn.Module, int]]:
    """name: (the network, how many images of 3 x 32 x 32 it is given)."""
    convolutions = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), block(64, 64, 1), block(64, 128, 2), block(128, 256, 2), block(256, 512, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    layers = [nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True) for _ in range(4)]
    transformer = nn.Sequential(Tokens(), *layers, nn.Flatten(), nn.Linear(64 * 192, 10))
    linear = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return {"convolutions": (convolutions, 8), "transformer": (transformer, 16), "linear layers": (linear, 200)}


def steps() -> dict[str, float]:
    """The shortest of three gradient steps of each network, seconds of the processor."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {}
    for name, (network, n) in networks().items():
        network.eval().requires_grad_(False)
        x, y = torch.rand(n, 3, 32, 32, requires_grad=True), torch.arange(n) % 10
        took = []
        for _ in range(4):  # the first one brings memory and kernels
            started = time.process_time()
            torch.autograd.grad(nn.functional.cross_entropy(network(x), y), x)
            took.append(time.process_time() - started)
        found[name] = min(took[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(steps()))
        return
    shortest: dict[str, dict[str, float]] = {name: {} for name in SETTINGS}
    for _ in range(options.repeats):
        for name, variables in SETTINGS.items():
            ran = subprocess.run(
                [sys.executable, __file__, "--one"],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                check=True,
            )
            for network, seconds in json.loads(ran.stdout.splitlines()[-1]).items():
                shortest[name][network] = min(seconds, shortest[name].get(network, seconds))
    print(f"processor time of a gradient step, {torch.backends.cpu.get_cpu_capability()}")
    print(f"| | {' | '.join(SETTINGS)} |\n|{' --- |' * (len(SETTINGS) + 1)}")
    bare = shortest["nothing set"]
    for network, seconds in bare.items():
        ratios = " | ".join(f"{shortest[name][network] / seconds:.2f}" for name in SETTINGS)
        print(f"| {network} ({1000 * seconds:.1f} ms) | {ratios} |")


if __name__ == "__main__":
    main()
