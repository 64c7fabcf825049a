"""Registry rows of the attacks on transformations."""

from windtunnel.assessments.attacks.rows import FIT_SAMPLES, AttackRow, algorithm
from windtunnel.core.contracts import Randomness, ThreatModel

_WHITE, _SCORE = ThreatModel.WHITE_BOX, ThreatModel.BLACK_BOX_SCORE
_GLOBAL, _FIXED = Randomness.GLOBAL_RNG, Randomness.DETERMINISTIC

_GRID = "every point of a grid of one or two parameters, then finer; an occlusion at every place"
_GRADIENT = "gradient ascent in one to four parameters, or in the content and the place of a patch"
_UNIVERSAL = "one patch for all samples, fitted by gradient on samples outside of the draw, evaluated on the draw"
_RANDOM = "random parameters, from forward passes alone"
_EVOLUTION = "differential evolution of the parameters, or of a patch's place and content, from forward passes alone"

ROWS: tuple[AttackRow, ...] = tuple(
    AttackRow(
        algorithm("transformations", name, threat, None, f"transformation {categories}", randomness, summary=summary),
        epsilon="region",
        transforms=True,
        fits=name == "universal",
        defaults={FIT_SAMPLES: 128} if name == "universal" else {},
    )
    for name, threat, categories, randomness, summary in (
        ("grid", _SCORE, "exhaustive", _FIXED, _GRID),
        ("gradient", _WHITE, "iterative", _GLOBAL, _GRADIENT),
        ("universal", _WHITE, "universal", _GLOBAL, _UNIVERSAL),
        ("evolution", _SCORE, "genetic score_based", _GLOBAL, _EVOLUTION),
        ("random", _SCORE, "random score_based", _GLOBAL, _RANDOM),
    )
)
