"""Attacks: what the accounting costs, and what attacking only survivors saves. Ratios of one run, on one machine.

    python benchmarks/attacks.py [--quick]

1. Per attack: wall time of `assess` over that of the library called directly on the same correctly classified samples in
   one batch, medians of alternating repeats. Wanted: at most 1.05 at equal work.
2. Ten attacks: the ten run one after another on every sample, against the ten each on what the others left (`survivors`).
   Wanted: at least 2.5 times faster at the same worst case.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.attacks.assess import assess
from windtunnel.attacks.profiles import Member
from windtunnel.core.artifacts import Artifacts, write_artifacts
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.subject import Subject, subject_of
from windtunnel.data.load import load_dataset
from windtunnel.models.training import train_classifier
from windtunnel.params.attacks import AttackEntry, On
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.model import Recipe

EPSILON = 0.1
STRONG = 0.2  # most samples fall early, as they do on an undefended model at the usual epsilons
BUDGET = Budget(norm=Norm.LINF, epsilon=EPSILON)
TEN = (
    Member("torchattacks", "FGSM"),
    Member("torchattacks", "BIM", {"steps": 20}),
    Member("torchattacks", "PGD", {"steps": 40}),
    Member("torchattacks", "MIFGSM", {"steps": 20}),
    Member("foolbox", "LinfPGD"),
    Member("torchattacks", "APGD", {"steps": 50, "seed": 0}),
    Member("torchattacks", "VNIFGSM", {"steps": 10}),
    Member("foolbox", "LinfDeepFoolAttack"),
    Member("torchattacks", "APGDT", {"steps": 20, "seed": 0}),
    Member("torchattacks", "Square", {"n_queries": 1000, "seed": 0}),
)


def subject(n: int, epochs: int) -> Subject:
    """A small CNN trained on digits, and `n` samples."""
    assessed, train = load_dataset(Data(samples={"n": n, "selection": "stratified"}), 0)
    assert train is not None
    module: nn.Module = train_classifier(Recipe(architecture="cnn", epochs=epochs), train, 0, torch.device("cpu"))
    module.requires_grad_(False).eval()
    model = Classifier(module, 10, (1, 8, 8), frozenset(Capability), module_digest(module), "benchmark")
    return subject_of(model, assessed)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def entry(member: Member, n: int, epsilon: float = EPSILON) -> AttackEntry:
    return AttackEntry(
        library=member.library, algorithm=member.algorithm, params=dict(member.params), batch_size=n,
        budget={"norm": "Linf", "epsilon": epsilon},
    )  # fmt: skip


def direct(member: Member, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The library's own call, as its manual shows it, and the prediction that says whether it worked."""
    if member.library == "torchattacks":
        import torchattacks

        arguments = {} if member.algorithm == "DeepFool" else {"eps": EPSILON}
        found = getattr(torchattacks, member.algorithm)(model, **arguments, **member.params)(inputs, labels)
    else:
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        attack = getattr(foolbox.attacks, member.algorithm)(**member.params)
        epsilon = None if "DeepFool" in member.algorithm else EPSILON
        found = attack(wrapped, inputs, labels, epsilons=epsilon)[1]
    with torch.no_grad():
        predictions: Tensor = model(found).argmax(1)
    return predictions


def overhead(it: Subject, repeats: int) -> None:
    right = it.subset(it.clean_correct.nonzero().flatten())
    inputs, labels = right.dataset.inputs, right.dataset.targets
    print("overhead: windtunnel / library, medians")
    for member in TEN:
        ours, theirs = [], []
        for _ in range(repeats):
            theirs.append(seconds(lambda m=member: direct(m, right.classifier.module, inputs, labels)))
            ours.append(seconds(lambda m=member: assess("bench", entry(m, len(inputs)), BUDGET, right)))
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"  {member.algorithm:20s} {statistics.median(theirs):8.3f} s {ratio:6.2f}")


def survivors(it: Subject, folder: Path, epsilon: float) -> None:
    """`on: survivors_of` all the ones before, against every attack on every sample."""
    broken_alone = torch.zeros(len(it.dataset), dtype=torch.bool)
    total = 0.0
    for member in TEN:
        start = time.perf_counter()
        result = assess(member.algorithm, entry(member, 128, epsilon), BUDGET, it)
        total += time.perf_counter() - start
        verdicts = result.data["verdicts"]
        assert isinstance(verdicts, Tensor)
        broken_alone |= verdicts == Verdict.ATTACK_SUCCEEDED
    done: dict[str, Artifacts] = {}
    chained = 0.0
    for member in TEN:
        given = entry(member, 128, epsilon)
        if done:
            given = given.model_copy(update={"on": On(survivors_of=list(done))})
        start = time.perf_counter()
        result = assess(member.algorithm, given, BUDGET, it, done)
        chained += time.perf_counter() - start
        done[member.algorithm] = write_artifacts(result, folder / member.algorithm, it, started=0.0)
    chain_accuracy = float(result.metrics["adversarial_accuracy"])
    alone_accuracy = 1 - float(broken_alone.double().mean())
    print(
        f"ten attacks at {epsilon}, {len(it.dataset)} samples: worst case {alone_accuracy:.3f}, on survivors {chain_accuracy:.3f}"
    )
    print(f"  on all samples {total:.2f} s, on survivors {chained:.2f} s: {total / chained:.2f} times faster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples and repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    it = subject(100 if quick else 400, 8)
    print(f"clean accuracy {float(it.clean_correct.double().mean()):.3f}")
    overhead(it, 3 if quick else 7)
    for epsilon in (EPSILON, STRONG):
        with tempfile.TemporaryDirectory() as folder:
            survivors(it, Path(folder), epsilon)


if __name__ == "__main__":
    main()
