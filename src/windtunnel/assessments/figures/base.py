"""Figures of assessments: a visualiser is a dataclass whose fields are its options, and one `draw`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, TypeVar

from windtunnel.assessments.figures.scene import ramp
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.records.files import plain_json, replacing
from windtunnel.records.metadata import FigureRecord

if TYPE_CHECKING:  # torch is slow to import, and params only need the names
    from windtunnel.assessments.figures.pictures import PictureGrid
    from windtunnel.assessments.figures.scene import Scene
    from windtunnel.records.artifacts import Artifacts

Drawing: TypeAlias = "Scene | PictureGrid"
Spec = str | Mapping[str, Mapping[str, object]]


class NothingToDraw(Exception):
    """The artifacts lack the data of a figure; the text is a sentence for the reader."""


@dataclass(frozen=True)
class Visualiser(ABC):
    """Describes one kind of figure of the artifacts of one assessment: once, for its PNG and for the report.

    kinds, families: the assessment kinds, and of them the families of params.yaml, that it can draw (empty: any family); a
    mismatch is refused when params are read.
    scope: `per_sample` where rows are samples, `assessor` where the figure is about the whole assessment.
    embeds_clean_input, embeds_perturbation_map: whether the figure repeats that facet of a sample, so that a compact
    report can show it once.
    essential: whether the report's section on the family shows it; the others are for who searches.
    needs: a key of robustness_data.pt without which there is nothing to draw, and the sentence that says so.

    These are class variables, or arguments of the class: `class MyVisualiser(Visualiser, kinds=..., title="...")`.
    """

    kinds: ClassVar[frozenset[AssessmentKind]]
    families: ClassVar[frozenset[str]] = frozenset()
    scope: ClassVar[Literal["per_sample", "assessor"]] = "assessor"
    embeds_clean_input: ClassVar[bool] = False
    embeds_perturbation_map: ClassVar[bool] = False
    essential: ClassVar[bool] = False
    needs: ClassVar[tuple[str, str] | None] = None
    title: ClassVar[str] = ""

    def __init_subclass__(cls, **facts: object) -> None:
        for name, value in facts.items():
            if name not in Visualiser.__annotations__:
                raise TypeError(f"{cls.__name__}: '{name}' is no class variable of a visualiser")
            setattr(cls, name, value)

    @abstractmethod
    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Charts and grids of pictures, in their order. Raises NothingToDraw if the artifacts lack their data."""


VISUALISERS: dict[str, type[Visualiser]] = {}
V = TypeVar("V", bound=type[Visualiser])


def register(visualiser: V) -> V:
    """Class decorator: make a visualiser known by its class name. Raises ValueError for a name that another module has."""
    registered = VISUALISERS.get(visualiser.__name__)
    if registered is not None and registered.__module__ != visualiser.__module__:
        raise ValueError(
            f"visualiser {visualiser.__name__} of {visualiser.__module__} is taken by {registered.__module__}"
        )
    VISUALISERS[visualiser.__name__] = visualiser
    return visualiser


def parse_spec(spec: Spec) -> tuple[str, dict[str, object]]:
    """(name, options) of an entry of `visualisers:`, which is a name or {name: {option: value}}."""
    if isinstance(spec, str):
        return spec, {}
    ((name, options),) = spec.items()
    return name, dict(options or {})


def make_visualiser(spec: Spec, kind: AssessmentKind, family: str, where: str) -> Visualiser:
    """Build a visualiser. Raises UserError for an unknown name or option, or one that cannot draw this kind or family."""
    name, options = parse_spec(spec)
    if name not in VISUALISERS:
        raise UserError(unknown_word(where, name, sorted(VISUALISERS), what="a visualiser"))
    cls = VISUALISERS[name]
    if not _draws(cls, kind, family):
        fitting = sorted(n for n, v in VISUALISERS.items() if _draws(v, kind, family))
        results = (
            f"{kind.value} results"
            if kind not in cls.kinds
            else f"results of {family}, but of {', '.join(sorted(cls.families))}"
        )
        raise UserError(f"{where}: {name} does not draw {results}. Those that do: {', '.join(fitting)}")
    field_names = [f.name for f in fields(cls)]
    for option in options:
        if option not in field_names:
            raise UserError(unknown_word(f"{where}.{name}", option, field_names, what=f"an option of {name}"))
    try:
        if "cmap" in options:
            ramp(str(options["cmap"]))
        return cls(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}.{name}: {error}") from error


def _draws(visualiser: type[Visualiser], kind: AssessmentKind, family: str) -> bool:
    return kind in visualiser.kinds and (not visualiser.families or family in visualiser.families)


def draw_figures(artifacts: Artifacts, visualisers: Sequence[Visualiser]) -> list[Path]:
    """Draw the figures of an assessment that is on disk, and list them in its metadata; their files."""
    from windtunnel.records.artifacts import write_metadata

    figures = save_figures(artifacts, visualisers)
    write_metadata(artifacts, figures)
    return [artifacts.directory / figure.file for figure in figures]


def save_figures(artifacts: Artifacts, visualisers: Sequence[Visualiser]) -> list[FigureRecord]:
    """Save figures as `<VisualiserClassName>_<index>.png` in the assessment's directory; return their metadata.

    They show the stored result without run times, so equal results have equal figures.
    """
    from windtunnel.assessments.figures.paint import paint
    from windtunnel.records.artifacts import without_run_times

    artifacts = replace(artifacts, data=without_run_times(artifacts.data))
    rows: list[FigureRecord] = []
    for index, visualiser in enumerate(visualisers):
        path = artifacts.directory / f"{type(visualiser).__name__}_{index}.png"
        drawings, empty = drawn(visualiser, artifacts)
        with replacing(path) as temporary:
            paint(f"{artifacts.name}: {visualiser.title}", drawings, temporary, empty)
        rows.append(recorded(visualiser, path, empty))
    return rows


def drawn(visualiser: Visualiser, artifacts: Artifacts) -> tuple[Sequence[Drawing], str]:
    """Return the marks that a visualiser draws, or the reason why there are none: one of the two is empty."""
    from windtunnel.assessments.figures.pictures import NO_PICTURES, PictureGrid, picture_mode

    try:
        if visualiser.needs and visualiser.needs[0] not in artifacts.data:
            raise NothingToDraw(visualiser.needs[1])
        drawings = visualiser.draw(artifacts)
        if picture_mode() == "none":
            drawings = [drawing for drawing in drawings if not isinstance(drawing, PictureGrid)]
        return drawings, "" if drawings else NO_PICTURES
    except NothingToDraw as why:
        return (), str(why)


def recorded(visualiser: Visualiser, path: Path, empty: str) -> FigureRecord:
    """Return the record of a figure in metadata.json: its options that are not the defaults, and `empty`, why nothing was drawn."""
    changed = {f.name: v for f in fields(visualiser) if (v := getattr(visualiser, f.name)) != f.default}
    return FigureRecord(
        name=type(visualiser).__name__,
        file=path.name,
        scope=visualiser.scope,
        title=visualiser.title,
        options={name: plain_json(v) for name, v in changed.items() if _is_option(v)},
        embeds_clean_input=visualiser.embeds_clean_input,
        embeds_perturbation_map=visualiser.embeds_perturbation_map,
        empty=empty,
    )


def _is_option(value: object) -> bool:
    """Return True if a field is an option of params.yaml, not data that a stage passes to the figure."""
    values = value if isinstance(value, tuple | list) else (value,)
    return all(v is None or isinstance(v, bool | int | float | str) for v in values)
