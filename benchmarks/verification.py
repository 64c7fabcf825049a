"""Verification beside the closest peer, and the cascade beside CROWN alone. Ratios of one run, on one machine.

    python -m benchmarks.verification --peer PYTHON --peer-script raitap_peer.py [--mnist FOLDER] [--epsilon E] [--quick]

1. `crown` on an MNIST CNN of 166,406 parameters and 200 samples, at an epsilon where the peer verifies 30 to 40 %. Wanted:
   at least 2.0 times the peer's verified rate, and 4 times its verified samples per second. PYTHON is the interpreter of
   an environment with raitap 0.14; the peer's script calls its assessor and prints a line of JSON.
2. The cascade on an MLP. Wanted: at least 30 % fewer unknown than CROWN alone at equal total time: the cascade's
   `time_budget` is what CROWN alone took. Then with more time, which CROWN alone has no use for.

3. With --methods [network or network:epsilon ...]: branch and bound in the place of alpha-CROWN and Marabou, with `--seconds` for
   a sample: see `verification_methods.py`. Wanted: at least 60 % fewer unknown, and none decided worse.

Without --peer only the second part runs, and only the third with --methods.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.verification_methods import INSTANCES, METHODS, Asked, methods_side_by_side
from windtunnel.assessments.verification.assess import assess
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.model import Recipe
from windtunnel.params.verification import VerificationEntry

CROWN = VerificationEntry(library="auto-LiRPA", algorithm="crown")
WANTED = (0.30, 0.40)
SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))


def mnist(folder: Path, n: int) -> tuple[Dataset, Dataset]:
    """(n test samples, 20,000 training samples)."""
    files = {"path": "t10k-images-idx3", "labels": "t10k-labels-idx1", "train_path": "train-images-idx3",
             "train_labels": "train-labels-idx1"}  # fmt: skip
    paths = {key: str(folder / f"{name}-ubyte.gz") for key, name in files.items()}
    assessed, train = load_dataset(Data(source="idx", samples={"n": n, "selection": "stratified"}, **paths), 0)
    assert train is not None
    return assessed, train.subset(torch.arange(20_000))


def trained(data: tuple[Dataset, Dataset], recipe: Recipe) -> Subject:
    assessed, train = data
    module: nn.Module = train_classifier(recipe, train, 0, torch.device("cpu")).requires_grad_(False).eval()
    shape = tuple(assessed.inputs.shape[1:])
    model = Classifier(module, 10, shape, frozenset(Capability), module_digest(module), "benchmark")
    return subject_of(model, assessed)


def ours(entry: VerificationEntry, it: Subject, epsilon: float) -> tuple[dict[str, object], float]:
    """(metrics, seconds) of `assess` alone."""
    start = time.perf_counter()
    result = assess("bench", entry, Budget(norm=Norm.LINF, epsilon=epsilon), it)
    return dict(result.metrics), time.perf_counter() - start


class Peer:
    """raitap's crown, in its own environment, on the same model and samples."""

    def __init__(self, python: str, script: str, it: Subject, folder: Path) -> None:
        self.command = [
            python,
            script,
            "crown",
            "--model",
            str(folder / "model.pt"),
            "--data",
            str(folder / "data.npz"),
        ]
        torch.save(it.classifier.module, folder / "model.pt")
        np.savez(folder / "data.npz", x=it.dataset.inputs.numpy(), y=it.dataset.targets.numpy())

    def __call__(self, epsilon: float) -> tuple[float, float]:
        """(verified rate, seconds of its assess)."""
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [*self.command, "--eps", str(epsilon)], capture_output=True, text=True, env=threads, check=True
        )
        line = json.loads(ran.stdout.strip().splitlines()[-1])
        return float(line["verified_rate"]), float(line["seconds"])


def epsilon_for(peer: Peer, low: float = 0.01, high: float = 0.06) -> float:
    """An epsilon where the peer verifies 30 to 40 %, by bisection."""
    for _ in range(8):
        middle = (low + high) / 2
        rate, _ = peer(middle)
        print(f"  looking for epsilon: {middle:.4f} the peer verifies {rate:.1%}", flush=True)
        if WANTED[0] <= rate <= WANTED[1]:
            return middle
        low, high = (middle, high) if rate > WANTED[1] else (low, middle)
    raise SystemExit("no epsilon where the peer verifies 30 to 40 %")


def against_the_peer(it: Subject, peer: Peer, epsilon: float | None, repeats: int) -> None:
    epsilon = epsilon or epsilon_for(peer)
    theirs, mine = [], []
    for _ in range(repeats):  # alternating, so that a busy moment of the machine falls on both
        theirs.append(peer(epsilon))
        mine.append(ours(CROWN, it, epsilon))
    n = len(it.dataset)
    rates = theirs[0][0], float(str(mine[0][0]["verified_rate"]))
    seconds = [statistics.median(t for _, t in runs) for runs in (theirs, mine)]
    speeds = [rate * n / t for rate, t in zip(rates, seconds, strict=True)]
    print(f"crown at {epsilon:.4f}, {n} samples, {repeats} alternating runs")
    for name, rate, t, speed in zip(("peer", "windtunnel"), rates, seconds, speeds, strict=True):
        print(f"  {name:11s} verified {rate:6.1%}  {1000 * t / n:6.1f} ms a sample  {speed:6.2f} verified a second")
    print(f"  ratio: verified rate {rates[1] / rates[0]:.2f}, verified a second {speeds[1] / speeds[0]:.2f}")


def undecided(metrics: dict[str, object]) -> float:
    """Share of samples without a verdict, a solver's failure among them."""
    return float(str(metrics["unknown_rate"])) + float(str(metrics["error_rate"]))


def cascade_against_crown(it: Subject, epsilon: float, repeats: int) -> None:
    generous = VerificationEntry(library="windtunnel", algorithm="cascade", time_budget=60)
    ours(CROWN, it, epsilon)  # imports and first calls are nobody's time
    alone, equal = [], []
    for _ in range(repeats):  # alternating; each cascade is given what CROWN alone has just taken
        alone.append(ours(CROWN, it, epsilon))
        equal.append(ours(generous.model_copy(update={"time_budget": alone[-1][1]}), it, epsilon))
    print(f"MLP at {epsilon}, {len(it.dataset)} samples, medians of {repeats} alternating runs")
    unknown = statistics.median(undecided(found) for found, _ in alone)
    for name, runs in (
        ("CROWN alone", alone),
        ("cascade, equal", equal),
        ("cascade, 60 s", [ours(generous, it, epsilon)]),
    ):
        left, took = (statistics.median(values) for values in ([undecided(f) for f, _ in runs], [t for _, t in runs]))
        print(
            f"  {name:15s} {took:7.3f} s  {left:6.1%} unknown, {1 - left / unknown:4.0%} fewer  {runs[-1][0]['decided_by']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the peer's environment")
    parser.add_argument("--peer-script", default=str(SHARED / "bench" / "raitap_peer.py"))
    parser.add_argument("--mnist", type=Path, default=SHARED / "data" / "mnist")
    parser.add_argument("--epsilon", type=float, help="instead of looking for it")
    parser.add_argument("--quick", action="store_true", help="fewer samples and repeats")
    parser.add_argument("--methods", nargs="*", help=f"networks of the third part: {', '.join(INSTANCES)}; none: all")
    parser.add_argument("--samples", type=int, default=100, help="of the third part")
    parser.add_argument("--undecided", type=int, default=10, help="of them, asked of each method, of the third part")
    parser.add_argument("--only", choices=list(METHODS), help="one method alone, of the third part")
    parser.add_argument("--kept", type=Path, help="JSON file of outcomes measured earlier, of the third part")
    parser.add_argument("--seconds", type=float, default=60, help="for one sample, of the third part")
    parser.add_argument("--weights", type=Path, default=Path(tempfile.gettempdir()) / "windtunnel-benchmark")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.methods is not None:
        names = options.methods or list(INSTANCES)
        references = SHARED / "data" / "models"
        data = mnist(options.mnist, options.samples)
        methods = [options.only] if options.only else list(METHODS)
        kept = options.kept or options.weights / "outcomes.json"
        asked = Asked(options.seconds, options.undecided, methods, kept)
        methods_side_by_side(data, references, options.weights, asked, names)
        return
    if options.peer:
        it = trained(mnist(options.mnist, 60 if options.quick else 200), Recipe(architecture="cnn", epochs=4))
        print(f"MNIST CNN, clean accuracy {float(it.clean_correct.double().mean()):.3f}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            peer = Peer(options.peer, options.peer_script, it, Path(folder))
            against_the_peer(it, peer, options.epsilon, 1 if options.quick else 3)
    assessed, train = load_dataset(Data(samples={"n": 60 if options.quick else 200, "selection": "stratified"}), 0)
    assert train is not None
    small = trained((assessed, train), Recipe(architecture="mlp", epochs=40))
    for epsilon in (0.03, 0.06):
        cascade_against_crown(small, epsilon, 3 if options.quick else 9)


if __name__ == "__main__":
    main()
