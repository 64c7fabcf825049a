"""One entry of `attacks` as its stage runs it: on what other attacks left, and transferred, where it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.survivors import read_prior
from windtunnel.boundary.models.others import named_classifier
from windtunnel.boundary.params_file import configured_server
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.resolved import read_resolved

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.records.artifacts import AssessmentResult


def run(task: Task[AttackEntry]) -> AssessmentResult:
    """Run one attack."""
    names = task.entry.on.survivors_of if task.entry.on else ()
    before = {name: read_resolved("attack", name, task.layout.resolved).work.entry for name in names}
    earlier = {n: AttackEntry.model_validate(entry) for n, entry in before.items()}
    prior = read_prior(task.where, task.entry, task.layout.robustness, earlier, task.budget)
    others = {
        key: named_classifier(
            f"{task.where}.transfer_to.{key}",
            directory,
            task.subject.dataset,
            task.resolved.work.device,
            configured_server(),
        )
        for key, directory in task.entry.transfer_to.items()
    }
    return assess(task.name, task.entry, task.budget, task.subject, prior, others)
