"""Registry rows of the queries family: three algorithms of our own, and black-box attacks of the attacks table, counted."""

from windtunnel.assessments.attacks.rows import AttackRow, algorithm
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Algorithm, Norm, Randomness, ThreatModel

SCORE, SEEDED = ThreatModel.BLACK_BOX_SCORE, Randomness.SELF_SEEDED

OWN: dict[str, Algorithm] = {
    row.name: row
    for row in (
        algorithm("windtunnel", "EvoBA", SCORE, Norm.L0, "evolutionary score_based", SEEDED,
                  summary="evolution strategy on random pixels (Ilie et al. 2021)"),
        algorithm("windtunnel", "EpsGreedy", SCORE, Norm.L0, "bandit score_based", SEEDED,
                  summary="epsilon-greedy bandit over groups of pixels (RobustCheck)"),
        algorithm("windtunnel", "SimBA", SCORE, Norm.L2, "query_efficient score_based", SEEDED,
                  summary="steps along random pixels or cosine waves (Guo et al. 2019)"),
    )
}  # fmt: skip

LIBRARY: dict[tuple[str, str], AttackRow] = {key: row for key, row in ROWS.items() if row.counted}

ALGORITHMS: tuple[Algorithm, ...] = (*OWN.values(), *(row.algorithm for row in LIBRARY.values()))
