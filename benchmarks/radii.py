"""Certified radii by branch and bound beside those of CROWN, and with nothing shared between the epsilons of one search.

    python -m benchmarks.radii [--mnist FOLDER] [--samples N] [--seconds S] [--weights FOLDER] [network ...]

A line for each sample that is classified correctly: the radius that CROWN certifies, the one of branch and bound, the nearest
counter-example, and seconds of processor time, where bounds inside of larger balls serve in smaller ones and where they do not.
Wanted: never a radius below CROWN's nor beyond a counter-example.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.verification import SHARED, mnist
from benchmarks.verification_methods import classifier
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.branch_and_bound import session as search_session
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

# network: (largest epsilon, tolerance)
RADII = {
    "lenet5_standard": (0.1, 0.002), "lenet5_adversarial": (0.4, 0.005), "cnn_adversarial": (0.5, 0.005), "mlp4": (0.15, 0.002),
    "residual": (0.1, 0.002),
}  # fmt: skip
SMALL = 1e-4  # the epsilon of the verdicts, which are not what is measured


def radii(one: Subject, name: str, method: str, seconds: float | None) -> tuple[float, float, float]:
    """(certified radius, that of the nearest counter-example, seconds of processor time) of a single sample."""
    largest, tolerance = RADII[name]
    entry = VerificationEntry(
        library="windtunnel", algorithm="cascade", steps=("crown", "branch-and-bound"), timeout=seconds,
        radius={"max": largest, "tolerance": tolerance, "method": method},
    )  # fmt: skip
    started = time.process_time()
    data = assess("bench", entry, Budget(norm=Norm.LINF, epsilon=SMALL), one).data
    return float(data["certified_radius"]), float(data["broken_radius"]), time.process_time() - started


def without_sharing(one: Subject, name: str, seconds: float | None) -> tuple[float, float, float]:
    """As `radii` by branch and bound, where every epsilon starts from nothing."""
    decide = search_session.decide

    def from_nothing(*given: object) -> object:
        return decide(*given[:-1])

    search_session.decide = from_nothing
    try:
        return radii(one, name, "branch-and-bound", seconds)
    finally:
        search_session.decide = decide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(RADII), help="of verification_models.py")
    parser.add_argument("--mnist", type=Path, default=SHARED / "data" / "mnist")
    parser.add_argument("--samples", type=int, default=5, help="of each network")
    parser.add_argument("--seconds", type=float, default=None, help="for a search; without, the default limit of work")
    parser.add_argument("--weights", type=Path, help="where networks are trained into, and taken from")
    parser.add_argument("--references", type=Path, default=SHARED / "data" / "models")
    given = parser.parse_args()
    torch.set_num_threads(1)
    weights = given.weights or Path(tempfile.mkdtemp())
    assessed, train = mnist(given.mnist, given.samples)
    for name in given.networks:
        subject = subject_of(classifier(name, weights, given.references, train), assessed)
        gained, took = 0.0, [0.0, 0.0]
        right = subject.clean_correct.nonzero().flatten()
        for i in right:
            one = subject.subset(i[None])
            low, _, _ = radii(one, name, "crown", None)
            found, broken, seconds = radii(one, name, "branch-and-bound", given.seconds)
            alone, _, longer = without_sharing(one, name, given.seconds)
            assert low <= found < broken, (low, found, broken)
            gained += found / max(low, 1e-9) / len(right)
            took = [took[0] + seconds, took[1] + longer]
            print(
                f"{name} {one.dataset.ids[0]}: crown {low:.4f}, branch and bound {found:.4f} in {seconds:.0f} s, counter-example "
                f"{broken:.4f}; nothing shared: {alone:.4f} in {longer:.0f} s",
                flush=True,
            )
        print(
            f"{name}: {gained:.2f} times CROWN's radius; nothing shared takes {took[1] / took[0]:.2f} times as long",
            flush=True,
        )


if __name__ == "__main__":
    main()
