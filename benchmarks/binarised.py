"""Measure the adaptive attack on the binarised traffic-sign network, beside Square, HopSkipJump and an attack by hand.

    python examples/run.py gtsrb-binarised    (makes examples/runs/gtsrb-binarised, with the network and the pictures)
    python -m benchmarks.binarised [--n 20] [--epsilon 1/255] [--queries 2000] [--passes 4000]

Each row is an attack on the same pictures: how many of those that the network gets right it breaks, of how many that any of them
breaks, its forward and backward passes, and processor time.
The attack by hand follows gradients that pass straight through each sign: momentum, 3 restarts for each of two losses (the margin,
cross-entropy), 100 steps, of which any iterate may break the picture.
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.attacks import of_project
from windtunnel.assessments.attacks.assess import assess
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

FOLDER = Path(__file__).parents[1] / "examples" / "runs" / "gtsrb-binarised" / "robustness"
STEPS, RESTARTS, MOMENTUM = 100, 3, 0.75


def by_hand(subject: Subject, epsilon: float) -> tuple[Tensor, int]:
    """Return which samples (n,) an iterate of six runs broke, and the gradients of single samples that they took."""
    x, y, model = subject.dataset.inputs, subject.dataset.targets, subject.classifier.module
    criterion, generator = subject.classifier.criterion, torch.Generator().manual_seed(0)
    broken, gradients = torch.zeros(len(x), dtype=torch.bool), 0
    for use_margin in (True, False):
        for _ in range(RESTARTS):
            todo = (subject.clean_correct & ~broken).nonzero().flatten()
            if not len(todo):
                return broken, gradients
            clean, labels = x[todo], y[todo]
            moved = (clean + epsilon * (2 * torch.rand(clean.shape, generator=generator) - 1)).clamp(0, 1)
            velocity = torch.zeros_like(moved)
            for step in range(STEPS):
                moved.requires_grad_(True)
                logits = model(moved)
                margin = criterion.margin_loss(logits, labels)
                broken[todo[margin.detach() > 0]] = True
                loss = margin if use_margin else criterion.loss(logits, labels)
                gradient = torch.autograd.grad(loss.sum(), moved)[0]
                gradients += len(labels)
                velocity = MOMENTUM * velocity + gradient / gradient.abs().mean((1, 2, 3), keepdim=True).clamp(
                    min=1e-12
                )
                size = epsilon * (0.5 if step < STEPS // 2 else 0.1)
                moved = clean + (moved.detach() + size * velocity.sign() - clean).clamp(-epsilon, epsilon)
                moved = moved.clamp(0, 1)
    return broken, gradients


def main() -> None:
    """Print a row per attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--epsilon", type=lambda text: float(Fraction(text)), default=1 / 255)
    parser.add_argument(
        "--queries", type=int, default=2000, help="of Square for each picture; HopSkipJump takes a step for each 130"
    )
    parser.add_argument("--passes", type=int, default=4000, help="of the adaptive attack for each picture")
    options = parser.parse_args()
    subject = of_project(FOLDER, options.n)
    data = subject.dataset
    budget = Budget(norm=Norm.LINF, epsilon=options.epsilon)
    entries = {
        "adaptive": AttackEntry(library="windtunnel", algorithm="adaptive", params={"passes": options.passes}),
        "Square": AttackEntry(library="torchattacks", algorithm="Square", params={"n_queries": options.queries}),
        "HopSkipJump": AttackEntry(
            library="foolbox", algorithm="HopSkipJumpAttack", params={"steps": max(1, options.queries // 130)}
        ),
    }
    rows: dict[str, tuple[Tensor, float, float]] = {}
    for name, entry in entries.items():
        started = time.process_time()
        result = assess("it", entry, budget, subject)
        broken = result.data["verdicts"] == int(Verdict.ATTACK_SUCCEEDED)
        passes = float(result.data["forward_passes"].sum() + result.data["backward_passes"].sum())
        rows[name] = broken & subject.clean_correct, passes, time.process_time() - started
        if name == "adaptive":
            record = result.kwargs["adaptive"]
            print({key: record[key] for key in ("accuracy_before", "share_of_passes", "winner")})
            print(*[f"{obstacle['kind']}: {obstacle.get('where', '')}" for obstacle in record["obstacles"]], sep="\n")
    started = time.process_time()
    broken, gradients = by_hand(subject, options.epsilon)
    rows["by hand"] = broken & subject.clean_correct, 2.0 * gradients, time.process_time() - started
    everything = torch.stack([row[0] for row in rows.values()]).any(0)
    right = int(subject.clean_correct.sum())
    print(
        f"\n{right} of {len(data)} right, epsilon {options.epsilon * 255:g}/255, {int(everything.sum())} broken by any\n"
    )
    print("| attack | broken | of those that any breaks | passes a picture | processor time |")
    print("| --- | --- | --- | --- | --- |")
    for name, (broken, passes, seconds) in rows.items():
        share = float(broken.sum()) / max(1, int(everything.sum()))
        print(f"| {name} | {int(broken.sum())} | {share:.0%} | {passes / max(1, right):,.0f} | {seconds:.0f} s |")


if __name__ == "__main__":
    main()
