"""The registry row of the sanity stage: an assessment of the assessment, under the identity perturbation."""

from __future__ import annotations

from windtunnel.core.contracts import Algorithm, AssessmentKind, Randomness, ThreatModel

SANITY = Algorithm(
    library="windtunnel",
    name="sanity",
    kind=AssessmentKind.STATISTICAL_SAMPLING,
    threat_model=ThreatModel.NOT_APPLICABLE,
    norm=None,
    categories=frozenset({"sanity"}),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset(),
    summary="checks that the numbers of the other assessments are valid",
)
