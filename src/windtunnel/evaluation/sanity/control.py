"""The positive control: models whose answer is known, made here, attacked by the probe and by the library."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from windtunnel.core.classifier import CPU, Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.subject import Subject, subject_of
from windtunnel.inputs.data.load import load_dataset
from windtunnel.inputs.models.training import train_classifier
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.model import Recipe

LIBRARY = "torchattacks"
EPSILON = 0.3
LINEAR_EPSILON = 0.05


def attack_controls(n: int) -> tuple[float, float, float]:
    """(robust accuracy of an undefended network at 0.3, exact and measured robust accuracy of a linear one at 0.05)."""
    # A network this small is slower on more threads, and many times so on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _attack_controls(n)
    finally:
        torch.set_num_threads(threads)


def _attack_controls(n: int) -> tuple[float, float, float]:
    assessed, train = load_dataset(Data(samples={"n": n, "selection": "stratified"}), 0)
    assert train is not None
    network = train_classifier(Recipe(architecture="mlp", epochs=10), train, 0, CPU)
    undefended = _attacked(subject_of(_classifier(network), assessed), EPSILON)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(linear.parameters(), lr=0.02)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.zero_()  # no random start: the control is the same whatever the seed
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(linear(train.inputs), train.targets).backward()
        optimiser.step()
    subject = subject_of(_classifier(linear), assessed)
    exact = linear_robust(linear[1], subject, LINEAR_EPSILON)
    return undefended, float(exact.double().mean()), _attacked(subject, LINEAR_EPSILON)


def linear_robust(layer: nn.Module, subject: Subject, epsilon: float) -> Tensor:
    """Whether each sample keeps its class in its whole Linf ball inside [0, 1] under a linear classifier; (N,) bool."""
    assert isinstance(layer, nn.Linear)
    x, y = subject.dataset.inputs.flatten(1).double(), subject.dataset.targets
    weights, bias = layer.weight.double(), layer.bias.double()
    low, high = (x - epsilon).clamp(min=0), (x + epsilon).clamp(max=1)
    towards = weights[None] - weights[y][:, None]  # (N, K, d): other less own
    worst = torch.where(towards > 0, high[:, None], low[:, None]).mul(towards).sum(2) + bias[None] - bias[y][:, None]
    worst.scatter_(1, y[:, None], -torch.inf)
    robust: Tensor = worst.amax(1) < 0
    return robust


def _classifier(module: nn.Module) -> Classifier:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return Classifier(module.eval(), 10, (1, 8, 8), frozenset(Capability), module_digest(module), "positive control")


def _attacked(subject: Subject, epsilon: float) -> float:
    from windtunnel.assessments.attacks.assess import assess

    entry = AttackEntry(
        library=LIBRARY, algorithm="PGD", budget=BudgetOverride(steps=40, step_size=epsilon / 10), restarts=2
    )
    value = assess("sanity.control", entry, Budget(norm=Norm.LINF, epsilon=epsilon), subject).metrics[
        "adversarial_accuracy"
    ]
    return float(str(value))
