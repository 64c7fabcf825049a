"""Search a repository for weights, data, code and DVC stages: bounded, opens only dvc.yaml, stays inside and out of folders of tools."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from windtunnel.boundary.files import IMAGE_SUFFIXES, is_file, path_text
from windtunnel.boundary.text import read_yaml
from windtunnel.core.errors import UserError
from windtunnel.core.references import first_line, repository

WEIGHTS = {
    ".pt": "state_dict",
    ".pth": "state_dict",
    ".th": "state_dict",
    ".ckpt": "state_dict",
    ".safetensors": "state_dict",
    ".pt2": "export",
    ".onnx": "onnx",
    ".tflite": "tflite",
}


def kind_of_weights(path: Path) -> str | None:
    """Return the `model.source` of a file of weights by its name, as of net.onnx and model_best.pth.tar; None for another file."""
    return WEIGHTS.get(Path(path.name.lower().removesuffix(".tar")).suffix)


_DEEPEST, _MOST_FOLDERS = 6, 5_000
_NOT_ENTERED = frozenset(
    "__pycache__ build champion dist env mlartifacts mlruns node_modules site-packages venv wandb".split()
)
# What marks a virtual environment, and another project of init's, whose results are nobody's data.
_NOT_OURS = frozenset({"pyvenv.cfg", ".windtunnel.json"})


@dataclass(slots=True)
class Files:
    """Paths below one folder, relative to it, sorted.

    pretrained: folders with a config.json, as transformers' save_pretrained writes it. image_folders: those that hold images
    themselves, with the first of them.
    """

    weights: list[Path] = field(default_factory=list)
    arrays: list[Path] = field(default_factory=list)
    code: list[Path] = field(default_factory=list)
    dvc: list[Path] = field(default_factory=list)
    pretrained: list[Path] = field(default_factory=list)
    image_folders: dict[Path, Path] = field(default_factory=dict)


def files_below(root: Path, without: Path) -> Files:
    """Return the files below `root` that are not below `without`."""
    listing = Files()
    for number, (folder, names) in enumerate(_folders(root, Path(), without, 0)):
        if number == _MOST_FOLDERS:
            break
        for name in names:
            _sort_in(listing, folder, name)
    return listing


def _sort_in(files: Files, folder: Path, name: str) -> None:
    path = folder / name
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        files.image_folders.setdefault(folder, path)
    elif kind_of_weights(path):
        files.weights.append(path)
    elif suffix in {".npz", ".npy"} or "idx3-ubyte" in name:
        files.arrays.append(path)
    elif suffix == ".py":
        files.code.append(path)
    elif name == "config.json":
        files.pretrained.append(folder)
    elif name == "dvc.yaml":
        files.dvc.append(path)


def _folders(root: Path, folder: Path, without: Path, depth: int) -> Iterator[tuple[Path, list[str]]]:
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError as error:  # a folder that may not be read
        skip(folder, str(error.strerror).lower())
        return
    if any(entry.name in _NOT_OURS for entry in entries):
        return
    visible = [entry.name for entry in entries if not entry.name.startswith(".")]
    yield folder, [name for name in visible if _is_usable(root, folder / name)]
    if depth == _DEEPEST:
        return
    for entry in entries:
        below, name = folder / entry.name, entry.name
        if (
            not name.startswith(".")
            and name.isprintable()
            and name not in _NOT_ENTERED
            and below != without
            and entry.is_dir(follow_symlinks=False)
        ):
            yield from _folders(root, below, without, depth + 1)


def _is_usable(root: Path, path: Path) -> bool:
    """Return True for a regular file of the repository; links that lead out of it are skipped, as are odd names."""
    full = root / path
    if full.is_symlink():
        try:
            inside = full.resolve(strict=True).is_relative_to((repository(root) or root).resolve())
        except (OSError, RuntimeError):
            skip(path, "is a link that leads nowhere")
            return False
        if not inside and not full.is_dir():
            skip(path, "is a link that leads out of the repository; name it with --model or --data")
            return False
    if not is_file(full):
        return False
    if not path.name.isprintable():
        skip(path, "its name is no text in UTF-8, or not printable")
        return False
    return True


T = TypeVar("T")
_MAX_LINES = 20
_skipped: dict[Path, str] = {}


def skip(path: Path, reason: str) -> None:
    """Print one line for a file that is not used, once for each file and for the first of many alone."""
    if path in _skipped:
        return
    _skipped[path] = reason
    if len(_skipped) <= _MAX_LINES:
        print(f"windtunnel: init: skipped {path_text(path)}: {reason}", file=sys.stderr)
    elif len(_skipped) == _MAX_LINES + 1:
        print("windtunnel: init: skipped further files that cannot be read", file=sys.stderr)


def read_or_skip(path: Path, read: Callable[[Path], T]) -> T | None:
    """Return `read(path)`; skip the file and return None where that raises, whatever it is."""
    try:
        return read(path)
    except Exception as error:  # parsers of zip, PNG, protobuf, pickle and YAML raise what they like for damaged files
        skip(path, first_line(error).rpartition(f"{path_text(path)}: ")[2])
        return None


def outputs(root: Path, files: Iterable[Path]) -> dict[Path, str]:
    """Return the outputs of the stages of dvc.yaml files: path relative to `root` -> name of the stage.

    Outputs whose path is a template of DVC's are left out; a file that is no YAML makes nothing.
    """
    return {path: label for file in files for path, label in read_or_skip(file, partial(_outputs, root)) or []}


def _outputs(root: Path, file: Path) -> list[tuple[Path, str]]:
    content = read_yaml(root / file, fast=True)  # there may be thousands
    stages = content.get("stages") if isinstance(content, Mapping) else None
    if stages is not None and not isinstance(stages, Mapping):
        raise UserError(f"stages: is a {type(stages).__name__}, no map of stages")
    return [
        (
            Path(os.path.normpath(file.parent / _folder(stage) / path)),
            str(name) if file.parent == Path() else f"{file.as_posix()}:{name}",
        )
        for name, stage in (stages or {}).items()
        for path in _outs(stage)
    ]


def maker(path: Path, makers: Mapping[Path, str]) -> str:
    """Return the stage that makes `path`, or a folder that it is in; empty where none does."""
    return next((makers[folder] for folder in (path, *path.parents) if folder in makers), "")


def _folder(stage: object) -> str:
    folder = stage.get("wdir", "") if isinstance(stage, Mapping) else ""
    return "" if "${" in str(folder) else str(folder)


def _outs(stage: object) -> list[str]:
    rows = stage.get("outs") if isinstance(stage, Mapping) else None
    listed = rows if isinstance(rows, list) else []
    paths = [next(iter(row), None) if isinstance(row, Mapping) else row for row in listed]
    return [path for path in paths if isinstance(path, str) and "${" not in path and path.isprintable()]
