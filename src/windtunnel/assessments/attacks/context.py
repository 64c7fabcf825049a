"""What an attack builds on beside the samples: results of earlier attacks, and models its examples are tried on."""

from __future__ import annotations

from windtunnel.assessments.attacks.survivors import read_prior
from windtunnel.assessments.run import Job
from windtunnel.inputs.models.others import named_classifier
from windtunnel.params.attacks import AttackEntry


def context(job: Job) -> dict[str, object]:
    """`budget`, `prior` and `others` of attacks.assess. Raises UserError where a result or a model is missing or unfit."""
    entry, params = job.entry, job.params
    assert isinstance(entry, AttackEntry)
    others = {
        key: named_classifier(
            f"{job.where}.transfer_to.{key}", place, job.subject.dataset, params.device, params.tracking.uri
        )
        for key, place in entry.transfer_to.items()
    }
    prior = read_prior(job.where, entry, job.directory.parent, params.attacks, params.budget)
    return {"budget": params.budget, "prior": prior, "others": others}
