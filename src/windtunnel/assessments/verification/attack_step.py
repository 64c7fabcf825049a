"""The steps that only break: projected gradient descent from several starts, briefly or long, also towards each class."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from windtunnel.assessments.verification.falsifier import (
    QUICK_RESTARTS,
    QUICK_STEPS,
    RESTARTS,
    ROUNDING,
    STEPS,
    TARGETED_RESTARTS,
    TARGETED_STEPS,
    falsify,
    falsify_targeted,
)
from windtunnel.assessments.verification.ledger import Ledger
from windtunnel.assessments.verification.step import Step
from windtunnel.assessments.verification.steps import ATTACK_BATCH
from windtunnel.assessments.verification.task import Task
from windtunnel.core.seeds import derive_seed


class _Round(NamedTuple):
    """search: gives (found, examples). steps: of a search. restarts: from how many starts."""

    search: Callable[..., tuple[Tensor, Tensor]]
    steps: int
    restarts: int


# The searches of each step, one after the other on what is left.
_ROUNDS = {
    "quick-attack": (_Round(falsify, QUICK_STEPS, QUICK_RESTARTS),),
    "attack": (_Round(falsify, STEPS, RESTARTS), _Round(falsify_targeted, TARGETED_STEPS, TARGETED_RESTARTS)),
}


def attack(step: str, ledger: Ledger, task: Task) -> None:
    """Break what can be broken of the undecided samples."""
    for one in _ROUNDS[step]:
        if not len(ledger.undecided):
            return
        for part in ledger.undecided.split(ATTACK_BATCH):
            _attack_batch(step, part, one, ledger, task)


def _attack_batch(step: str, part: Tensor, one: _Round, ledger: Ledger, task: Task) -> None:
    started = time.perf_counter()
    inputs, targets = task.subject.dataset.inputs[part], task.subject.dataset.targets[part]
    seed = derive_seed(task.subject.seed, task.name, step, int(part[0]))
    found, examples = one.search(
        task.subject.classifier, inputs, targets, task.epsilon, seed, task.norm,
        steps=one.steps, restarts=one.restarts, deadline=task.deadline,
    )  # fmt: skip
    ledger.falsify(part[found], examples[found], step)
    ledger.seconds[part] += (time.perf_counter() - started) / len(part)


def _call(step: str, task: Task) -> Mapping[str, object]:
    data, (first, *more) = task.subject.dataset, _ROUNDS[step]
    return {
        "inputs": data.inputs,
        "targets": data.targets,
        "epsilon": task.epsilon,
        "steps": first.steps,
        "restarts": first.restarts,
        **({"targeted": [more[0].steps, more[0].restarts]} if more else {}),
    }


ATTACK = Step(attack, _call, ROUNDING)
