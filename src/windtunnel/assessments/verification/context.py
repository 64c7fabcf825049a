"""What a verification builds on beside the samples: examples that attacks have found."""

from __future__ import annotations

from windtunnel.assessments.run import Job
from windtunnel.assessments.verification.examples import read_examples
from windtunnel.params.verification import VerificationEntry


def context(job: Job) -> dict[str, object]:
    """`budget` and `results` of verification.assess. Raises UserError where a result is missing."""
    assert isinstance(job.entry, VerificationEntry)
    results = read_examples(job.where, job.entry.examples_from, job.directory.parent)
    return {"budget": job.params.budget, "results": results}
