"""The steps a verification is made of, one after the other. A single verifier is a cascade of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from windtunnel.assessments.verification.falsifier import falsify
from windtunnel.assessments.verification.ledger import Ledger
from windtunnel.assessments.verification.limits import OutOfTimeError
from windtunnel.assessments.verification.rows import VerifierRow
from windtunnel.assessments.verification.step import step_of
from windtunnel.assessments.verification.task import Task
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.seeds import derive_seed
from windtunnel.params.verification import VerificationEntry

ATTACK_BATCH = 256


def steps_of(row: VerifierRow, entry: VerificationEntry) -> tuple[str, ...]:
    """The steps behind an algorithm: a single verifier is a cascade of one or two."""
    return entry.steps if row.of_entry else row.steps


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
            step_of(step).decide(step, ledger, task)
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


def called_with(steps: Sequence[str], task: Task) -> Mapping[str, object]:
    """The arguments of every step by its name; of a single verifier the arguments themselves.

    Tensors are those of all samples: a step cuts them into batches, and leaves out what is decided.
    """
    calls = {step: step_of(step).call(step, task) for step in steps}
    return calls[steps[0]] if len(steps) == 1 else calls


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
