"""The steps a verification is made of, one after the other. A single verifier is a cascade of one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.bounder import bound_all
from windtunnel.assessments.verification.canonical.trace import load_tracer
from windtunnel.assessments.verification.cascade.step import step_of
from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
from windtunnel.assessments.verification.rows import VerifierRow
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import IncompatibleError, OutOfTimeError
from windtunnel.params.verification import Radius


def options_read(row: VerifierRow, steps: Sequence[str]) -> set[str]:
    """Return the keys of an entry that decide how these steps run, beside `params`."""
    of_steps = set[str]().union(*(step_of(step).options for step in steps))
    return of_steps | {"time_budget", "radius"} | ({"steps"} if row.of_entry else set())


def run_steps(steps: tuple[str, ...], ledger: Ledger, task: VerificationTask) -> None:
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
    undecided = ledger.undecided
    if task.time_left <= 0 and len(undecided):
        ledger.timed_out[undecided] = True
    late = tuple(task.subject.dataset.ids[i] for i in ledger.timed_out.nonzero().flatten().tolist())
    if late:
        text = f"{len(late)} samples were not decided in time; another machine may decide more or fewer."
        ledger.caveats.append(Caveat("time_out", text, late))


def load_steps(steps: Sequence[str]) -> None:
    """Import what the steps import at their first use; what cannot be imported is said when its step comes."""
    load_tracer()
    for load in dict.fromkeys(step_of(step).load for step in steps):
        if load is not None:
            with suppress(IncompatibleError):
                load()


def called_with(steps: Sequence[str], task: VerificationTask) -> Mapping[str, object]:
    """Return the arguments of every step by its name; of a single verifier the arguments themselves.

    Tensors are those of all samples: a step cuts them into batches, and leaves out what is decided.
    """
    calls = {step: step_of(step).call(step, task) for step in steps}
    return calls[steps[0]] if len(steps) == 1 else calls


def radius_steps(radius: Radius, steps: Sequence[str]) -> tuple[str | None, str | None]:
    """Return (the step whose bounds find certified radii first, the one that then searches sample by sample), None where there is none.

    The last of `steps` that gives bounds, but not alpha-crown after another one: a search asks many times, and its slopes are
    optimised again each time. What searches takes long: only where `radius` names it, or where nothing else can.
    """
    bounding = [step for step in steps if step_of(step).bounds]
    if radius.method in bounding:
        return radius.method, None
    bounds = next((step for step in reversed(bounding) if step != "alpha-crown"), "alpha-crown" if bounding else None)
    searching = [step for step in steps if step_of(step).radii and (bounds is None or step == radius.method)]
    return bounds, searching[-1] if searching else None


def proves(method: str, task: VerificationTask) -> Callable[[Tensor, Tensor], Tensor]:
    """Return whether `method` proves each of some samples at its own epsilon; when time is over it proves no more."""

    def decide(indices: Tensor, epsilons: Tensor) -> Tensor:
        verified = torch.zeros(len(task.subject.dataset), dtype=torch.bool)
        if task.time_left <= 0:
            return verified[indices]
        with suppress(OutOfTimeError):
            for result in bound_all(task.bounder, method, indices, epsilons, name=f"{task.name} radius", logits=False):
                if result.bounds is not None:
                    verified[result.indices] = result.bounds.verified
        return verified[indices]

    return decide
