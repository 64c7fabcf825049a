"""Executors: work in this process and over workers, on as many processors. Ratios of one run, equal bytes or none.

    python -m benchmarks.scale [--kinds processes ray] [--only PGD] [--workers 2 1] [--repeats 1] [--share 1]
    python -m benchmarks.scale --time | --memory | --images    # of every stage against the number of samples: see scale_memory

The same command goes on where it was stopped: what is measured is kept in `--folder`.

PGD of 20 steps, EvoBA, crown and a suite of corruptions, each about a minute long in one process (`--share` of it): in this process,
then over so many workers of each kind, one thread each. The places take turns, `repeats` times, and a ratio is the median of those within
a turn: what others do on the machine meanwhile hits all places alike. Workers start before they are timed, as those of a stage start
once; what that takes is a column of its own. What each then imports for its first batch is a part of what is timed.
Wanted: at least 1.7 times with 2 workers on 2 cores, and at most 1.1 times the time with one. No ratio where any tensor differs.
On a machine that others load (`taskset` gives cores that are ours; the first line says how many) ratios of time are no measurement of the
executors. Processor time is one all the same, in brackets: how much less of it the busiest process needs than this one alone (as many
times as fast on free processors, at best), and how much more all of them need together (what handing over costs).

MNIST and a LeNet5 where ../shared (WINDTUNNEL_SHARED) is; else digits, repeated, and a CNN.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from benchmarks import scale_memory
from benchmarks.attacks import subjects
from windtunnel.assessments.attacks.assess import assess as assess_attack
from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.queries.assess import assess as assess_query
from windtunnel.assessments.verification.assess import assess as assess_verification
from windtunnel.core.batches import batches_of
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry, QueryEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.result import AssessmentResult
from windtunnel.runtime.batch_runner import run_batches
from windtunnel.runtime.placement import VARIABLE

PGD = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": 0.02}, "batch_size": 100}
EVOBA = {"algorithm": "EvoBA", "params": {"generation_size": 30, "generations": 15}}
CROWN = {"library": "auto-LiRPA", "algorithm": "crown", "budget": {"epsilon": 0.02}, "batch_size": 4}
SUITE = {"corruptions": ["noise", "blur"], "severities": [3], "upsample": 32, "batch_size": 100}
MEASURED = {"runtime_per_sample"}
# Samples that take one process and one thread about a minute on a processor of 2023.
MINUTE = {"PGD": 4000, "EvoBA": 768, "crown": 24, "corruptions": 4000}


def jobs(epsilon: float) -> dict[str, Callable[[Subject], AssessmentResult]]:
    """The work, by title."""
    budget = Budget(norm="Linf", epsilon=epsilon)
    pgd, evoba = AttackEntry.model_validate(PGD), QueryEntry.model_validate(EVOBA)
    crown, suite = VerificationEntry.model_validate(CROWN), CorruptionEntry.model_validate(SUITE)
    return {
        "PGD": lambda some: assess_attack("pgd", pgd, budget, some),
        "EvoBA": lambda some: assess_query("evoba", evoba, budget, some),
        "crown": lambda some: assess_verification("crown", crown, budget, some),
        "corruptions": lambda some: assess_suite("suite", suite, some, lambda _: None),
    }


@dataclass(frozen=True, slots=True)
class Taken:
    """seconds: of the clock. busiest, together: seconds of a processor, of the busiest process and of all."""

    seconds: float
    busiest: float
    together: float


def processor_times() -> dict[int, float]:
    """Seconds of a processor so far, of this process and all below it."""
    found = {}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def timed(where: str, work: Callable[[], AssessmentResult]) -> tuple[Taken, AssessmentResult]:
    """What `work` takes under an executor, and its result."""
    os.environ[VARIABLE] = where
    before, started = processor_times(), time.perf_counter()
    result = work()
    seconds, after = time.perf_counter() - started, processor_times()
    used = [value - before.get(pid, 0.0) for pid, value in after.items()]
    return Taken(seconds, max(used), sum(used)), result


def equal(one: AssessmentResult, other: AssessmentResult) -> bool:
    """Whether every tensor is, but for what is measured."""
    return all(
        key in MEASURED or not isinstance(value, torch.Tensor) or _bytes(value) == _bytes(other.data[key])
        for key, value in one.data.items()
    )


def _bytes(value: object) -> bytes:
    assert isinstance(value, torch.Tensor)
    return value.numpy().tobytes()


def start(where: str, workers: int) -> float:
    """Seconds until `workers` workers do something that needs torch."""
    os.environ[VARIABLE] = where
    started = time.perf_counter()
    run_batches(batches_of(torch.arange(workers), 1, 0, "start"), lambda batch: {"x": torch.rand(1)}, name="start")
    return time.perf_counter() - started


def compare(
    title: str, it: Subject, places: dict[str, int], repeats: int, work: Callable[[Subject], AssessmentResult]
) -> list[str]:
    """A line per place (with its workers): the medians of its start, of its time and of its ratios to this process within a turn."""
    taken = {place: list[Taken]() for place in ("here", *places)}
    began, same = dict.fromkeys(places, 0.0), True
    for _ in range(repeats):
        one, here = timed("here", lambda: work(it))
        taken["here"].append(one)
        for place, workers in places.items():
            began[place] = max(began[place], start(place, workers))  # those of an earlier turn may be there yet
            one, there = timed(place, lambda: work(it))
            taken[place].append(one)
            same = same and equal(here, there)
    lines = []
    for place in places:
        pairs = list(zip(taken["here"], taken[place], strict=True))
        alone, spread = (statistics.median(t.seconds for t in taken[key]) for key in ("here", place))
        ratio = statistics.median(h.seconds / t.seconds for h, t in pairs)
        busiest = statistics.median(h.together / t.busiest for h, t in pairs)
        more = statistics.median(t.together / h.together - 1 for h, t in pairs)
        words = f"{ratio:.2f}x ({busiest:.2f}x, {more:+.1%})" if same else "NO RATIO: other bytes"
        sizes = f"{title}, {len(it.dataset)} samples"
        lines.append(f"| {sizes} | {place} | {began[place]:.1f} s | {alone:.1f} s | {spread:.1f} s | {words} |")
    return lines


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--kinds", choices=["processes", "ray"], nargs="+", default=["processes"])
    parser.add_argument("--only", choices=list(MINUTE), nargs="+", default=list(MINUTE))
    parser.add_argument("--share", type=float, default=1.0, help="of a minute's samples")
    parser.add_argument("--repeats", type=int, default=1)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--time", action="store_true", help="seconds of a stage at each of --sizes, and how they grow")
    what.add_argument("--memory", action="store_true", help="memory of every stage at the largest of --sizes")
    what.add_argument("--images", action="store_true", help="--large images of 3x224x224")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--large", type=int, default=2000, help="how many images, with --images")
    parser.add_argument("--inputs", default="all", help="storage.inputs, with --time, --memory and --images")
    parser.add_argument("--network", choices=["lenet5", "linear"], default="lenet5", help="with --time and --memory")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "windtunnel-scale",
        help="where what is measured is kept",
    )
    options = parser.parse_args()
    folder, storage = options.folder.resolve(), f"storage: {{inputs: {options.inputs}}}"
    if options.time:
        scale_memory.times(sorted(options.sizes), storage, options.network, folder)
    elif options.memory:
        scale_memory.memory([max(options.sizes)], storage, options.network, folder)
    elif options.images:
        scale_memory.images(options.large, storage, folder)
    else:
        executors(options, folder)


def executors(options: argparse.Namespace, folder: Path) -> None:
    """The table of ratios."""
    torch.set_num_threads(1)
    busy, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
    print(f"{cores} processors, {len(os.sched_getaffinity(0))} of them ours, load {busy:.1f} before")
    sizes = {title: round(MINUTE[title] * options.share) for title in options.only}
    _, it, epsilons = subjects(max(sizes.values()))[0]
    places = {f"{kind}:{number}": number for number in options.workers for kind in options.kinds}
    print(
        "| work | where | start | here | there | ratio (processor time: busiest, together) |\n| --- | --- | --- | --- | --- | --- |"
    )
    folder.mkdir(parents=True, exist_ok=True)
    for title, n in sizes.items():
        name = f"{title}-{n}-{options.repeats}-{'-'.join(places)}".replace(":", "")
        kept = folder / f"ratio-{name}.txt"
        if not kept.is_file():
            some = it.subset(torch.arange(n))
            kept.write_text("\n".join(compare(title, some, places, options.repeats, jobs(epsilons[-1])[title])))
        print(kept.read_text(), flush=True)


if __name__ == "__main__":
    main()
