"""The same samples under every attack, without saying anything twice.

report.figure_scope: `per_sample` shows a sample under all assessments, `per_assessor` all samples under one.
report.layout: `compact` shows the clean image once, `full` beside each of its perturbed images.
"""

from collections.abc import Iterator

from torch import Tensor

from windtunnel.assessments.figures.pictures import WORDS, Picture, PictureGrid, map_png, png_of, signed_map
from windtunnel.core.transformations import PARAMETERS, parameter_words
from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Text
from windtunnel.reporting.report.phrases import class_name, clean_words, region
from windtunnel.reporting.report.pictures import LARGE, Pictures

ACROSS = 7  # pictures beside each other on a page
_MAP_WORDS = f"perturbation: {WORDS}, one scale per sample"


def side_by_side_blocks(inputs: ReportInputs, options: Options) -> list[Block]:
    """Return the samples side by side; nothing where there are no images, or where each attack shows its own."""
    pictures, shown = inputs.pictures, _pictured(inputs)
    if pictures is None or not shown or (options.figure_scope == "per_assessor" and options.layout == "full"):
        return []
    introduction = Text(
        "The samples broken with the smallest perturbation, each of another class. Below an image: its label and the "
        "prediction under perturbation; below a perturbation: its size in the norm of the attack."
    )
    if options.figure_scope == "per_assessor":
        names = tuple(pictures.names[i] for i in pictures.chosen)
        cells = tuple(_clean(inputs, pictures, i) for i in pictures.chosen)
        return [introduction, PictureGrid("Clean images, not repeated below", names, (("clean", cells),))]
    grids = [grid for i in pictures.chosen for grid in _sample_grids(inputs, pictures, i, options.layout == "full")]
    return [introduction, *grids]


def attack_by_attack(artifacts: Artifacts, inputs: ReportInputs, options: Options) -> list[Block]:
    """In the compact layout per assessor: one attack's images of the samples whose clean images stand above all attacks."""
    pictures = inputs.pictures
    if pictures is None or options.figure_scope != "per_assessor" or options.layout != "compact":
        return []
    if artifacts not in _pictured(inputs):
        return []
    scales = [_scale(pictures, i) for i in pictures.chosen]
    perturbed = tuple(_perturbed(artifacts, pictures, i) for i in pictures.chosen)
    maps = tuple(_map(artifacts, pictures, i, scale) for i, scale in zip(pictures.chosen, scales, strict=True))
    header = tuple(pictures.names[i] for i in pictures.chosen)
    return [PictureGrid(f"{artifacts.name}: {_MAP_WORDS}", header, (("perturbed", perturbed), ("change", maps)))]


def shown_side_by_side(artifacts: Artifacts, inputs: ReportInputs, options: Options) -> bool:
    """Return True if this module shows the images of this assessment, so that its own pictures would repeat them."""
    own_pictures = options.figure_scope == "per_assessor" and options.layout == "full"
    return not own_pictures and inputs.pictures is not None and any(a is artifacts for a in _pictured(inputs))


def _pictured(inputs: ReportInputs) -> list[Artifacts]:
    """Return the assessments with a perturbed image of a chosen sample."""
    pictures = inputs.pictures
    if pictures is None:
        return []
    with_image = {name for name, _ in pictures.perturbed}
    return [a for a in inputs.assessments if a.name in with_image]


def _sample_grids(inputs: ReportInputs, pictures: Pictures, i: int, repeat_clean: bool) -> Iterator[PictureGrid]:
    """Yield a sample under every attack, as many beside each other as fit, on one scale of the perturbation."""
    shown = [a for a in _pictured(inputs) if (a.name, i) in pictures.perturbed]
    scale, clean = _scale(pictures, i), _clean(inputs, pictures, i)
    across = -(-len(shown) // -(-len(shown) // ACROSS)) if shown else ACROSS  # blocks of equal width
    caption = f"{pictures.names[i]}; {_MAP_WORDS}"
    for start in range(0, len(shown), across):
        part = shown[start : start + across]
        header = tuple(a.name for a in part)
        images = tuple(_perturbed(a, pictures, i) for a in part)
        maps = tuple(_map(a, pictures, i, scale) for a in part)
        if repeat_clean:
            rows = (("clean", (clean,) * len(part)), ("perturbed", images), ("perturbation", maps))
            yield PictureGrid(caption, header, rows)
        else:
            first = clean if start == 0 else None
            two = (("image", (first, *images)), ("perturbation", (None, *maps)))
            yield PictureGrid(caption, ("clean", *header), two)


def _scale(pictures: Pictures, i: int) -> float:
    """Return the largest change of a sample over all assessments: one colour scale for all its maps."""
    changes = [float((image - pictures.clean[i]).abs().max()) for (_, j), image in pictures.perturbed.items() if j == i]
    return max(1e-8, *changes, 0.0)


def _clean(inputs: ReportInputs, pictures: Pictures, i: int) -> Picture:
    assert inputs.base is not None  # pictures were planned on it
    return Picture(png_of(pictures.clean[i], LARGE), f"{pictures.names[i]}, clean", clean_words(inputs.base, i))


def _row(artifacts: Artifacts, name: str) -> int:
    return artifacts.sample_names.index(name)


def _perturbed(artifacts: Artifacts, pictures: Pictures, i: int) -> Picture | None:
    image = pictures.perturbed.get((artifacts.name, i))
    if image is None:
        return None
    row, classes = _row(artifacts, pictures.names[i]), artifacts.class_names
    label = class_name(classes, int(artifacts.tensor("targets")[row]))
    prediction = class_name(classes, int(artifacts.tensor("perturbed_predictions")[row]))
    text = f"{label} → {prediction}" if prediction != label else f"remains {label}"
    return Picture(png_of(image, LARGE), f"{pictures.names[i]} under {artifacts.name}: {text}", text)


def _map(artifacts: Artifacts, pictures: Pictures, i: int, scale: float) -> Picture | None:
    image = pictures.perturbed.get((artifacts.name, i))
    if image is None:
        return None
    row, text = _row(artifacts, pictures.names[i]), ""
    distances = artifacts.data.get("perturbation_distance")
    if isinstance(distances, Tensor) and not distances[row].isnan():
        text = f"{region(artifacts).norm or ''} {float(distances[row]):.3g}"
    if isinstance(parameters := artifacts.data.get(PARAMETERS), dict):
        text = parameter_words({name: float(values[row]) for name, values in parameters.items()})
    change, alt = signed_map(image - pictures.clean[i]), f"perturbation of {pictures.names[i]} by {artifacts.name}"
    return Picture(map_png(change, scale, LARGE), alt, text)
