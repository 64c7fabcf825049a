"""What each step of a verification calls its library with: `call_kwargs` of metadata.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.assessments.verification.falsifier import (
    QUICK_RESTARTS,
    QUICK_STEPS,
    RESTARTS,
    STEPS,
    TARGETED_RESTARTS,
    TARGETED_STEPS,
)
from windtunnel.assessments.verification.lirpa import call_of_bounds
from windtunnel.assessments.verification.marabou import box
from windtunnel.assessments.verification.steps import Task
from windtunnel.params.verification import BranchAndBound

_SEARCH = {"quick-attack": (QUICK_STEPS, QUICK_RESTARTS), "attack": (STEPS, RESTARTS)}


def called_with(steps: Sequence[str], task: Task) -> Mapping[str, object]:
    """The arguments of every step by its name; of a single verifier the arguments themselves.

    Tensors are those of all samples: a step cuts them into batches, and leaves out what is decided.
    """
    calls = {step: _call(step, task) for step in steps}
    return calls[steps[0]] if len(steps) == 1 else calls


def _call(step: str, task: Task) -> Mapping[str, object]:
    data, entry = task.subject.dataset, task.entry
    if step in _SEARCH:
        iterations, restarts = _SEARCH[step]
        return {
            "inputs": data.inputs,
            "targets": data.targets,
            "epsilon": task.epsilon,
            "steps": iterations,
            "restarts": restarts,
            **({"targeted": [TARGETED_STEPS, TARGETED_RESTARTS]} if step == "attack" else {}),
        }
    if step == "branch-and-bound":
        limits = BranchAndBound.model_validate(entry.params).model_dump(mode="json")
        return {"inputs": data.inputs, "targets": data.targets, "epsilon": task.epsilon, **limits}
    if step == "marabou":
        lower, upper = box(data.inputs, task.epsilon)
        other_classes = {"other_classes": entry.other_classes, "output_bounds": entry.output_bounds}
        return {
            "lower": lower,
            "upper": upper,
            "epsilon": task.epsilon,
            "timeoutInSeconds": entry.solver_timeout,
            "verbosity": 0,
            **other_classes,
        }
    return call_of_bounds(data.inputs, data.targets, task.subject.classifier.num_classes, task.norm, task.epsilon, step)
