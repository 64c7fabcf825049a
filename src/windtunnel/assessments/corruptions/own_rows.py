"""Registry rows of the corruptions that windtunnel implements, of functions of the user's, and of images on disk."""

from windtunnel.assessments.corruptions.imagenet_c import CATEGORY, SUITES
from windtunnel.assessments.corruptions.rows import CUSTOM, CorruptionRow, corruption_algorithm
from windtunnel.core.contracts import Randomness
from windtunnel.params.corruptions import BAR, CAMERA, CHOICE, FOLDER, FUNCTION, OWN

_OWN_CATEGORY: dict[str, dict[str, str]] = {
    CAMERA: {
        "rotation": "geometric",
        "translation": "geometric",
        "brightness": "photometric",
        "contrast": "photometric",
        "blur": "blur",
    },
    BAR: {
        "blue_noise": "noise",
        "brownish_noise": "noise",
        "perlin_noise": "noise",
        "plasma_noise": "noise",
        "single_frequency": "waves",
        "concentric_waves": "waves",
        "caustic_refraction": "optics",
        "checkerboard": "occlusion",
        "sparkles": "optics",
        "inverse_sparkles": "optics",
    },
}
CATEGORY_OF = {name: category for names in _OWN_CATEGORY.values() for name, category in names.items()}
_OF_IMAGENET_C = {name: category for category, names in CATEGORY.items() for name in names}
_LISTED = "those listed under `corruptions`"


def _row(library: str, name: str, category: str, members: tuple[str, ...] = (), summary: str = "") -> CorruptionRow:
    randomness = {FOLDER: Randomness.DETERMINISTIC, FUNCTION: Randomness.GLOBAL_RNG}.get(
        library, Randomness.SELF_SEEDED
    )
    algorithm = corruption_algorithm(library, name, category, randomness, summary or ", ".join(members))
    return CorruptionRow(algorithm, category, members)


ROWS: tuple[CorruptionRow, ...] = (
    *(_row(OWN, name, category) for name, category in CATEGORY_OF.items()),
    *(_row(OWN, suite, "suite", tuple(names)) for suite, names in _OWN_CATEGORY.items()),
    _row(OWN, CHOICE, "suite", summary=_LISTED),
)
FUNCTION_ROWS = (
    _row(FUNCTION, "module:function", CUSTOM, summary="a corruption of your own: (image, severity, seed) -> image"),
    _row(FUNCTION, CHOICE, "suite", summary=_LISTED),
)
FOLDER_ROWS = (
    _row(FOLDER, "all", "suite", summary="every folder of images below `path`"),
    *(_row(FOLDER, suite, "suite", names) for suite, names in SUITES.items() if suite != "all"),
    _row(FOLDER, CHOICE, "suite", summary=_LISTED),
)


def function_row(reference: str) -> CorruptionRow:
    """Return the row of a function of the user's, `module:function`; nothing of the user's is imported."""
    return _row(FUNCTION, reference, CUSTOM, summary="a corruption of your own")


def folder_row(name: str) -> CorruptionRow:
    """Return the row of a folder of corrupted images; a name of ImageNet-C has its category."""
    return _row(FOLDER, name, _OF_IMAGENET_C.get(name, CUSTOM))
