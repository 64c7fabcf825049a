"""How far verification overruns its `time_budget`, on networks that would take minutes. Wall time over the budget.

    python -m benchmarks.time_budget [--seconds 5 20]

The networks are untrained (what they cost does not depend on their weights) and the images are noise. Wanted: at most
1.10. Run it on a machine that does nothing else: what other processes take from this one counts as an overrun.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.verification_models import ResidualCNN, dense, untrained
from windtunnel.assessments.verification.assess import assess
from windtunnel.core.contracts import Norm
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

NETWORKS = {"6 x 256": lambda: dense(6), "residual CNN": lambda: ResidualCNN(32)}
ALGORITHMS = {"alpha-crown": "auto-LiRPA", "branch-and-bound": "windtunnel", "cascade": "windtunnel"}


def main() -> None:
    """Print a row for each network, algorithm and budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, nargs="+", default=[5.0, 20.0])
    budget = Budget(norm=Norm.LINF, epsilon=0.02)
    options = parser.parse_args()
    for name, make in NETWORKS.items():
        it = untrained(name, make, 64)
        assess("warm", VerificationEntry(library="auto-LiRPA", algorithm="ibp"), budget, it)  # imports, once a process
        for algorithm, library in ALGORITHMS.items():
            for seconds in options.seconds:
                entry = VerificationEntry(library=library, algorithm=algorithm, time_budget=seconds)
                started = time.monotonic()
                result = assess("bench", entry, budget, it)
                took = time.monotonic() - started
                cut = int(result.data["timed_out"].sum())
                ratio = f"{took / seconds:.2f}" if cut else "ended by itself: no ratio"
                print(
                    f"{name:>14}  {algorithm:<17} {seconds:4.0f} s: {took:6.2f} s, {cut} of {len(it.dataset)} cut off  {ratio}"
                )


if __name__ == "__main__":
    main()
