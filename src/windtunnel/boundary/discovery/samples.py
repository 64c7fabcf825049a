"""Data that can be assessed on: folders of images by class, arrays and idx files, and which of them are meant for tests."""

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from windtunnel.boundary.data.sources import (
    IMAGE_FORMATS,
    channels_first,
    idx_header,
    image_files,
    npy_header,
    without_x,
)
from windtunnel.boundary.discovery.walk import Files, files_below, maker, read_or_skip
from windtunnel.boundary.files import open_file
from windtunnel.core.errors import UserError
from windtunnel.core.references import first_line

_COUNTED = 1_000  # images of a folder
_TESTS = ("test", "tests", "testing", "t10k", "val", "valid", "validation", "eval")
_TRAINS = ("train", "training")
# What the file of labels is called beside one of samples: x_test.npy and y_test.npy, test_images.npy and test_labels.npy.
_LABELS = {"x": ("y",), **dict.fromkeys(("images", "inputs", "data", "features"), ("labels", "targets", "y"))}


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """One candidate. source: as `data.source`. train: the training split beside it. labels: their files, for idx.

    samples, classes: how many (images in folders: counted to 1,000), None where that is not known.
    side, channels: of the first image; side is None where images differ in size.
    """

    path: Path
    source: str
    made_by: str = ""
    train: Path | None = None
    labels: tuple[Path, Path | None] | None = None
    classes: int | None = None
    side: tuple[int, int] | None = None
    channels: int | None = None
    samples: int | None = None


def candidates(root: Path, files: Files, makers: Mapping[Path, str]) -> list[SampleFiles]:
    """Return candidate data sets: test splits first, folders before arrays."""
    all_candidates = [
        *_folders(root, files.image_folders, makers),
        *_idx(root, files.arrays, makers),
        *_npz(root, files.arrays, makers),
        *_npy(root, files.arrays, makers),
    ]
    return sorted((candidate for candidate in all_candidates if not _is_train(candidate, all_candidates)), key=_rank)


def look_at(root: Path, path: Path, makers: Mapping[Path, str]) -> SampleFiles:
    """Identify the data at a path that the user names by its content; a folder of images where nothing is there yet.

    Raises UserError for an .npz that is there and has no `x`, by which no run could begin.
    """
    if path.suffix == ".npz":
        try:
            if (root / path).exists() and "x" not in (names := _arrays(root / path)):
                raise UserError(f"init: --data {path}: {without_x(names)}")
            return _array(root, path, makers)
        except UserError:
            raise
        except Exception as error:  # zipfile and numpy raise many kinds for a damaged file
            raise UserError(f"init: --data {path}: not an .npz of plain arrays ({first_line(error)})") from error
    if "idx3-ubyte" in path.name:
        return next(_idx(root, [path], makers))
    if path.suffix == ".npy":
        beside = [path.with_name(other.name) for other in (root / path).parent.glob("*.npy")]
        pairs = (pair for pair in _npy(root, beside, makers) if pair.path == path)
        return next(pairs, SampleFiles(path, "npy", maker(path, makers)))
    below = files_below(root / path, Path("-")).image_folders if (root / path).is_dir() else {}
    inside = {path / folder: path / image for folder, image in below.items() if len(folder.parts) == 1}
    return next(_folders(root, inside, makers), SampleFiles(path, "folder", maker(path, makers)))


def _folders(root: Path, images: Mapping[Path, Path], makers: Mapping[Path, str]) -> Iterator[SampleFiles]:
    classes: dict[Path, list[Path]] = {}
    for folder in images:
        if folder != Path():
            classes.setdefault(folder.parent, []).append(folder)
    for folder, members in classes.items():
        if len(members) > 1:
            shapes = [read_or_skip(images[m], lambda path: _shape(root / path)) or (None, None) for m in members]
            train = next((other for other in classes if other.parent == folder.parent and other.name in _TRAINS), None)
            other = train if train != folder else None
            size, channels = shapes[0]
            size = size if all(shape[0] == size for shape in shapes) else None
            n = read_or_skip(folder, lambda path: sum(1 for _ in islice(image_files(root / path), _COUNTED)))
            yield SampleFiles(folder, "folder", maker(folder, makers), other, None, len(members), size, channels, n)


def _idx(root: Path, arrays: Iterable[Path], makers: Mapping[Path, str]) -> Iterator[SampleFiles]:
    of_images = [path for path in arrays if "idx3-ubyte" in path.name]
    for path in of_images:
        train = _train_beside(path, of_images)
        pair = (_labels(path), _labels(train) if train else None)
        shape = read_or_skip(path, lambda path: _idx_shape(root / path)) or ()
        yield replace(_of_shape(path, "idx", makers, shape), train=train, labels=pair, channels=1)


def _idx_shape(path: Path) -> tuple[int, ...]:
    """Return the shape by the file's header; () if the file does not exist yet."""
    if not path.exists():
        return ()
    with open_file(path, gunzip=True) as file:
        return tuple(idx_header(file, path))


def _labels(images: Path) -> Path:
    return images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))


def _npz(root: Path, arrays: Iterable[Path], makers: Mapping[Path, str]) -> Iterator[SampleFiles]:
    files = [path for path in arrays if path.suffix == ".npz"]
    archives = [path for path in files if "x" in (read_or_skip(path, lambda path: _arrays(root / path)) or ())]
    for path in archives:
        if candidate := read_or_skip(path, lambda path: _array(root, path, makers)):
            yield replace(candidate, train=_train_beside(path, archives))


def _train_beside(path: Path, files: Iterable[Path]) -> Path | None:
    """Return the training split of the same folder, by its name."""
    return next((p for p in files if p.parent == path.parent and is_training(p) and p != path), None)


def _npy(root: Path, arrays: Iterable[Path], makers: Mapping[Path, str]) -> Iterator[SampleFiles]:
    files = {path for path in arrays if path.suffix == ".npy"}
    for path in sorted(files):
        if labels := _named_alike(path, files, _LABELS):
            train = _named_alike(path, files, dict.fromkeys(_TESTS, _TRAINS))
            pair = (labels, _named_alike(train, files, _LABELS) if train else None)
            shape = read_or_skip(path, lambda path: _npy_shape(root / path)) or ()
            yield replace(_of_shape(path, "npy", makers, shape), train=train, labels=pair)


def _named_alike(path: Path, files: set[Path], replacements: Mapping[str, tuple[str, ...]]) -> Path | None:
    """Return the file beside `path` whose name has one of the `replacements` of a word in its place; None for none."""
    parts = re.split(r"([^a-zA-Z0-9]+)", path.stem)
    for i, part in enumerate(parts):
        for word in replacements.get(part.lower(), ()):
            for written in (word, word.upper(), word.title()):
                other = path.with_stem("".join([*parts[:i], written, *parts[i + 1 :]]))
                if other in files:
                    return other
    return None


def _npy_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of a .npy file by its header alone; () if the file does not exist yet."""
    if not path.exists():
        return ()
    with open_file(path) as file:
        return npy_header(file)[0]


def _array(root: Path, path: Path, makers: Mapping[Path, str]) -> SampleFiles:
    return _of_shape(path, "npz", makers, _shape_of_x(root / path))


def _of_shape(path: Path, source: str, makers: Mapping[Path, str], shape: tuple[int, ...]) -> SampleFiles:
    if len(shape) not in {3, 4}:  # unknown, or no images
        return SampleFiles(path, source, maker(path, makers), samples=next(iter(shape), None))
    channels, height, width = channels_first(shape) if len(shape) == 4 else (1, *shape[1:])
    return SampleFiles(path, source, maker(path, makers), side=(height, width), channels=channels, samples=shape[0])


def _shape_of_x(path: Path) -> tuple[int, ...]:
    """Return the shape of `x` by its header alone; () if the file does not exist yet."""
    if not path.exists():
        return ()
    with open_file(path) as file, zipfile.ZipFile(file) as archive, archive.open("x.npy") as array:
        return npy_header(array)[0]


def _arrays(path: Path) -> list[str]:
    """Return the names of the arrays in an .npz."""
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _shape(image: Path) -> tuple[tuple[int, int] | None, int | None]:
    """Return ((height, width), channels) of an image; the channels are None where they are neither 1 nor 3."""
    from PIL import Image, UnidentifiedImageError

    with open_file(image) as file:
        try:
            opened = Image.open(file, formats=IMAGE_FORMATS)
        except UnidentifiedImageError as error:
            raise UserError("is no image that can be read") from error
        return (opened.height, opened.width), len(opened.getbands()) if len(opened.getbands()) in {1, 3} else None


def _split_of(path: Path) -> str:
    """Return the part of a name that says which split it is: `test` of x_test.npy; empty for none."""
    parts = re.split(r"[^a-z0-9]+", path.name.lower())
    return next((part for part in parts if part in (*_TESTS, *_TRAINS)), "")


def is_training(path: Path) -> bool:
    """Return True if a file or folder is named as the training split."""
    return _split_of(path) in _TRAINS


def _is_train(candidate: SampleFiles, among: Iterable[SampleFiles]) -> bool:
    """Return True if it is the training split of another candidate."""
    return any(other.train == candidate.path for other in among if other is not candidate)


def _rank(candidate: SampleFiles) -> tuple[int, int, int, str]:
    kind = ("folder", "idx", "npz", "npy").index(candidate.source)
    split = _split_of(candidate.path)
    order = _TESTS.index(split) if split in _TESTS else len(_TESTS) + (split in _TRAINS)
    return kind, order, len(candidate.path.parts), candidate.path.as_posix()
