"""The steps that only break: projected gradient descent from several starts, briefly or long, also towards each class."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from windtunnel.assessments.verification import falsifier
from windtunnel.assessments.verification.cascade.step import Step
from windtunnel.assessments.verification.cascade.steps import ATTACK_BATCH
from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Norm
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.runtime.batch_runner import each_batch


class _Round(NamedTuple):
    """search: gives (found, examples). steps: of a search. restarts: from how many starts."""

    search: Callable[..., tuple[Tensor, Tensor]]
    steps: int
    restarts: int


# The searches of each step, one after the other on what is left.
_ROUNDS = {
    "quick-attack": (_Round(falsifier.falsify, falsifier.QUICK_STEPS, falsifier.QUICK_RESTARTS),),
    "attack": (
        _Round(falsifier.falsify, falsifier.STEPS, falsifier.RESTARTS),
        _Round(falsifier.falsify_targeted, falsifier.TARGETED_STEPS, falsifier.TARGETED_RESTARTS),
    ),
}


def attack(step: str, ledger: Ledger, task: VerificationTask) -> None:
    """Break what can be broken of the undecided samples."""
    for number, attack_round in enumerate(_ROUNDS[step]):
        undecided = ledger.undecided
        if not len(undecided):
            return
        work = _FalsificationRound(task.subject, task.norm, task.epsilon, attack_round, Deadline(task.deadline))
        batches = [
            Batch(i, part, derive_seed(task.subject.seed, task.name, step, int(part[0])))
            for i, part in enumerate(undecided.split(ATTACK_BATCH))
        ]
        checkpoint = task.checkpoint(ledger, step, number, undecided.tolist())
        name, incidents = f"{task.name} {step}", task.bounder.incidents
        results = each_batch(batches, work, name=name, checkpoint=checkpoint, without=work.nothing, incidents=incidents)
        for batch, result in results:
            broken = result["found"]
            ledger.falsify(batch.indices[broken], result["examples"][broken], step)
            ledger.seconds[batch.indices] += result["seconds"]


@dataclass(frozen=True, slots=True)
class _FalsificationRound:
    """A unit of work: one round of searches on a batch."""

    subject: Subject
    norm: Norm
    epsilon: float
    round: _Round
    deadline: Deadline

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        started, data, indices = time.perf_counter(), self.subject.dataset, batch.indices
        model, x, y = self.subject.classifier, data.inputs[indices], data.targets[indices]
        effort: dict[str, Any] = {"steps": self.round.steps, "restarts": self.round.restarts}
        effort["deadline"] = self.deadline.here()
        is_broken, examples = self.round.search(model, x, y, self.epsilon, batch.seed, self.norm, **effort)
        seconds = torch.full((len(indices),), (time.perf_counter() - started) / len(indices))
        return {"found": is_broken, "examples": examples, "seconds": seconds}

    def nothing(self, batch: Batch) -> dict[str, Tensor]:
        """Return "nothing broken" for a batch that no worker finished."""
        n = len(batch.indices)
        examples = self.subject.dataset.inputs[batch.indices]
        return {"found": torch.zeros(n, dtype=torch.bool), "examples": examples, "seconds": torch.zeros(n)}


def _call(step: str, task: VerificationTask) -> Mapping[str, object]:
    data, (first, *more) = task.subject.dataset, _ROUNDS[step]
    return {
        "inputs": data.inputs,
        "targets": data.targets,
        "epsilon": task.epsilon,
        "steps": first.steps,
        "restarts": first.restarts,
        **({"targeted": [more[0].steps, more[0].restarts]} if more else {}),
    }


ATTACK = Step(attack, _call, falsifier.ROUNDING)
