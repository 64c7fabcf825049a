"""Measure the adaptive attack on the models of the gallery, beside `standard` and an attack written by hand for each of them.

    python -m benchmarks.adaptive [--n 30] [--only WORD] [--honest] [--alone]
        [--unseen | --published | --defences | --tricks | --hooks | --disguises]

Each row is a model (of gallery/unseen.py, published.py, defences.py, tricks.py, hooks_and_votes.py, disguises.py): the percent that
standard, adaptive (--alone: without standard) and the attack by hand leave, the mean over 15 fresh copies with draws of their own;
the share of the passes that adapting took; seconds; obstacles; the best configuration.
The attack by hand follows the gradient of the network behind the defence (BPDA, EOT or noise): 60 steps, 3 restarts, 2 losses.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.gallery.case import EPSILON, subject_with
from benchmarks.gallery.defences import defences, defences_honest
from benchmarks.gallery.disguises import disguises, disguises_honest
from benchmarks.gallery.honest import digits, models, trained
from benchmarks.gallery.hooks_and_votes import hooks_and_votes, hooks_and_votes_honest
from benchmarks.gallery.liars import SIMPLE, composed
from benchmarks.gallery.published import published, published_honest
from benchmarks.gallery.tricks import tricks, tricks_honest
from benchmarks.gallery.truth import gradient_of
from benchmarks.gallery.unseen import unseen, unseen_honest
from windtunnel.assessments.attacks.assess import assess
from windtunnel.core.contracts import Norm
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.distances import within
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

DRAWS, GRADIENT_DRAWS, STEPS, RESTARTS = 15, 20, 60, 3
NOISE = 0.5  # of epsilon: radius over which a gradient is averaged
COLLECTIONS = {
    "unseen": (unseen, unseen_honest),
    "published": (published, published_honest),
    "defences": (defences, defences_honest),
    "tricks": (tricks, tricks_honest),
    "hooks": (hooks_and_votes, hooks_and_votes_honest),
    "disguises": (disguises, disguises_honest),
}
BUDGET = Budget(norm=Norm.LINF, epsilon=EPSILON)


class Averaging(nn.Module):
    """Mean logits over draws of a network and of noise on its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        noisy = (x + NOISE * EPSILON * (2 * torch.rand_like(x) - 1) for _ in range(GRADIENT_DRAWS))
        return torch.stack([copy.deepcopy(self.inner)(point) for point in noisy]).mean(0)


def by_hand(subject: Subject, stand_in: nn.Module) -> Tensor:
    """Return the inputs (n, ...) at which the model's mean margin over fresh draws was worst, from the gradients of `stand_in`."""
    x, y, module = subject.dataset.inputs, subject.dataset.targets, subject.classifier.module
    worst, score = x.clone(), _loss(module, x, y)
    generator = torch.Generator().manual_seed(0)
    for use_margin in (False, True):
        for _ in range(RESTARTS):
            moved = x + EPSILON * (2 * torch.rand(x.shape, generator=generator) - 1)
            for step in range(STEPS):
                size = EPSILON * (0.3 if step < STEPS // 2 else 0.05)
                moved = moved + size * gradient_of(stand_in, moved.clamp(0, 1), y, use_margin).sign()
                moved = (x + (moved - x).clamp(-EPSILON, EPSILON)).clamp(0, 1)
                loss = _loss(module, moved, y)
                better = loss > score
                worst[better], score[better] = moved[better], loss[better]
    return worst


def _loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return SOFTMAX.margin_loss(torch.stack([copy.deepcopy(module)(x) for _ in range(5)]).mean(0), y)


def accuracy(subject: Subject, x: Tensor) -> float:
    """Return the mean accuracy of fresh copies of the model at x (n, ...), in percent."""
    shares = []
    for seed in range(DRAWS):
        torch.manual_seed(seed + 1000)
        with torch.no_grad():
            predictions = copy.deepcopy(subject.classifier.module)(x).argmax(1)
        shares.append(float(((predictions == subject.dataset.targets) & subject.clean_correct).double().mean()))
    return 100 * sum(shares) / DRAWS


def cases(n: int, *, is_honest: bool, collection: str) -> Iterator[tuple[str, nn.Module, Subject]]:
    """Yield the models of a collection: name, the network whose gradients the attack by hand follows, the subject."""
    if collection:
        data = digits(n)
        for name, module, stand_in in COLLECTIONS[collection][is_honest](data):
            follow = module if is_honest else Averaging(module)
            yield name, follow if stand_in is None else Averaging(stand_in), subject_with(module, data[0])
        return
    if is_honest:
        for name, (module, data) in models(n).items():
            yield name, module, subject_with(module, data[0])
        return
    data = digits(n)
    cnn, mlp = trained(data), trained(data, "mlp", 15)
    for name, make in SIMPLE.items():
        module = make(cnn)
        yield name, cnn, subject_with(module, data[0])
    for case in composed(data, cnn, mlp):
        module = case.subject.classifier.module
        yield case.name, case.stand_in or Averaging(module), case.subject


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--honest", action="store_true")
    for collection in COLLECTIONS:
        parser.add_argument(f"--{collection}", dest="collection", action="store_const", const=collection, default="")
    parser.add_argument("--alone", action="store_true", help="leave the attacks of standard out")
    options = parser.parse_args()
    print(
        "| model | standard | adaptive | by hand | passes after standard | seconds | obstacles | best configuration |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, stand_in, subject in cases(options.n, is_honest=options.honest, collection=options.collection):
        if options.only not in name:
            continue
        fresh = subject_with(copy.deepcopy(subject.classifier.module), subject.dataset)
        started = time.perf_counter()
        entry = AttackEntry(library="windtunnel", algorithm="adaptive", params={"standard": not options.alone})
        result = assess("it", entry, BUDGET, fresh)
        seconds = time.perf_counter() - started
        record, near = result.kwargs["adaptive"], within(result.data["perturbation_distance"], EPSILON)
        examples = torch.where(near[:, None, None, None], result.data["perturbed_inputs"], subject.dataset.inputs)
        accuracies = [
            100 * record["accuracy_before"],
            accuracy(subject, examples),
            accuracy(subject, by_hand(subject, stand_in)),
        ]
        kinds = ", ".join(dict.fromkeys(obstacle["kind"] for obstacle in record["obstacles"]))
        percent = " | ".join(f"{share:.1f}" for share in accuracies)
        print(
            f"| {name} | {percent} | {record['share_of_passes']:.0%} | {seconds:.1f} | {kinds} | {record['winner']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
