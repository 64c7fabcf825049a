"""The steps that bound: every method of auto-LiRPA."""

from collections.abc import Mapping

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.bounder import bound_all
from windtunnel.assessments.verification.bound_propagation.lirpa import call_of_bounds, load_lirpa
from windtunnel.assessments.verification.cascade.step import Step, Trial
from windtunnel.assessments.verification.cascade.task import UNDECIDED, Ledger, VerificationTask
from windtunnel.assessments.verification.falsifier import ROUNDING
from windtunnel.core.scratch import of_shape_for

PROBE = 20


def bound(step: str, ledger: Ledger, task: VerificationTask, indices: Tensor | None = None) -> None:
    """Verify by bounds what can be verified of the undecided samples, or of those at `indices` alone."""
    indices = ledger.undecided if indices is None else indices
    # Before a stronger bound, a cheap one saves nothing where all samples are one batch of the stronger one; and one that
    # proves none of the first samples is not asked about the others.
    if step in task.probed and len(indices) <= task.bounder.together:
        return
    probe = len(indices) if step not in task.probed else PROBE
    for part in (indices[:probe], indices[probe:]):
        checkpoint = task.checkpoint(step, part.tolist())
        epsilons = torch.full((len(part),), task.epsilon)
        for result in bound_all(task.bounder, step, part, epsilons, name=f"{task.name} {step}", checkpoint=checkpoint):
            if result.bounds is None:
                for index in result.indices.tolist():
                    ledger.fail(index, result.method)
            else:
                ledger.bound(result.indices, result.bounds.worst_margin, result.bounds.lower, result.bounds.upper)
                ledger.verify(result.indices[result.bounds.verified], result.method)
            ledger.seconds[result.indices] += result.seconds
        if not (ledger.decided_by[part] != UNDECIDED).any():
            return


def attempt(step: str, trial: Trial) -> None:
    """Bound one sample. Raises IncompatibleError where no method has a bound for the model."""
    list(trial.bounder.bound(step, torch.arange(1), torch.tensor([trial.epsilon])))


def _call(step: str, task: VerificationTask) -> Mapping[str, object]:
    data, classes = task.subject.dataset, task.subject.classifier.num_classes
    # Tensors are recorded by their shapes: the boxes and specifications of all samples at once would need three times their memory.
    call = call_of_bounds(data.inputs[:1], data.targets[:1], classes, task.norm, task.epsilon, step)
    return {key: of_shape_for(len(data), value) for key, value in call.items()}


_OPTIONS = frozenset({"batch_size"})
BOUND = Step(bound, _call, ROUNDING, attempt, bounds=True, load=load_lirpa, options=_OPTIONS)
CHEAP = Step(bound, _call, ROUNDING, attempt, bounds=True, cheap=True, load=load_lirpa, options=_OPTIONS)
