"""Find images that were corrupted elsewhere: `<path>/<corruption>/<severity>/<class>/<file>`, matched to samples by name."""

import functools
from pathlib import Path, PurePosixPath

from windtunnel.boundary.files import IMAGE_SUFFIXES, files_in, path_text
from windtunnel.core.errors import UserError


def corruption_folders(path: str, where: str) -> tuple[str, ...]:
    """Return the names of the corruptions below `path`, sorted. Raises UserError, naming the key `where`, for no such folder."""
    folder = Path(path)
    if not path or not folder.is_dir():
        raise UserError(
            f"{where}: {path_text(path) or '(nothing)'}: no such folder; <corruption>/<severity>/<class>/<file> lie below"
        )
    names = tuple(entry.name for entry in files_in(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(
            f"{where}: {path_text(path)} holds no folders; <corruption>/<severity>/<class>/<file> are needed"
        )
    if odd := next((name for name in names if not name.replace("-", "").replace("_", "").isalnum()), None):
        raise UserError(f"{where}: {odd!a} is no name of a corruption; letters, digits, - and _ make one")
    return names


def corrupted_file(path: str, corruption: str, severity: int, sample: str, class_name: str) -> Path:
    """Return the file of a sample under a corruption.

    Names are compared without their suffixes: with the class folder where the id of the sample has one, else by the name alone.

    Raises:
        UserError: for a missing folder, for a sample without a file or with several, and for a file in the folder of
            another class.
    """
    place_text = f"{path_text(path)}/{corruption}/{severity}"
    by_path, by_name = _index(path, corruption, severity)
    stem = _without_suffix(PurePosixPath(sample))
    files = [by_path[stem]] if stem in by_path else by_name.get(stem.name, [])
    if not files:
        raise UserError(f"{place_text}: has no image for sample {sample}; names are those of the assessed samples")
    if len(files) > 1:
        raise UserError(
            f"{place_text}: {len(files)} images are called {stem.name}; give sample {sample} its class folder"
        )
    folder = files[0].parent.name
    if class_name and folder != class_name and folder in _classes(path, corruption, severity, class_name):
        raise UserError(
            f"{place_text}: {files[0].name} lies in folder {folder}, and sample {sample} is of class {class_name}"
        )
    return files[0]


def forget_files() -> None:
    """List folders again from here on: they may have changed since another run in this process."""
    _index.cache_clear()


@functools.lru_cache(maxsize=256)
def _index(path: str, corruption: str, severity: int) -> tuple[dict[PurePosixPath, Path], dict[str, list[Path]]]:
    """Return the images of a corruption by path and by name, both without suffix."""
    folder = Path(path) / corruption / str(severity)
    if not folder.is_dir():
        raise UserError(f"{path_text(folder)}: no such folder; severities: leaves out what is not there")
    by_path: dict[PurePosixPath, Path] = {}
    by_name: dict[str, list[Path]] = {}
    for file in files_in(folder, "**/*"):
        if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file():
            by_path[_without_suffix(PurePosixPath(file.relative_to(folder).as_posix()))] = file
            by_name.setdefault(file.stem, []).append(file)
    return by_path, by_name


def _classes(path: str, corruption: str, severity: int, class_name: str) -> frozenset[str]:
    """Return the class folders where that of `class_name` is among them; none where folders are named otherwise."""
    by_path, _ = _index(path, corruption, severity)
    names = frozenset(relative.parent.name for relative in by_path)
    return names if class_name in names else frozenset()


def _without_suffix(path: PurePosixPath) -> PurePosixPath:
    return path.with_suffix("") if path.suffix.lower() in IMAGE_SUFFIXES else path
