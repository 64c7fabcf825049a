"""Registry rows of corruptions, and the request for a library's adapter. Quick to import.

Those of ImageNet-C: Hendrycks, Dietterich 2019, arXiv 1903.12261.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Json, Randomness, ThreatModel
from windtunnel.params.corruptions import BAR, CAMERA, CHOICE, FOLDER, FUNCTION, OWN

if TYPE_CHECKING:
    import numpy as np

    from windtunnel.params.corruptions import CorruptionEntry

CUSTOM = "custom"  # category of what is not ours


@dataclass(frozen=True, slots=True)
class CorruptionRow:
    """One corruption or suite of a library.

    category: `noise`, `blur` ..., by which accuracies are averaged. corruptions: names of the members of a suite.
    smallest_side: pixels that an image needs. needs_colour: True if grey images are corrupted as RGB and brought back.
    """

    algorithm: Algorithm
    category: str = CUSTOM
    corruptions: tuple[str, ...] = ()
    smallest_side: int = 1
    needs_colour: bool = False


@dataclass(frozen=True, slots=True)
class CorruptionRequest:
    """One image for the adapter of a library, which returns it corrupted, uint8 of the same shape.

    corruption: the library's name of it. image: uint8 (H, W, C), C 1 or 3, a copy. severity: 1 to 5. seed: all that
    randomness may depend on, in [0, 2**32). sample, class_name: id and class of the image. prepared: what `prepare` did to
    the samples (resize, crop ...).
    """

    corruption: str
    image: np.ndarray
    severity: int
    seed: int
    entry: CorruptionEntry
    sample: str = ""
    class_name: str = ""
    prepared: Mapping[str, Json] = field(default_factory=dict)


def corruption_algorithm(
    library: str, name: str, category: str = CUSTOM, randomness: Randomness = Randomness.SELF_SEEDED, summary: str = ""
) -> Algorithm:
    """Return the semantics of a corruption: the average case, drawn at random, which needs only the model's prediction."""
    return Algorithm(
        library=library,
        name=name,
        kind=AssessmentKind.STATISTICAL_SAMPLING,
        threat_model=ThreatModel.NOT_APPLICABLE,
        norm=None,
        categories=frozenset({"common_corruption", category}),
        randomness=randomness,
        requires=frozenset({Capability.FORWARD}),
        summary=summary,
    )


IMAGECORRUPTIONS = "imagecorruptions"
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
    randomness = {OWN: Randomness.SELF_SEEDED, FOLDER: Randomness.DETERMINISTIC}.get(library, Randomness.GLOBAL_RNG)
    is_of_imagenet_c = library == IMAGECORRUPTIONS
    if is_of_imagenet_c and DETERMINISTIC.issuperset(members or (name,)):
        randomness = Randomness.DETERMINISTIC
    algorithm = corruption_algorithm(library, name, category, randomness, summary or ", ".join(members))
    smallest_side = SMALLEST if is_of_imagenet_c else 1
    return CorruptionRow(algorithm, category, members, smallest_side, needs_colour=is_of_imagenet_c)


IMAGECORRUPTIONS_ROWS: tuple[CorruptionRow, ...] = (
    *(_row(IMAGECORRUPTIONS, name, category) for category, names in CATEGORY.items() for name in names),
    *(_row(IMAGECORRUPTIONS, suite, "suite", names) for suite, names in SUITES.items()),
    _row(IMAGECORRUPTIONS, CHOICE, "suite", summary=_LISTED),
)
OWN_ROWS: tuple[CorruptionRow, ...] = (
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
