"""Executors: an attack in this process and over workers, on as many processors. Ratios of one run, equal bytes or none.

    python benchmarks/scale.py [--workers 2] [--n 2000] [--ray]
    python benchmarks/scale.py --memory [--sizes 1000 10000 100000] [--large 2000] [--inputs 1000] [--network linear]    # see scale_memory

PGD of 20 steps on n samples: in this process, over `workers` processes, with --ray over as many Ray actors, and over one of
either (what handing over costs), one thread each; and in this process with as many threads. Starting the workers counts.
Wanted: at least 1.7 times with 2 workers on 2 cores, and at most 1.1 times the time with one. No ratio where any
tensor differs.

MNIST and a LeNet5 where ../shared (WINDTUNNEL_SHARED) is; else digits, repeated, and a CNN.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

from benchmarks import scale_memory
from benchmarks.attacks import subjects
from windtunnel.assessments.attacks.assess import assess as assess_attack
from windtunnel.core.artifacts import AssessmentResult
from windtunnel.core.executors import VARIABLE
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

PGD = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": 0.02}, "batch_size": 100}


def timed(where: str, threads: int, work: Callable[[], AssessmentResult]) -> tuple[float, AssessmentResult]:
    """(seconds, result) of `work` under an executor."""
    torch.set_num_threads(threads)
    os.environ[VARIABLE] = where
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def equal(one: AssessmentResult, other: AssessmentResult) -> bool:
    """Whether every tensor is."""
    return all(
        not isinstance(value, torch.Tensor) or torch.equal(value, other.data[key]) for key, value in one.data.items()
    )


def compare(title: str, it: Subject, workers: int, places: list[str], work: Callable[[], AssessmentResult]) -> None:
    """A line per place."""
    threads, _ = timed("here", workers, work)
    here, result = timed("here", 1, work)
    print(f"{title}, {len(it.dataset)} samples: in this process {here:.1f} s, with {workers} threads {threads:.1f} s")
    for place in places:
        took, there = timed(place, 1, work)
        words = f"{here / took:.2f} times as fast" if equal(result, there) else "NO RATIO: the results differ"
        print(f"    {place}: {took:.1f} s, {words}")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument(
        "--memory", action="store_true", help="time and memory of every stage against the number of samples"
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--large", type=int, default=2000, help="images of 3x224x224, with --memory")
    parser.add_argument("--inputs", default="all", help="storage.inputs, with --memory")
    parser.add_argument("--network", choices=["lenet5", "linear"], default="lenet5", help="with --memory")
    options = parser.parse_args()
    if options.memory:
        scale_memory.main(options.sizes, options.large, f"storage: {{inputs: {options.inputs}}}", options.network)
        return
    name, it, epsilons = subjects(options.n)[0]
    allowed = Budget(norm="Linf", epsilon=epsilons[-1])
    kinds = ["processes", "ray"] if options.ray else ["processes"]
    places = [f"{kind}:{number}" for kind in kinds for number in (options.workers, 1)]
    pgd = AttackEntry.model_validate(PGD)
    compare(f"PGD, {name}", it, options.workers, places, lambda: assess_attack("pgd", pgd, allowed, it))


if __name__ == "__main__":
    main()
