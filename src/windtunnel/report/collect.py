"""What can be read of a reports directory. A missing, damaged or older file costs its part of the report, and a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from PIL import Image, UnidentifiedImageError

from windtunnel.core.artifacts import Artifacts, read_artifacts
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import METADATA_FILE, read_json
from windtunnel.report.model import Figure

# What the report reads of every metadata.json, of the summary's, and of each layer of the sandwich.
_OF_ALL = ("assessment_kind", "algorithm", "library", "semantics", "kwargs", "provenance")
_OF_SUMMARY = ("sandwich", "n_samples", "clean_accuracy")
_OF_LAYER = ("norm", "epsilon", "n", "n_attacked", "n_examined")


@dataclass(frozen=True, slots=True)
class Found:
    """What could be read, and a line for each thing that could not."""

    clean: Artifacts | None
    summary: Artifacts | None
    sanity: Mapping[str, Json] | None
    assessments: tuple[Artifacts, ...]
    problems: tuple[str, ...]


def collect(reports: Path, names: Iterable[str] | None = None) -> Found:
    """Read reports/. `names`: the assessments to show, in order; all there are where absent."""
    problems: list[str] = []

    def read(directory: Path, what: str) -> Artifacts | None:
        try:
            found = read_artifacts(directory)
            _check_metadata(found)
        except UserError as error:
            # The report goes to others: where it was built is none of their business.
            problems.append(f"{what} is missing from this report: {str(error).replace(f'{reports}/', '')}")
            return None
        return found

    robustness = reports / "robustness"
    wanted = list(names) if names is not None else sorted(p.parent.name for p in robustness.glob(f"*/{METADATA_FILE}"))
    clean = read(robustness / "clean", "The clean evaluation")
    summary = read(reports / "summary", "The summary")
    if summary is not None and (lack := _lacking_in_summary(summary)):
        problems.append(f"The summary is missing from this report: its metadata lacks {lack}, as of another version")
        summary = None
    found = [read(robustness / name, f"Assessment {name}") for name in wanted if name != "clean"]
    sanity = _sanity(reports / "sanity" / METADATA_FILE, problems)
    return Found(clean, summary, sanity, tuple(a for a in found if a is not None), tuple(problems))


def figures_of(artifacts: Artifacts) -> tuple[Figure, ...]:
    """The pictures that metadata.json lists, those of them that are pictures in the assessment's own directory."""
    rows = cast(list[Mapping[str, Json]], artifacts.metadata.get("visualisers", []))
    found = []
    for row in rows:
        path = artifacts.directory / Path(str(row["file"])).name
        if path.suffix == ".png" and _is_picture(path):
            found.append(Figure(path, f"{artifacts.name}: {row.get('title') or row['name']}"))
    return tuple(found)


def _is_picture(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.verify()
    except (OSError, SyntaxError, UnidentifiedImageError):  # Pillow raises SyntaxError for a broken PNG
        return False
    return True


def _check_metadata(artifacts: Artifacts) -> None:
    missing = [key for key in _OF_ALL if key not in artifacts.metadata]
    semantics = artifacts.metadata.get("semantics")
    if not missing and not (isinstance(semantics, dict) and isinstance(semantics.get("perturbation"), dict)):
        missing = ["semantics.perturbation"]
    if missing:
        raise UserError(f"{artifacts.directory / METADATA_FILE}: lacks {', '.join(missing)}, as of another version")


def _lacking_in_summary(summary: Artifacts) -> str:
    """What the report needs of the summary's metadata and does not find there, in words; empty for nothing."""
    missing = [key for key in _OF_SUMMARY if key not in summary.metrics]
    kwargs = summary.metadata["kwargs"]
    missing += [k for k in ("hard_failures", "assessments") if not (isinstance(kwargs, dict) and k in kwargs)]
    layers = summary.metrics.get("sandwich")
    if not isinstance(layers, list) or not layers:
        missing.append("a layer of the sandwich")
    else:
        missing += [key for key in _OF_LAYER if not all(isinstance(row, dict) and key in row for row in layers)]
    return ", ".join(dict.fromkeys(missing))


def _sanity(path: Path, problems: list[str]) -> Mapping[str, Json] | None:
    if not path.is_file():
        problems.append("No sanity checks ran: nothing here vouches for the evaluation itself.")
        return None
    try:
        content = read_json(path)
    except UserError as error:
        problems.append(f"The sanity checks are missing from this report: {path.name}: {error}")
        return None
    if not isinstance(content, dict) or not isinstance(content.get("kwargs"), dict):
        problems.append("The sanity checks are missing from this report: their metadata is of another version")
        return None
    return content
