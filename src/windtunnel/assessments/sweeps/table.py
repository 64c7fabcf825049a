"""Registry rows of the sweeps: our one-gradient FGSM, and every attack of the attacks table that takes an epsilon."""

from windtunnel.assessments.attacks.rows import AttackRow, Targeting
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Norm, Randomness, ThreatModel

FGSM = Algorithm(
    library="windtunnel",
    name="FGSM",
    kind=AssessmentKind.EMPIRICAL_ATTACK,
    threat_model=ThreatModel.WHITE_BOX,
    norm=Norm.LINF,
    categories=frozenset({"gradient_sign"}),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset({Capability.FORWARD, Capability.AUTOGRAD}),
    summary="one gradient at the clean input for the whole epsilon grid (Goodfellow et al. 2015)",
)


def _can_sweep(attack: AttackRow) -> bool:
    """Return False for an attack that takes no epsilon or needs a target class, and for our own ensembles."""
    row = attack.algorithm
    has_epsilon = attack.epsilon is not None and row.norm in {Norm.LINF, Norm.L2, Norm.L1}
    return has_epsilon and attack.targeting is not Targeting.REQUIRED and row.library != "windtunnel"


ALGORITHMS: tuple[Algorithm, ...] = (FGSM, *(attack.algorithm for attack in ROWS.values() if _can_sweep(attack)))
