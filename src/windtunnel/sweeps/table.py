"""Registry rows of the sweeps: our one-gradient FGSM, and every attack of the attacks table that takes an epsilon."""

from __future__ import annotations

from windtunnel.attacks.table import ALGORITHMS as ATTACKS
from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Norm, Randomness, ThreatModel

FGSM = Algorithm(
    library="windtunnel",
    name="FGSM",
    kind=AssessmentKind.EMPIRICAL_ATTACK,
    threat_model=ThreatModel.WHITE_BOX,
    norm=Norm.LINF,
    families=frozenset({"gradient_sign"}),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset({Capability.FORWARD, Capability.AUTOGRAD}),
    summary="one gradient at the clean input for the whole menu (Goodfellow et al. 2015)",
)
# A minimum-norm attack has no epsilon to sweep, and an ensemble of ours is an attack stage's business.
ALGORITHMS: tuple[Algorithm, ...] = (
    FGSM,
    *(
        row
        for row in ATTACKS
        if not row.minimum_norm and row.norm in {Norm.LINF, Norm.L2, Norm.L1} and row.library != "windtunnel"
    ),
)
DEFAULT_VISUALISERS: tuple[str, ...] = (
    "DegradationCurveVisualiser",
    "CriticalEpsilonVisualiser",
    "ConfidenceVisualiser",
    "ClassAccuracyVisualiser",
)
