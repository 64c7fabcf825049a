"""The registry row of the summary: what the worst case over all assessments means."""

from __future__ import annotations

from windtunnel.core.contracts import Algorithm, AssessmentKind, Norm, Randomness, ThreatModel

SUMMARY = Algorithm(
    library="windtunnel",
    name="worst_case",
    kind=AssessmentKind.EMPIRICAL_ATTACK,
    threat_model=ThreatModel.WHITE_BOX,
    norm=Norm.LINF,
    categories=frozenset({"ensemble"}),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset(),
    summary="per sample, the worst empirical outcome and the best certificate of all assessments",
)
