"""Registry rows of the queries family: three algorithms of our own, and black-box attacks of the attacks table, counted."""

from windtunnel.assessments.attacks.rows import AttackRow, algorithm
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Algorithm, Norm, Randomness, ThreatModel

SCORE, SEEDED = ThreatModel.BLACK_BOX_SCORE, Randomness.SELF_SEEDED

OWN: dict[str, Algorithm] = {
    name: algorithm("windtunnel", name, SCORE, norm, categories, SEEDED, summary=summary)
    for name, norm, categories, summary in (
        ("EvoBA", Norm.L0, "evolutionary score_based", "evolution strategy on random pixels (Ilie et al. 2021)"),
        ("EpsGreedy", Norm.L0, "bandit score_based", "epsilon-greedy bandit over groups of pixels (RobustCheck)"),
        (
            "SimBA",
            Norm.L2,
            "query_efficient score_based",
            "steps along random pixels or cosine waves (Guo et al. 2019)",
        ),
    )
}
LIBRARY: dict[tuple[str, str], AttackRow] = {key: row for key, row in ROWS.items() if row.counted}

ALGORITHMS: tuple[Algorithm, ...] = (*OWN.values(), *(row.algorithm for row in LIBRARY.values()))
