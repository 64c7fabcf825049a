"""State of one attack entry: its setup, and the best result so far of each sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adapters import Passes
from windtunnel.assessments.attacks.calls import Invoke
from windtunnel.assessments.attacks.evaluate import Evaluation
from windtunnel.assessments.attacks.plan import PlannedAttack
from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.attacks.survivors import Prior
from windtunnel.assessments.attacks.targets import has_aim, reached_without_attack
from windtunnel.core import scratch
from windtunnel.core.batches import Incidents
from windtunnel.core.contracts import Algorithm, Norm, PerturbationBudget
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry

if TYPE_CHECKING:
    from windtunnel.assessments.attacks.adaptive.search import Outcome
    from windtunnel.assessments.attacks.transformations.search import SharedPatch

NOT_BROKEN, MISCLASSIFIED_CLEAN = -1, -2  # codes of `broken_by` beside the index of a run


@dataclass(frozen=True, slots=True)
class AttackSetup:
    """One resolved entry: its runs, the samples and the model that they search on."""

    name: str
    entry: AttackEntry
    algorithm: Algorithm
    runs: list[PlannedAttack]
    budget: PerturbationBudget
    subject: Subject
    model: nn.Module
    aims: Tensor | None
    before: Prior
    invoke: Invoke | None
    row: AttackRow
    outcome: list[Outcome] = field(default_factory=list)
    students: list[nn.Module] = field(default_factory=list)
    shared: SharedPatch | None = None
    passes_to_fit: Passes = field(default_factory=Passes)
    sharing: int = 1  # samples that the cost of the fit is divided among

    @property
    def clean_batch(self) -> Tensor:
        """One batch of clean inputs, (n, ...), on the model's device: the neighbours of a model that looks at its batch."""
        return self.subject.dataset.inputs[: self.entry.batch_size].to(self.subject.classifier.device)


class BestResults:
    """The best result so far of each of N samples; every run updates the samples it attacked.

    At first those that the entries of `before` broke or certified.
    """

    def __init__(self, subject: Subject, aims: Tensor | None, before: Prior, norm: Norm) -> None:
        n = len(subject.dataset)
        self.attacked = subject.clean_correct & ~before.broken & ~before.certified & has_aim(subject, aims)
        self.succeeded = before.broken | reached_without_attack(subject, aims)
        self.perturbed = scratch.copy_of(before.perturbed)
        self.logits = torch.where(before.broken[:, None], before.logits, subject.clean_logits)
        self.distances = before.distances[norm].clone()
        self.broken_by = torch.where(subject.clean_correct, NOT_BROKEN, MISCLASSIFIED_CLEAN)
        self.forwards, self.backwards = torch.zeros(n), torch.zeros(n)
        self.beyond, self.repaired, self.reached, self.tried = (torch.zeros(n, dtype=torch.bool) for _ in range(4))
        self.parameters = before.parameters.clone()
        self.incidents = Incidents()
        self.losses = torch.full((n,), -torch.inf)

    @property
    def passes(self) -> float:
        """Number of passes of all samples, forwards and backwards."""
        return float((self.forwards + self.backwards).sum())

    @property
    def living(self) -> Tensor:
        """Indices of the samples that are attacked and not broken yet."""
        return (self.attacked & ~self.succeeded).nonzero().flatten()

    def update(
        self,
        index: int,
        indices: Tensor,
        evaluation: Evaluation,
        forwards: Tensor,
        backwards: Tensor,
        losses: Tensor | None = None,
    ) -> None:
        """Store new results: the first try of a sample, a success, or a nearer example that meets the objective.

        losses: margin losses, float (n,); where they are given, the example with the largest stays.
        """
        closer = evaluation.reached & (~self.reached[indices] | (evaluation.distances < self.distances[indices]))
        better = ~self.tried[indices] | evaluation.succeeded | closer
        if losses is not None:
            better = (losses > self.losses[indices]) & (evaluation.succeeded | ~evaluation.reached)
            self.losses[indices] = torch.where(better, losses, self.losses[indices])
        chosen = indices[better]
        self.perturbed[chosen] = evaluation.perturbed[better]
        self.logits[chosen] = evaluation.logits[better]
        self.parameters[chosen] = evaluation.parameters[better].float()
        self.distances[chosen] = evaluation.distances[better]
        self.broken_by[indices[evaluation.succeeded]] = index
        self.succeeded[indices] |= evaluation.succeeded
        self.reached[indices] |= evaluation.reached
        self.beyond[indices] |= evaluation.beyond
        self.repaired[indices] |= evaluation.repaired
        self.tried[indices] = True
        self.forwards[indices] += forwards
        self.backwards[indices] += backwards
