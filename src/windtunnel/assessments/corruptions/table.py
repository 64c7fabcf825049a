"""Registry rows of the corruptions of ImageNet-C (Hendrycks, Dietterich 2019, arXiv 1903.12261), and their suites."""

from __future__ import annotations

from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Randomness, ThreatModel
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.corruptions import CHOICE, CorruptionEntry

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


def category_of(corruption: str) -> str:
    """noise, blur, weather or digital."""
    return next(category for category, names in CATEGORY.items() if corruption in names)


def corruptions_of(entry: CorruptionEntry, where: str) -> tuple[str, ...]:
    """The corruptions of an entry, each once. Raises UserError for a word in its list that is none."""
    names: list[str] = []
    for word in entry.corruptions or (entry.algorithm,):
        if word not in ALL and word not in SUITES:
            raise UserError(
                unknown_word(f"{where}.corruptions", word, [*SUITES, *ALL], what="a corruption or a category of them")
            )
        names += SUITES.get(word, (word,))
    return tuple(dict.fromkeys(names))


def results(entry: CorruptionEntry) -> int:
    """Return how many results an entry leaves: each corruption at each severity, and the suite."""
    return len(corruptions_of(entry, "corruptions")) * len(entry.severities) + 1


def _row(name: str, category: str, summary: str, *, deterministic: bool) -> Algorithm:
    return Algorithm(
        library="imagecorruptions",
        name=name,
        kind=AssessmentKind.STATISTICAL_SAMPLING,
        threat_model=ThreatModel.NOT_APPLICABLE,
        norm=None,
        categories=frozenset({"common_corruption", category}),
        randomness=Randomness.DETERMINISTIC if deterministic else Randomness.GLOBAL_RNG,
        requires=frozenset({Capability.FORWARD}),
        summary=summary,
    )


ALGORITHMS: tuple[Algorithm, ...] = (
    *(_row(name, category_of(name), "", deterministic=name in DETERMINISTIC) for name in ALL),
    *(
        _row(suite, "suite", ", ".join(names), deterministic=set(names) <= DETERMINISTIC)
        for suite, names in SUITES.items()
    ),
    _row(CHOICE, "suite", "those listed under `corruptions`", deterministic=False),
)
