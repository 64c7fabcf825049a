"""What a suite is given beside the samples: where the result of each corruption goes as soon as it is there."""

from __future__ import annotations

from windtunnel.assessments.run import Job
from windtunnel.core.artifacts import AssessmentResult, write_artifacts


def context(job: Job) -> dict[str, object]:
    """`keep` of corruptions.assess: writes a directory per corruption and severity below the suite's."""

    def keep(child: AssessmentResult) -> None:
        write_artifacts(child, job.directory / child.name, job.subject, started=job.started)

    return {"keep": keep}
