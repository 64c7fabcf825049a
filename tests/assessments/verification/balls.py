"""What the tests of verification share: entries, budgets, and models whose true radius is known."""

import torch
from torch import nn

from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

DUAL = {Norm.LINF: 1, Norm.L2: 2, Norm.L1: float("inf")}
_OURS = ("cascade", "smoothing", "branch-and-bound", "branch-and-bound-l2", "branch-and-bound-l1")
LIBRARY = {"linf-box": "Marabou", **dict.fromkeys(_OURS, "windtunnel")}


def entry(algorithm: str, **more: object) -> VerificationEntry:
    return VerificationEntry(library=LIBRARY.get(algorithm, "auto-LiRPA"), algorithm=algorithm, **more)


def budget(epsilon: float, norm: Norm = Norm.LINF) -> Budget:
    return Budget(norm=norm, epsilon=epsilon)


def first(subject: Subject, n: int) -> Subject:
    return subject.subset(torch.arange(n))


def subject_with(module: nn.Module, inputs: torch.Tensor, k: int, targets: torch.Tensor | None = None) -> Subject:
    """Any module on any inputs; its own predictions are the targets unless they are given."""
    module = module.eval().requires_grad_(False)
    classifier = Classifier(module, k, tuple(inputs.shape[1:]), frozenset(Capability), module_digest(module), "test")
    labels = classifier.predict(inputs) if targets is None else targets
    names = tuple(map(str, range(len(inputs))))
    return subject_of(classifier, Dataset(inputs, labels, names, tuple("abcdefghij"[:k])))


class Arctangent(nn.Module):
    """An activation that auto-LiRPA bounds and branch and bound does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.atan()


def analytic_radius(subject: Subject, norm: Norm) -> torch.Tensor:
    """Of a linear model: min over other classes of margin / ||w_target - w_other||_dual."""
    weight, bias = subject.classifier.module[1].weight.detach(), subject.classifier.module[1].bias.detach()
    x, y = subject.dataset.inputs.flatten(1), subject.dataset.targets
    logits = x @ weight.T + bias
    margin = logits.gather(1, y[:, None]) - logits
    size = torch.linalg.vector_norm(weight[y][:, None] - weight[None], ord=DUAL[norm], dim=2)
    return (margin / size).nan_to_num(torch.inf).scatter(1, y[:, None], torch.inf).amin(1)
