"""Registry rows of the attacks on transformations."""

from __future__ import annotations

from windtunnel.assessments.attacks.rows import AttackRow, algorithm
from windtunnel.core.contracts import Randomness, ThreatModel

_WHITE, _SCORE = ThreatModel.WHITE_BOX, ThreatModel.BLACK_BOX_SCORE
_GLOBAL, _NONE = Randomness.GLOBAL_RNG, Randomness.DETERMINISTIC
_LIBRARY = "transformations"

ROWS: tuple[AttackRow, ...] = (
    AttackRow(
        algorithm(
            _LIBRARY,
            "grid",
            _SCORE,
            None,
            "transformation exhaustive",
            _NONE,
            summary="every point of a grid of one or two parameters, then finer; an occlusion at every place",
        ),
        epsilon="region",
        transforms=True,
    ),
    AttackRow(
        algorithm(
            _LIBRARY,
            "gradient",
            _WHITE,
            None,
            "transformation iterative",
            _GLOBAL,
            summary="gradient ascent in one to four parameters, or in the content of a patch at its best places",
        ),
        epsilon="region",
        transforms=True,
    ),
    AttackRow(
        algorithm(
            _LIBRARY,
            "random",
            _SCORE,
            None,
            "transformation random score_based",
            _GLOBAL,
            summary="random parameters, from forward passes alone",
        ),
        epsilon="region",
        transforms=True,
    ),
)
