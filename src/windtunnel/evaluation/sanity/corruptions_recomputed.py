"""Run a corruption suite again, on a few samples, to see whether the pixels are the same."""

import hashlib
from collections.abc import Sequence

from torch import Tensor

from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.result import AssessmentResult, tensor_in

SAMPLES = 8


def differing(evidence: Evidence, assessment: Assessment, pairs: Sequence[tuple[str, int]]) -> list[str]:
    """Return the corruptions of a suite that give other pixels when run twice, or than the suite kept.

    On its first samples; of those whose images are kept, where not all are.
    """
    from windtunnel.assessments.corruptions.assess import assess_suite

    lowest = min(severity for _, severity in pairs)
    entry = evidence.params.corruptions[assessment.name].model_copy(update={"severities": [lowest]})
    subject = evidence.subject.subset(evidence.pictured(assessment).indices[:SAMPLES])

    def once() -> dict[str, str]:
        # Digests, not the images: the suite overwrites those by the next corruption.
        digests: dict[str, str] = {}

        def keep(result: AssessmentResult) -> None:
            digests[result.name] = _digest(tensor_in(result.data, "perturbed_inputs"))

        assess_suite(f"{assessment.name}.again", entry, subject, keep)
        return digests

    first, second = once(), once()
    return [name for name, pixels in first.items() if {second[name], _stored(assessment, name) or pixels} != {pixels}]


def _digest(images: Tensor) -> str:
    return hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()


def _stored(assessment: Assessment, name: str) -> str | None:
    try:
        return _digest(read_artifacts(assessment.artifacts.directory / name).tensor("perturbed_inputs")[:SAMPLES])
    except UserError:
        return None
