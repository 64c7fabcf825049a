"""`standard` beside AutoAttack: robust accuracy, passes of the model and processor time, in one run.

    python -m benchmarks.standard [--n 200] [--only WORD]

Three ways for each model, on the same samples, under Linf: AutoAttack as torchattacks' MultiAttack of its four members with
the iterations of AutoAttack's authors (torchattacks' own AutoAttack takes ten steps), called directly; `standard` with
`literal: true`, whose members are the same; and `standard`, whose APGD and Square leave a sample once it is broken or
once its margin falls too slowly to reach zero in time. A pass is a sample that goes forward through the
model, or a gradient that comes back. Wanted: at most half of AutoAttack's passes, and of 500 samples at most 0.5 points more left.

Digits (scikit-learn) and three small networks trained here: plainly, on PGD examples, on interval bounds. With ../shared
(WINDTUNNEL_SHARED) the two LeNet5 on MNIST as well; after `python examples/run.py cifar10-cnn` the adversarially trained
network of that example.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torchattacks
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear, one_hot

from benchmarks.attacks import SHARED, budget, of_module, of_project, subjects
from windtunnel.assessments.attacks.adapters import CountedModel
from windtunnel.assessments.attacks.assess import assess
from windtunnel.boundary.data.load import load_dataset
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.data import Data

EPOCHS, BATCH = 60, 100
CIFAR = Path(__file__).parents[1] / "examples" / "runs" / "cifar10-cnn" / "adversarial"


def network() -> nn.Sequential:
    """Return a small convolutional network for digits of 8x8 pixels."""
    layers = (nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(inputs: torch.Tensor, labels: torch.Tensor, epsilon: float, *, on_bounds: bool) -> nn.Sequential:
    """Return a network trained plainly (epsilon 0), on PGD examples, or on interval bounds (Gowal et al. 2018, arXiv 1810.12715)."""
    torch.manual_seed(0)
    model, steps, done = network(), EPOCHS * (len(inputs) // BATCH), 0
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            x, y, radius = inputs[rows], labels[rows], epsilon * min(1.0, 1.5 * done / steps)
            if on_bounds:
                share = min(0.5, done / steps)
                loss = (1 - share) * cross_entropy(model(x), y) + share * cross_entropy(
                    worst_logits(model, x, y, radius), y
                )
            else:
                loss = cross_entropy(model(adversarial(model, x, y, radius)), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            done += 1
    return model.eval()


def adversarial(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return PGD examples of seven steps from a random start."""
    change = torch.empty_like(x).uniform_(-epsilon, epsilon)
    for _ in range(7 if epsilon else 0):
        change.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model((x + change).clamp(0, 1)), y), change)
        change = (change.detach() + epsilon / 3 * gradient.sign()).clamp(-epsilon, epsilon)
    return (x + change.detach()).clamp(0, 1)


def worst_logits(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return the lowest logit of each label and the highest of all other classes, by interval bounds, (n, K)."""
    low, high = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            centre, radius, size = layer((low + high) / 2), (high - low) / 2, layer.weight.abs()
            radius = (
                conv2d(radius, size, None, layer.stride, layer.padding)
                if isinstance(layer, nn.Conv2d)
                else linear(radius, size)
            )
            low, high = centre - radius, centre + radius
        else:
            low, high = layer(low), layer(high)
    return torch.where(one_hot(y, high.shape[1]).bool(), low, high)


def models(n: int) -> Iterator[tuple[str, Subject, float]]:
    """Yield name, model with `n` samples, and epsilon."""
    if (SHARED / "data").is_dir():
        for name, subject, epsilons in subjects(n):
            yield name, subject, epsilons[-1]
    if (CIFAR / "params.yaml").is_file():
        yield "CNN on CIFAR-10, adversarially trained", of_project(CIFAR, n), 4 / 255
    assessed, train = load_dataset(Data(samples={"n": n, "selection": "stratified"}), 0)
    assert train is not None
    for name, trained_at, on_bounds, epsilon in (
        ("CNN on digits", 0.0, False, 0.1),
        ("CNN on digits, PGD examples", 0.15, False, 0.15),
        ("CNN on digits, interval bounds", 0.15, True, 0.15),
    ):
        yield name, of_module(trained(train.inputs, train.targets, trained_at, on_bounds=on_bounds), assessed), epsilon


def directly(subject: Subject, epsilon: float) -> tuple[torch.Tensor, float]:
    """Return which samples AutoAttack leaves, bool (n,), and its passes a sample."""
    counted = CountedModel(subject.classifier.module)
    kept = torch.zeros(len(subject.dataset), dtype=torch.bool)
    right = subject.clean_correct.nonzero().flatten()
    inputs, labels = subject.dataset.inputs[right], subject.dataset.targets[right]
    common = {"norm": "Linf", "eps": epsilon, "seed": 0}
    members = (
        torchattacks.APGD(counted, steps=100, loss="ce", **common),
        torchattacks.APGDT(counted, steps=100, n_classes=10, **common),
        torchattacks.FAB(counted, steps=100, multi_targeted=True, n_classes=10, **common),
        torchattacks.Square(counted, n_queries=5000, **common),
    )
    found = torchattacks.MultiAttack(members)(inputs, labels)
    kept[right] = subject.classifier.predict(found) == labels
    return kept, (counted.passes.forwards + counted.passes.backwards) / len(right)


def ours(subject: Subject, epsilon: float, *, literal: bool) -> tuple[torch.Tensor, float]:
    """Return which samples `standard` leaves, bool (n,), and its passes a sample."""
    entry = AttackEntry(library="windtunnel", algorithm="standard", params={"literal": literal}, batch_size=500)
    data = assess("standard", entry, budget(epsilon), subject).data
    passes = float((data["forward_passes"] + data["backward_passes"]).sum())  # type: ignore[operator]
    attacked = data["attacked"]
    assert isinstance(attacked, torch.Tensor)
    return subject.clean_correct & (data["broken_by"] == -1), passes / int(attacked.sum())


def main() -> None:
    """Print a row for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="samples a model (default: 200)")
    parser.add_argument("--only", default="", help="models whose name has this word")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | way | accuracy left, % | left by it, not by AutoAttack | passes a sample | of AutoAttack's | processor s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, subject, epsilon in models(arguments.n):
        if arguments.only not in name:
            continue
        reference: tuple[torch.Tensor, float] | None = None
        for way, attack in (
            ("AutoAttack", lambda s=subject, e=epsilon: directly(s, e)),
            ("standard, literal", lambda s=subject, e=epsilon: ours(s, e, literal=True)),
            ("standard", lambda s=subject, e=epsilon: ours(s, e, literal=False)),
        ):
            start = time.process_time()
            kept, passes = attack()
            seconds, reference = time.process_time() - start, reference or (kept, passes)
            more, ratio = int((kept & ~reference[0]).sum()), passes / reference[1]
            share = 100 * float(kept.float().mean())
            print(
                f"| {name}, {epsilon:g} | {way} | {share:.1f} | {more} | {passes:.0f} | {ratio:.2f} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
