"""Stage `attack@<name>`: one entry of `attacks`, on what other attacks left where it says so."""

from __future__ import annotations

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.assessments.attacks.survivors import read_prior
from windtunnel.assessments.run import Task, run_entry, stage_main
from windtunnel.core.artifacts import AssessmentResult
from windtunnel.core.layout import ROBUSTNESS
from windtunnel.inputs.models.others import named_classifier
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.resolved import read_resolved
from windtunnel.params.server import configured_server


def attack(task: Task[AttackEntry]) -> AssessmentResult:
    """Run one attack."""
    before = {n: read_resolved("attack", n).work.entry for n in (task.entry.on.survivors_of if task.entry.on else ())}
    earlier = {n: AttackEntry.model_validate(entry) for n, entry in before.items()}
    prior = read_prior(task.where, task.entry, ROBUSTNESS, earlier, task.budget)
    others = {
        key: named_classifier(
            f"{task.where}.transfer_to.{key}",
            place,
            task.subject.dataset,
            task.resolved.work.device,
            configured_server(),
        )
        for key, place in task.entry.transfer_to.items()
    }
    return assess(task.name, task.entry, task.budget, task.subject, prior, others)


def main(name: str) -> None:
    """Write reports/robustness/<name>."""
    run_entry("attacks", "attack", name, AttackEntry, preflight, attack)


if __name__ == "__main__":
    stage_main(main)
