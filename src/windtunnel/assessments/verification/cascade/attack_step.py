"""The steps that only break, and the radii that they break: projected gradient descent from several starts, briefly or long."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from windtunnel.assessments.verification import falsifier
from windtunnel.assessments.verification.cascade.step import Step
from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Norm
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.runtime.batch_runner import run_batches


class _Round(NamedTuple):
    """search: gives (found, examples). steps: of a search. restarts: from how many starts."""

    search: Callable[..., tuple[Tensor, Tensor]]
    steps: int
    restarts: int


_BATCH = 256
_LONG = _Round(falsifier.falsify, falsifier.STEPS, falsifier.RESTARTS)
_TARGETED = _Round(falsifier.falsify_targeted, falsifier.TARGETED_STEPS, falsifier.TARGETED_RESTARTS)
# The searches of each step, one after the other on what is left.
_ROUNDS = {
    "quick-attack": (_Round(falsifier.falsify, falsifier.QUICK_STEPS, falsifier.QUICK_RESTARTS),),
    "attack": (_LONG, _TARGETED),
}


def attack(step: str, ledger: Ledger, task: VerificationTask) -> None:
    """Break what can be broken of the undecided samples."""
    for number, attack_round in enumerate(_ROUNDS[step]):
        undecided = ledger.undecided
        if not len(undecided):
            return
        epsilons = torch.full((len(ledger.verdicts),), task.epsilon, dtype=torch.float64)
        work = Falsification(task.subject, task.norm, epsilons, Deadline(task.deadline), attack_round)
        checkpoint = task.checkpoint(step, number, undecided.tolist())
        for batch, result in task.results(_batches(task, step, undecided), work, step, checkpoint):
            broken = result["found"]
            ledger.falsify(batch.indices[broken], result["examples"][broken], step)
            ledger.seconds[batch.indices] += result["seconds"]


def breaks(task: VerificationTask) -> Callable[[Tensor, Tensor], Tensor]:
    """Return whether the falsifier breaks each of some samples at its own epsilon; when time is over it breaks no more."""

    def decide(indices: Tensor, epsilons: Tensor) -> Tensor:
        if task.time_left <= 0:
            return torch.zeros(len(indices), dtype=torch.bool)
        radii = torch.zeros(len(task.subject.dataset), dtype=epsilons.dtype)
        radii[indices] = epsilons
        work = Falsification(task.subject, task.norm, radii, Deadline(task.deadline))
        batches, name, incidents = _batches(task, "radius", indices), f"{task.name} radius", task.bounder.incidents
        return run_batches(batches, work, name=name, without=work.nothing, incidents=incidents)["found"]

    return decide


def _batches(task: VerificationTask, what: str, indices: Tensor) -> list[Batch]:
    """Return the samples at `indices` in batches, each with a seed of its own."""
    parts = enumerate(indices.split(_BATCH))
    return [Batch(i, part, derive_seed(task.subject.seed, task.name, what, int(part[0]))) for i, part in parts]


@dataclass(frozen=True, slots=True)
class Falsification:
    """A unit of work: one round of searches on a batch, each sample at its own of the `epsilons` (N,)."""

    subject: Subject
    norm: Norm
    epsilons: Tensor
    deadline: Deadline
    round: _Round = _LONG

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return which samples are broken, by which examples, and the seconds of each."""
        started, data, indices = time.perf_counter(), self.subject.dataset, batch.indices
        is_broken, examples = self.round.search(
            self.subject.classifier,
            data.inputs[indices],
            data.targets[indices],
            self.epsilons[indices],
            batch.seed,
            self.norm,
            steps=self.round.steps,
            restarts=self.round.restarts,
            deadline=self.deadline.here(),
        )
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
