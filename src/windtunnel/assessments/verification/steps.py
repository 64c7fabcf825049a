"""The steps a verification is made of. A single verifier is a cascade of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.bounding import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical
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
from windtunnel.assessments.verification.ledger import NOBODY, Ledger
from windtunnel.assessments.verification.limits import OutOfTimeError
from windtunnel.assessments.verification.marabou import MARABOU_TOLERANCE
from windtunnel.assessments.verification.search_step import search
from windtunnel.assessments.verification.solver_step import solve
from windtunnel.core.batches import progress_bar
from windtunnel.core.contracts import Caveat, Norm
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.params.verification import VerificationEntry

ATTACK_BATCH = 256
PROBE = 20
CHEAP = frozenset({"ibp", "forward", "crown-ibp"})
FALSIFIERS = frozenset({"quick-attack", "attack"})
BOUND_METHODS = frozenset({"ibp", "forward", "crown-ibp", "forward+backward", "crown", "alpha-crown"})


@dataclass(frozen=True, slots=True)
class Task:
    """What every step is given: the assessment's name, the subject, the region, the entry's options.

    canonical: the subject with a network of our own, whose logits are of unit scale; the user's model is the ledger's.

    deadline: time.monotonic() at which the entry's time budget is over. bounder: bounds whatever is bounded.
    probed: bound methods that are tried on a few samples first.
    """

    name: str
    canonical: Canonical
    norm: Norm
    epsilon: float
    entry: VerificationEntry
    deadline: float
    bounder: Bounder
    probed: frozenset[str] = frozenset()

    @property
    def subject(self) -> Subject:
        """The samples with the canonical network."""
        return self.canonical.subject

    @property
    def time_left(self) -> float:
        """Seconds of the time budget; inf where there is none."""
        return self.deadline - time.monotonic()


def run_steps(steps: tuple[str, ...], ledger: Ledger, task: Task) -> None:
    """Let one step after the other decide what it can of the samples that are undecided, while there is time.

    A step that cannot run on the model is left out with a caveat, but where it is the only one: then IncompatibleError.
    """
    for step in steps:
        if not len(ledger.undecided):
            return
        if task.time_left <= 0:
            break
        try:
            _STEPS.get(step, _bound)(step, ledger, task)
        except OutOfTimeError:
            break
        except IncompatibleError as error:
            if len(steps) == 1:
                raise
            ledger.caveats.append(Caveat("step_skipped", f"{step} cannot run on this model and was left out: {error}."))
    left = ledger.undecided
    if task.time_left <= 0 and len(left):
        ledger.timed_out[left] = True
    late = tuple(task.subject.dataset.ids[i] for i in ledger.timed_out.nonzero().flatten().tolist())
    if late:
        text = f"{len(late)} samples were not decided in time; another machine may decide more or fewer."
        ledger.caveats.append(Caveat("time_out", text, late))


def tolerance_of(step: str, slack: float) -> float:
    """By how much of the logits' unit a lead must exceed 0 before a step's word counts; `slack` as in `Bounder`."""
    return (MARABOU_TOLERANCE if step == "marabou" else ROUNDING) + 2 * slack


def _attack(step: str, ledger: Ledger, task: Task) -> None:
    steps, restarts = (QUICK_STEPS, QUICK_RESTARTS) if step == "quick-attack" else (STEPS, RESTARTS)
    rounds = [(falsify, steps, restarts)]
    if step == "attack":
        rounds.append((falsify_targeted, TARGETED_STEPS, TARGETED_RESTARTS))
    for search_for, steps, restarts in rounds:
        if not len(ledger.undecided):
            return
        _attack_once(step, ledger, task, search_for, steps, restarts)


def _attack_once(
    step: str,
    ledger: Ledger,
    task: Task,
    search_for: Callable[..., tuple[Tensor, Tensor]],
    steps: int,
    restarts: int,
) -> None:
    for part in ledger.undecided.split(ATTACK_BATCH):
        started = time.perf_counter()
        inputs, targets = task.subject.dataset.inputs[part], task.subject.dataset.targets[part]
        seed = derive_seed(task.subject.seed, task.name, step, int(part[0]))
        found, examples = search_for(
            task.subject.classifier, inputs, targets, task.epsilon, seed, task.norm,
            steps=steps, restarts=restarts, deadline=task.deadline,
        )  # fmt: skip
        ledger.falsify(part[found], examples[found], step)
        ledger.seconds[part] += (time.perf_counter() - started) / len(part)


def _bound(step: str, ledger: Ledger, task: Task) -> None:
    indices = ledger.undecided
    # Before a stronger bound, a cheap one saves nothing where all samples are one batch of the stronger one; and one that
    # proves none of the first samples is not asked about the others.
    if step in task.probed and len(indices) <= task.bounder.together:
        return
    probe = len(indices) if step not in task.probed else PROBE
    with progress_bar() as progress:
        bar = progress.add_task(f"{task.name} {step}", total=len(indices))
        for rows in (indices[:probe], indices[probe:]):
            started = time.perf_counter()
            for part, method, bounds in task.bounder.bound(step, rows, torch.full((len(rows),), task.epsilon)):
                if bounds is None:
                    for index in part.tolist():
                        ledger.fail(index, method)
                else:
                    ledger.bound(part, bounds.worst_margin, bounds.lower, bounds.upper)
                    ledger.verify(part[bounds.verified], method)
                ledger.seconds[part] += (time.perf_counter() - started) / len(part)
                progress.advance(bar, len(part))
                started = time.perf_counter()
            if not (ledger.decided_by[rows] != NOBODY).any():
                return


def _marabou(step: str, ledger: Ledger, task: Task) -> None:
    solve(step, ledger, task.name, task.canonical, task.epsilon, task.entry, task.deadline)


def _search(step: str, ledger: Ledger, task: Task) -> None:
    try:
        lead = tolerance_of(step, task.canonical.slack)
        search(ledger, task.subject, task.norm, task.epsilon, task.entry, task.deadline, task.name, lead)
    except IncompatibleError as error:
        # As among the bound methods: what has no bound for an operator gives way to the next one down.
        left = tuple(task.subject.dataset.ids[i] for i in ledger.undecided.tolist())
        ledger.caveats.append(Caveat("weaker_method", f"alpha-crown was used instead of {step}: {error}.", left))
        _bound("alpha-crown", ledger, task)


_STEPS: dict[str, Callable[[str, Ledger, Task], None]] = {
    "quick-attack": _attack,
    "attack": _attack,
    "branch-and-bound": _search,
    "marabou": _marabou,
}


def proves(method: str, task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Whether `method` proves each of some rows at its own epsilon; when time is over it proves no more."""

    def decide(rows: Tensor, epsilons: Tensor) -> Tensor:
        verified = torch.zeros(len(task.subject.dataset), dtype=torch.bool)
        with suppress(OutOfTimeError):
            for part, _, bounds in task.bounder.bound(method, rows, epsilons, logits=False):
                if bounds is not None:
                    verified[part] = bounds.verified
        return verified[rows]

    return decide


def breaks(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Whether the falsifier breaks each of some rows at its own epsilon; when time is over it breaks no more."""

    def decide(rows: Tensor, epsilons: Tensor) -> Tensor:
        data = task.subject.dataset
        if task.time_left <= 0:
            return torch.zeros(len(rows), dtype=torch.bool)
        found = [
            falsify(task.subject.classifier, data.inputs[part], data.targets[part], radii,
                    derive_seed(task.subject.seed, task.name, "radius", int(part[0])), task.norm)[0]
            for part, radii in zip(rows.split(ATTACK_BATCH), epsilons.split(ATTACK_BATCH), strict=True)
        ]  # fmt: skip
        return torch.cat(found)

    return decide
