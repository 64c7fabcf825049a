"""Registry rows of the corruptions of ImageNet-C (Hendrycks, Dietterich 2019, arXiv 1903.12261), and their suites."""

from windtunnel.assessments.corruptions.rows import CorruptionRow, corruption_algorithm
from windtunnel.core.contracts import Randomness
from windtunnel.params.corruptions import CHOICE

LIBRARY = "imagecorruptions"
SMALLEST = 32  # pixels a side; imagecorruptions refuses anything smaller
CATEGORY: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
VALIDATION = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
ALL = tuple(name for names in CATEGORY.values() for name in names)
COMMON = tuple(name for name in ALL if name not in VALIDATION)
SUITES: dict[str, tuple[str, ...]] = {"common": COMMON, "validation": VALIDATION, "all": ALL, **CATEGORY}

# Measured (tests/assessments/corruptions): these draw nothing, so two seeds give equal bytes.
DETERMINISTIC = frozenset(
    {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate"}
)


def _row(name: str, category: str, members: tuple[str, ...] = (), summary: str = "") -> CorruptionRow:
    draws_nothing = bool(members or name != CHOICE) and set(members or (name,)) <= DETERMINISTIC
    randomness = Randomness.DETERMINISTIC if draws_nothing else Randomness.GLOBAL_RNG
    algorithm = corruption_algorithm(LIBRARY, name, category, randomness, summary or ", ".join(members))
    return CorruptionRow(algorithm, category, members, SMALLEST, needs_colour=True)


ROWS: tuple[CorruptionRow, ...] = (
    *(_row(name, category) for category, names in CATEGORY.items() for name in names),
    *(_row(suite, "suite", names) for suite, names in SUITES.items()),
    _row(CHOICE, "suite", summary="those listed under `corruptions`"),
)
