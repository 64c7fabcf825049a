"""Query-counted attacks beside RobustCheck 1.1.0: the same statistics, and how much faster.

    pip install --no-deps robustcheck==1.1.0        # into a copy of the environment
    python -m benchmarks.queries --data DIR [--seeds 5] [--images 30] [--throughput 1000] [--clock wall] [--threads 2]

DIR holds MNIST's four idx files. A CNN of 166,406 parameters is trained (two epochs) and kept in --cache, and so are the
peer's runs, which take minutes. Both attack the same first correctly classified images with the same parameters. Printed
per algorithm: successes, mean queries, mean L0 and L2 over the seeds, of both; images per second of both and their ratio,
in one run, ours also on as many images as --throughput says; and the time of our attack over that of the forward passes
of as many queries alone. The clock is by default the processor time of one thread, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.assessments.queries.assess import assess
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.architectures import cnn
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.attacks import QueryEntry
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.model import Recipe

PATCH = 4
BATCH = 256
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
STATISTICS = ("count_succ", "queries_succ_mean", "l0_dists_succ_mean", "l2_dists_succ_mean")


@dataclass(frozen=True, slots=True)
class Match:
    """One algorithm with the same parameters in both vocabularies; `scale` is the peer's largest pixel value."""

    ours: dict[str, object]
    peer: dict[str, object]
    peer_name: str
    scale: int = 1
    timed_images: int = 30  # of the peer, to compare the speed in one run


MATCHES = {
    "EvoBA": Match(
        {"generation_size": 30, "pixels_per_step": 1, "generations": 200},
        {"generation_size": 30, "one_step_perturbation_pixel_count": 1, "steps": 200},
        "EVOBA",
        timed_images=3,
    ),
    # The peer's EpsGreedy always draws integers from 0 to 255.
    "EpsGreedy": Match(
        {"patch_size": PATCH, "epsilon": 0.1, "steps": 1000, "levels": 256},
        {"epsilon": 0.1, "steps": 1000, "pixel_space_max": 255},
        "EPSGREEDY",
        255,
    ),
    "SimBA": Match({"basis": "pixel", "step_size": 0.1, "steps": 1000}, {"epsilon": 0.1, "steps": 1000}, "SIMBA"),
}


def subject(data: Path, cache: Path, images: int) -> Subject:
    """The trained CNN and the first `images` test images it gets right."""
    files = {
        "path": f"{data}/t10k-images-idx3-ubyte.gz",
        "labels": f"{data}/t10k-labels-idx1-ubyte.gz",
        "train_path": f"{data}/train-images-idx3-ubyte.gz",
        "train_labels": f"{data}/train-labels-idx1-ubyte.gz",
    }
    assessed, train = load_dataset(Data(source="idx", **files, samples={"n": images + images // 10 + 10}), 0)
    module: nn.Module = cnn((1, 28, 28), 10)
    if cache.is_file():
        module.load_state_dict(torch.load(cache, weights_only=True))
    else:
        assert train is not None
        recipe = Recipe(architecture="cnn", epochs=2, batch_size=128)
        module = train_classifier(recipe, train, 0, torch.device("cpu"))
        torch.save(module.state_dict(), cache)
    module.requires_grad_(False).eval()
    model = Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), "benchmark")
    found = subject_of(model, assessed)
    return found.subset(found.clean_correct.nonzero().flatten()[:images])


def peer_run(it: Subject, match: Match, seed: int, clock: Callable[[], float]) -> dict[str, float]:
    """RobustCheck on the same images; `calls` is what its model was really asked."""
    from robustcheck import RobustnessCheck
    from robustcheck.EpsilonGreedyUntargeted.utils import get_grid_pixel_groups
    from robustcheck.types.AttackType import AttackType

    module, calls = it.classifier.module, 0

    class Wrapped:
        def predict(self, batch: np.ndarray, verbose: bool = False) -> np.ndarray:
            nonlocal calls
            calls += len(batch)
            scaled = np.ascontiguousarray(batch, dtype=np.float32) / np.float32(match.scale)
            with torch.no_grad():
                probabilities: Tensor = module(torch.from_numpy(scaled).permute(0, 3, 1, 2)).softmax(1)
            return probabilities.numpy()

    parameters = dict(match.peer)
    if match.peer_name == "EPSGREEDY":
        parameters["pixel_groups"] = get_grid_pixel_groups((PATCH, PATCH), (28, 28))
    x = it.dataset.inputs.permute(0, 2, 3, 1).numpy() * match.scale
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the peer draws from the old stream
    start = clock()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        check = RobustnessCheck(Wrapped(), x, it.dataset.targets.numpy(), AttackType[match.peer_name], parameters)
        found = check.run_robustness_check()
    seconds = clock() - start
    return {**{key: float(found[key]) for key in STATISTICS}, "calls": calls, "seconds": seconds}


def our_run(it: Subject, name: str, match: Match, seed: int, clock: Callable[[], float]) -> dict[str, float]:
    entry = QueryEntry(algorithm=name, params=match.ours, batch_size=BATCH)
    start = clock()
    result = assess("bench", entry, Budget(norm=Norm.LINF, epsilon=0.1), replace(it, seed=seed))
    seconds = clock() - start
    calls = result.data["queries"]
    assert isinstance(calls, Tensor)
    return {**{key: float(result.metrics[key]) for key in STATISTICS}, "calls": int(calls.sum()), "seconds": seconds}


def forward_seconds(it: Subject, queries: int, clock: Callable[[], float]) -> float:
    """Time of `queries` forward passes in full batches, with nothing around them."""
    batch = it.dataset.inputs[torch.arange(BATCH) % len(it.dataset)]
    rounds = -(-queries // BATCH)
    start = clock()
    with torch.no_grad():
        for _ in range(rounds):
            it.classifier.module(batch)
    return (clock() - start) * queries / (rounds * BATCH)


def spread(runs: Iterable[dict[str, float]], key: str) -> str:
    values = [run[key] for run in runs]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):9.2f} ± {deviation:6.2f}"


def peer_runs(it: Subject, name: str, match: Match, seeds: int, kept: Path) -> list[dict[str, float]]:
    """The peer's runs, kept in a file: they take minutes."""
    known = json.loads(kept.read_text()) if kept.is_file() else {}
    runs = []
    for seed in range(seeds):
        key = f"{name} {seed} {len(it.dataset)} {it.classifier.digest[:12]}"
        if key not in known:
            known[key] = peer_run(it, match, seed, time.process_time)
            kept.write_text(json.dumps(known, indent=1))
        runs.append(known[key])
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".cache/queries-benchmark.pt"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--throughput", type=int, default=1000)
    parser.add_argument("--algorithms", nargs="+", default=list(MATCHES), choices=list(MATCHES))
    parser.add_argument("--threads", type=int, default=1, help="torch threads, for both")
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu")
    parser.add_argument("--peer-only", action="store_true", help="run and keep the peer's part")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.cache.parent.mkdir(parents=True, exist_ok=True)
    few = subject(given.data, given.cache, given.images)
    many = few if given.peer_only else subject(given.data, given.cache, given.throughput)
    for name in given.algorithms:
        match = MATCHES[name]
        peer = peer_runs(few, name, match, given.seeds, given.cache.with_suffix(".json"))
        if given.peer_only:
            continue
        statistics_of_both(name, match, peer, few)
        speed_of_both(name, match, few, many, CLOCKS[given.clock])


def statistics_of_both(name: str, match: Match, peer: list[dict[str, float]], few: Subject) -> None:
    ours = [our_run(few, name, match, seed, time.process_time) for seed in range(len(peer))]
    print(f"{name}: {len(few.dataset)} images, {len(peer)} seeds each; mean ± deviation over seeds")
    for key in (*STATISTICS, "calls"):
        print(f"  {key:20s} RobustCheck {spread(peer, key)}   windtunnel {spread(ours, key)}")


def speed_of_both(name: str, match: Match, few: Subject, many: Subject, clock: Callable[[], float]) -> None:
    timed = few.subset(torch.arange(min(match.timed_images, len(few.dataset))))
    theirs, same, large, alone = [], [], [], []
    for seed in range(3):
        theirs.append(len(timed.dataset) / peer_run(timed, match, seed, clock)["seconds"])
        same.append(len(few.dataset) / our_run(few, name, match, seed, clock)["seconds"])
        run = our_run(many, name, match, seed, clock)
        large.append(len(many.dataset) / run["seconds"])
        alone.append(run["seconds"] / forward_seconds(many, int(run["calls"]), clock))
    peer, ours, best = (statistics.median(rates) for rates in (theirs, same, large))
    print(f"  images per second: RobustCheck {peer:.3f} (on {len(timed.dataset)}); windtunnel {ours:.1f} on {len(few.dataset)} images "
          f"({ours / peer:.0f} times), {best:.1f} on {len(many.dataset)} ({best / peer:.0f} times)")  # fmt: skip
    share = statistics.median(alone)
    print(
        f"  on {len(many.dataset)} images {share:.2f} times the forward passes alone, which would be {best * share / peer:.0f} times"
    )


if __name__ == "__main__":
    main()
