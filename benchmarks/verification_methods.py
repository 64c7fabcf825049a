"""The cascade with branch and bound beside the one before it, sample by sample, on the networks of `verification_models.py`.

The steps that both have in common are run first, on all samples at once; each method is asked about the first samples that they leave
undecided, with the same seconds of processor time for a sample. On a shared machine limits are stretched by how much slower than alone a
short loop has just run, and what is printed is processor time of this process; Marabou's own processes are not counted in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.verification_models import network
from windtunnel.assessments.verification.assess import assess
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

# network: (epsilon, ...)
INSTANCES = {
    "lenet5_standard": (0.02,), "lenet5_adversarial": (0.3,), "cnn_adversarial": (0.3,), "mlp4": (0.03, 0.05),
    "residual": (0.02,),
}  # fmt: skip
_COMMON = ("quick-attack", "ibp", "crown", "attack")
METHODS = {
    "before": ("alpha-crown", "marabou"),
    "branch and bound": ("branch-and-bound",),
}  # each step is given the whole limit
_WORD = {int(Verdict.VERIFIED): "verified", int(Verdict.FALSIFIED): "falsified"}


@dataclass(frozen=True, slots=True)
class Asked:
    """seconds: for a sample. undecided: of how many samples at most each method is asked. methods: which. kept: a JSON file of
    outcomes measured earlier, which are not measured again.
    """

    seconds: float
    undecided: int
    methods: Sequence[str]
    kept: Path


def methods_side_by_side(
    data: tuple[Dataset, Dataset], references: Path, weights: Path, asked: Asked, names: list[str]
) -> None:
    """names: networks, or `network:epsilon`. Prints a line for each sample and method, and the counts."""
    assessed, train = data
    asked.kept.parent.mkdir(parents=True, exist_ok=True)
    for name, _, epsilon in (text.partition(":") for text in names):
        subject = subject_of(classifier(name, weights, references, train), assessed)
        for value in (float(epsilon),) if epsilon else INSTANCES[name]:
            _compare(name, value, subject, asked)


def classifier(name: str, weights: Path, references: Path, train: Dataset) -> Classifier:
    """The network `name` of `verification_models.py`."""
    module = network(name, weights, references, train.inputs, train.targets)
    return Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), name)


def _compare(name: str, epsilon: float, subject: Subject, asked: Asked) -> None:
    left, words = _left(subject, epsilon, asked.undecided)
    print(
        f"{name} {epsilon}: {', '.join(_COMMON)} of the first {len(words)} samples: "
        f"{words.count('verified')} verified, {words.count('falsified')} falsified; {len(left)} left",
        flush=True,
    )
    found = json.loads(asked.kept.read_text()) if asked.kept.is_file() else {}
    for method in asked.methods:
        for i in left:
            key = f"{name} {epsilon} {asked.seconds:g} s {method} {subject.dataset.ids[i]}"
            if key not in found:
                started = time.process_time()
                word, domains = _asked(subject.subset(torch.tensor([i])), epsilon, METHODS[method], asked.seconds)
                found[key] = [word, time.process_time() - started, domains]
                asked.kept.write_text(json.dumps(found))
            word, took, domains = found[key]
            print(f"  {key} {word:9s} {took:6.1f} s {domains:6d} subdomains", flush=True)
    ids = [subject.dataset.ids[i] for i in left]
    _summary(
        f"{name} {epsilon}",
        {m: [found[f"{name} {epsilon} {asked.seconds:g} s {m} {i}"] for i in ids] for m in asked.methods},
    )


def _asked(one: Subject, epsilon: float, steps: Sequence[str], seconds: float) -> tuple[str, int]:
    """(the word, subdomains) of the first step that decides, each with the whole limit."""
    domains = 0
    for step in steps:
        data = _outcome(one, epsilon, (step,), seconds * _slowdown())
        domains += int(data["subdomains"][0])
        if (word := _word(data["verdicts"][0])) != "unknown":
            return word, domains
    return "unknown", domains


def _left(subject: Subject, epsilon: float, wanted: int) -> tuple[list[int], list[str]]:
    """(indices of the first samples, `wanted` at most, that the common steps leave, words of all that they were run on)."""
    words: list[str] = []
    left: list[int] = []
    for part in torch.arange(len(subject.dataset)).split(max(1, wanted)):
        found = [_word(v) for v in _outcome(subject.subset(part), epsilon, _COMMON, None)["verdicts"]]
        words += found
        left += [i for i, word in zip(part.tolist(), found, strict=True) if word == "unknown"]
        if len(left) >= wanted:
            break
    return left[:wanted], words


def _outcome(subject: Subject, epsilon: float, steps: Sequence[str], limit: float | None) -> dict[str, torch.Tensor]:
    entry = VerificationEntry(
        library="windtunnel", algorithm="cascade", steps=tuple(steps), params={"domains": 10**6},
        timeout=limit, time_budget=limit,  # bounds keep to the budget, the search and the solver to both
    )  # fmt: skip
    return dict(assess("bench", entry, Budget(norm=Norm.LINF, epsilon=epsilon), subject).data)


def _word(verdict: torch.Tensor) -> str:
    return _WORD.get(int(verdict), "unknown")


def _summary(name: str, outcomes: dict[str, list[tuple[str, float, int]]]) -> None:
    for method, found in outcomes.items():
        words = [word for word, _, _ in found]
        counts = ", ".join(f"{words.count(word)} {word}" for word in ("verified", "falsified", "unknown"))
        print(
            f"{name} {method:16s} {counts}; {sum(s for _, s, _ in found):.0f} s of processor time, "
            f"{sum(d for _, _, d in found)} subdomains",
            flush=True,
        )
    if len(outcomes) == 2:
        before, after = ([word for word, _, _ in found] for found in outcomes.values())
        worse = sum(b != "unknown" and a != b for b, a in zip(before, after, strict=True))
        fewer = 1 - after.count("unknown") / max(1, before.count("unknown"))
        print(f"{name}: {fewer:.0%} fewer unknown, {worse} decided worse", flush=True)


def _slowdown() -> float:
    """How much slower than alone this process runs now: wall time over processor time of half a second of work."""
    wall, own = time.perf_counter(), time.process_time()
    matrix = torch.rand(256, 256)
    while time.process_time() - own < 0.5:
        matrix = (matrix @ matrix).tanh()
    return max(1.0, (time.perf_counter() - wall) / (time.process_time() - own))
