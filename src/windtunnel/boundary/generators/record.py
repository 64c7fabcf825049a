"""Types of generators.json and quality.json, which the stage `generators` writes next to the weights."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from windtunnel.params.latent import GeneratorRecipe
from windtunnel.records.files import read_json
from windtunnel.records.metadata import Record, Value, fitting

GENERATORS_JSON, QUALITY_JSON = "generators.json", "quality.json"


class GeneratorsRecord(Record):
    """The generative models of a run; with `source: none` there are none. decay: see `generators.decay`."""

    source: Literal["none", "train", "function"]
    decay: float = 1.0


class TrainedGenerators(GeneratorsRecord):
    """`source: train`. shape: of one image. n_train: images they were trained on."""

    recipe: GeneratorRecipe
    shape: tuple[int, ...]
    num_classes: int
    n_train: int


class OwnGenerators(GeneratorsRecord):  # type: ignore[no-redef]  # see records.metadata.Metadata
    """`source: function`: what the user's function builds. value_range: of its images. original, sha256: of its weights."""

    function: str
    kwargs: dict[str, Value] = Field(default_factory=dict)
    value_range: tuple[float, float] | None = None
    original: str | None = None
    sha256: str | None = None


class Quality(Record):
    """Quality of the models, as `quality` measures it; all None where it could not."""

    frechet_distance: float | None = None
    frechet_distance_of_real: float | None = None
    frechet_images: int | None = None


_KINDS: dict[str, type[GeneratorsRecord]] = {
    "none": GeneratorsRecord,
    "train": TrainedGenerators,
    "function": OwnGenerators,
}


def read_record(directory: Path) -> GeneratorsRecord:
    """Read the record of the stage in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path, what = directory / GENERATORS_JSON, "what the stage `generators` wrote"
    content = read_json(path)
    source = fitting(GeneratorsRecord, content, str(path), what).source
    return fitting(_KINDS[source], content, str(path), what)


def read_quality(directory: Path) -> Quality:
    """Read the quality of the models in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / QUALITY_JSON
    return fitting(Quality, read_json(path), str(path), "the quality of generators")
