"""A GPU against this processor: an attack, bounds and branch and bound, with equal verdicts; one line where there is no GPU.

    python -m benchmarks.gpu [--n 200] [--threads 1]

MNIST and a LeNet5 where ../shared (WINDTUNNEL_SHARED) is; else digits and a CNN. Each work is done on one sample untimed, so that
libraries and kernels are loaded, then timed on both. Sums on a GPU have other last bits, so verdicts are compared, not bytes: a
certificate on one device beside a counterexample on the other is an error, and ends the command with 1. Verdicts that differ
otherwise are counted.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.attacks import subjects
from windtunnel.assessments.attacks.assess import assess as assess_attack
from windtunnel.assessments.verification.assess import assess as assess_verification
from windtunnel.core.contracts import Verdict
from windtunnel.core.seeds import make_deterministic
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.result import AssessmentResult, tensor_in

PGD = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 40, "step_size": 0.01}}
CROWN = {"library": "auto-LiRPA", "algorithm": "crown", "budget": {"epsilon": 0.02}}
SEARCH = {
    "library": "windtunnel",
    "algorithm": "branch-and-bound",
    "params": {"domains": 2000},
    "budget": {"epsilon": 0.03},
}
_WON, _LOST = {Verdict.VERIFIED}, {Verdict.ATTACK_SUCCEEDED, Verdict.FALSIFIED}


def works(epsilon: float) -> dict[str, tuple[float, Callable[[Subject], AssessmentResult]]]:
    """Share of the samples, and the work, by title."""
    budget = Budget(norm="Linf", epsilon=epsilon)
    pgd = AttackEntry.model_validate(PGD)
    crown, search = (VerificationEntry.model_validate(entry) for entry in (CROWN, SEARCH))
    return {
        "PGD, 40 steps": (1.0, lambda some: assess_attack("pgd", pgd, budget, some)),
        "CROWN": (0.25, lambda some: assess_verification("crown", crown, budget, some)),
        "branch and bound": (0.1, lambda some: assess_verification("search", search, budget, some)),
    }


def on_device(subject: Subject, device: torch.device) -> Subject:
    """Return the model on `device`, beside the same samples."""
    classifier = replace(subject.classifier, module=copy.deepcopy(subject.classifier.module).to(device), device=device)
    return subject_of(classifier, subject.dataset, subject.seed)


def timed(work: Callable[[Subject], AssessmentResult], subject: Subject) -> tuple[float, AssessmentResult]:
    """Seconds of the clock, and the result."""
    started = time.perf_counter()
    result = work(subject)
    torch.accelerator.synchronize()
    return time.perf_counter() - started, result


def contradictions(one: AssessmentResult, other: AssessmentResult) -> tuple[int, int]:
    """Return the samples certified on one device and broken on the other, and those whose verdicts differ at all."""
    pairs = list(zip(tensor_in(one.data, "verdicts").tolist(), tensor_in(other.data, "verdicts").tolist(), strict=True))
    opposite = sum((a in _WON and b in _LOST) or (a in _LOST and b in _WON) for a, b in pairs)
    return opposite, sum(a != b for a, b in pairs)


def main() -> int:
    """Parse, run, print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--n", type=int, default=200, help="samples of the attack; CROWN has a quarter, branch and bound a tenth"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch on the processor")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: torch finds no CUDA GPU on this machine; nothing was measured", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    gpu, errors = torch.device("cuda"), 0
    make_deterministic(gpu)
    name, subject, epsilons = subjects(options.n)[0]
    print(
        f"{name}; {torch.cuda.get_device_name(gpu)} against {options.threads} thread(s) of this processor; torch {torch.__version__}\n"
    )
    print("| work | samples | processor | GPU | times as fast | verdicts that differ | contradictions |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for title, (share, work) in works(epsilons[-1]).items():
        some = subject.subset(torch.arange(max(1, round(len(subject.dataset) * share))))
        alone, there = on_device(some, torch.device("cpu")), on_device(some, gpu)
        for warmed in (alone, there):
            work(warmed.subset(torch.arange(1)))
        here, result = timed(work, alone)
        seconds, other = timed(work, there)
        opposite, different = contradictions(result, other)
        errors += opposite
        cells = (
            title,
            len(some.dataset),
            f"{here:.1f} s",
            f"{seconds:.1f} s",
            f"{here / seconds:.1f}",
            different,
            opposite,
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
