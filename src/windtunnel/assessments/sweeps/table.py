"""Registry rows of the sweeps: our one-gradient FGSM, and every attack of the attacks table that takes an epsilon."""

from windtunnel.assessments.attacks.rows import AttackRow, Targeting, algorithm
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Algorithm, Norm, Randomness, ThreatModel
from windtunnel.params.sweeps import SweepEntry

_SUMMARY = "one gradient at the clean input for the whole epsilon grid (Goodfellow et al. 2015)"
FGSM = algorithm(
    "windtunnel", "FGSM", ThreatModel.WHITE_BOX, Norm.LINF, "gradient_sign", Randomness.DETERMINISTIC, summary=_SUMMARY
)


def _can_sweep(attack: AttackRow) -> bool:
    """Return False for an attack that takes no epsilon, needs a target class or is fitted on others, and for our own ensembles."""
    row = attack.algorithm
    has_epsilon = attack.epsilon is not None and (attack.transforms or row.norm in {Norm.LINF, Norm.L2, Norm.L1})
    return (
        has_epsilon and not attack.fits and attack.targeting is not Targeting.REQUIRED and row.library != "windtunnel"
    )


def measure_of(algorithm: Algorithm, entry: SweepEntry) -> Norm:
    """Return the norm of a sweep, or the transformation whose half ranges its epsilons are shares of, which its budget states."""
    norm = algorithm.norm or entry.budget.norm
    assert norm is not None
    return norm


ALGORITHMS: tuple[Algorithm, ...] = (FGSM, *(attack.algorithm for attack in ROWS.values() if _can_sweep(attack)))
