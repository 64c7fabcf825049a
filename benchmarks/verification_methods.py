"""The cascade with branch and bound beside the one before it, sample by sample, on the networks of `verification_models.py`.

Both have the same seconds of processor time for a sample. On a shared machine limits are stretched by how much slower than alone
a short loop has just run, and what is printed is processor time of this process; Marabou's own processes are not counted in it.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from verification_models import network

from windtunnel.assessments.verification.assess import assess
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

# network: (epsilon, ...)
INSTANCES = {
    "lenet5_standard": (0.02,), "lenet5_adversarial": (0.3,), "cnn_adversarial": (0.3,), "mlp4": (0.02, 0.03, 0.05),
    "mlp6": (0.02, 0.03), "residual": (0.02,),
}  # fmt: skip
_BEFORE = ("quick-attack", "ibp", "crown", "attack", "alpha-crown", "marabou")
METHODS = {"before": _BEFORE, "branch and bound": (*_BEFORE[:-2], "branch-and-bound")}
_WORD = {int(Verdict.VERIFIED): "verified", int(Verdict.FALSIFIED): "falsified"}


def methods_side_by_side(
    data: tuple[Dataset, Dataset], references: Path, weights: Path, seconds: float, names: list[str]
) -> None:
    """names: networks, or `network:epsilon`. Prints a line for each sample and method, and the counts."""
    assessed, train = data
    for name, _, epsilon in (text.partition(":") for text in names):
        module = network(name, weights, references, train.inputs, train.targets)
        model = Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), name)
        subject = subject_of(model, assessed)
        for value in (float(epsilon),) if epsilon else INSTANCES[name]:
            _compare(name, value, subject, seconds)


def _compare(name: str, epsilon: float, subject: Subject, seconds: float) -> None:
    words: dict[str, list[str]] = {method: [] for method in METHODS}
    took, domains = dict.fromkeys(METHODS, 0.0), 0
    for i in subject.clean_correct.nonzero().flatten().tolist():
        for method, steps in METHODS.items():
            entry = VerificationEntry(
                library="windtunnel", algorithm="cascade", steps=steps, timeout=seconds * _slowdown(),
                params={"domains": 10**6},
            )  # fmt: skip
            started = time.process_time()
            result = assess("bench", entry, Budget(norm=Norm.LINF, epsilon=epsilon), subject.subset(torch.tensor([i])))
            spent = time.process_time() - started
            word = _WORD.get(int(result.data["verdicts"][0]), "unknown")
            searched = int(result.data["subdomains"][0])
            words[method].append(word)
            took[method], domains = took[method] + spent, domains + searched
            print(
                f"  {name} {epsilon} sample {i:3d} {method:16s} {word:9s} {spent:6.1f} s {searched:6d} subdomains",
                flush=True,
            )
        _summary(name, epsilon, words, took, domains)


def _summary(name: str, epsilon: float, words: dict[str, list[str]], took: dict[str, float], domains: int) -> None:
    for method, found in words.items():
        counts = ", ".join(f"{found.count(word)} {word}" for word in ("verified", "falsified", "unknown"))
        print(f"{name} {epsilon} {method:16s} {counts}; {took[method]:.0f} s of processor time", flush=True)
    before, after = words.values()
    worse = sum(b != "unknown" and a != b for b, a in zip(before, after, strict=True))
    fewer = 1 - after.count("unknown") / max(1, before.count("unknown"))
    print(f"{name} {epsilon}: {fewer:.0%} fewer unknown, {worse} decided worse, {domains} subdomains", flush=True)


def _slowdown() -> float:
    """How much slower than alone this process runs now: wall time over processor time of half a second of work."""
    wall, own = time.perf_counter(), time.process_time()
    matrix = torch.rand(256, 256)
    while time.process_time() - own < 0.5:
        matrix = (matrix @ matrix).tanh()
    return max(1.0, (time.perf_counter() - wall) / (time.process_time() - own))
