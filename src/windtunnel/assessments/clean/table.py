"""The registry row of the clean evaluation: statistical sampling under the identity perturbation."""

from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Randomness, ThreatModel

IDENTITY = Algorithm(
    library="windtunnel",
    name="identity",
    kind=AssessmentKind.STATISTICAL_SAMPLING,
    threat_model=ThreatModel.NOT_APPLICABLE,
    norm=None,
    categories=frozenset(),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset({Capability.FORWARD}),
    summary="the model without any perturbation",
)
VISUALISERS: tuple[str, ...] = ("ConfusionMatrixVisualiser", "ReliabilityVisualiser", "PerClassAccuracyVisualiser")
