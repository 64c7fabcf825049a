"""Sources of samples. Each source returns raw arrays, which are then prepared in the same way."""

import csv
import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
import psutil
from numpy.typing import NDArray
from PIL import ExifTags, Image

from windtunnel.boundary.files import IMAGE_SUFFIXES, open_file, path_text, read_text
from windtunnel.boundary.limits import bounded
from windtunnel.core import scratch
from windtunnel.core.contracts import Json
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError, shown
from windtunnel.core.references import first_line, foreign_errors, resolve
from windtunnel.params.data import Data
from windtunnel.registry.plugins import load_plugin

_LABELS_BYTES = 2**28  # of a CSV of labels: some million lines
# PIL goes by the content of a file, not by its name, and would start Ghostscript for one that is PostScript.
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")
# Pictures of more than 8 bits a channel: PIL clips them when it converts them.
_DEEP_MODES = {"I", "F", "I;16", "I;16B", "I;16L"}


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files that are read on access: 50,000 photographs do not fit in memory, 200 of them do.

    channels, resize, crop: as in `data`; files are cropped and resized one by one because they may differ in size.
    """

    files: Sequence[Path]
    channels: int | None = None
    resize: tuple[int, int] | None = None
    key: str = "data.path"
    crop: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def pictures(self, indices: np.ndarray) -> Iterator[Image.Image]:
        """Return the pictures at `indices` (int64), in grey or colour according to `channels`. Raises UserError for an unreadable one."""
        return (_picture(self.files[i], self.channels) for i in indices.tolist())

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Return the images at `indices` (int64), uint8 (n, C, H, W). UserError where one cannot be read, or sizes differ."""
        return self.like(int(indices[0]), indices)

    def like(self, first: int, indices: np.ndarray) -> np.ndarray:
        """Read the images at `indices`, which must have the size of the image at `first`."""
        first_image = _image(self.files[first], self.channels, self.resize, crop=self.crop)
        images = np.empty((len(indices), *first_image.shape), np.uint8)
        for row, index in enumerate(indices.tolist()):
            image = (
                first_image if index == first else _image(self.files[index], self.channels, self.resize, crop=self.crop)
            )
            if image.shape != first_image.shape:
                raise UserError(
                    f"{self.key}: {self.files[first].name} is {_size(first_image)}, {self.files[index].name} is {_size(image)}; "
                    f"set data.resize (and data.channels) to make them alike"
                )
            images[row] = image
        return images


def middle(have: tuple[int, int], size: tuple[int, int] | None) -> tuple[slice, slice]:
    """(rows, columns) of the largest part in the middle of an image of `have` (height, width) that has the shape of `size`.

    A square where nothing is wanted. An odd pixel more is left out below and on the right.
    """
    ratio = 1.0 if size is None else size[0] / size[1]
    height, width = min(have[0], round(have[1] * ratio)), min(have[1], round(have[0] / ratio))
    first_row, first_column = (have[0] - height) // 2, (have[1] - width) // 2
    return slice(first_row, first_row + height), slice(first_column, first_column + width)


def _size(image: np.ndarray) -> str:
    return "x".join(map(str, image.shape))


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw samples of a source.

    inputs: (N, H, W), (N, C, H, W) or (N, F), any number type; labels: (N,) integers from 0 or class names, or None
    where there are none. ids: N names. value_range: what the source's values span.
    """

    inputs: np.ndarray | ImageFiles
    labels: np.ndarray | None
    ids: Sequence[str]
    value_range: tuple[float, float]
    class_names: Sequence[str] | None = None


def load_digits(data: Data, seed: int) -> tuple[Raw, Raw | None]:
    """scikit-learn's digits: 1,797 real 8x8 scans, values 0 to 16; a stratified share held out of training."""
    images, labels = digits()
    try:
        train, test = stratified_split(labels, data.test_fraction, seed % 2**32)
    except ValueError as error:  # a share so small, or so large, that a class would have no sample
        raise UserError(
            f"data.test_fraction: {data.test_fraction:g} leaves a class without a sample ({error})"
        ) from error

    def part(indices: np.ndarray) -> Raw:
        names = [f"digit-{i:04d}" for i in indices]
        return Raw(images[indices], labels[indices], names, (0.0, 16.0), [str(i) for i in range(10)])

    return part(test), part(train)


def _npz(data: Data, split: str) -> Raw:
    """Return an .npz with `x` (N, ...) and optionally `y` (N,), `ids` (N,), `class_names` (K,)."""
    path = _file(data, f"{split}path")
    with (
        foreign_errors(lambda e: f"{path}: not an .npz of plain arrays ({first_line(e)})"),
        np.load(path, allow_pickle=False) as archive,
    ):
        _check_headers(path, archive)
        arrays = {key: _mapped(path, archive, key) for key in archive.files}
    if "x" not in arrays:
        raise UserError(f"{path}: {without_x(arrays)}")
    x = _samples(arrays["x"])
    ids = [str(i) for i in arrays["ids"]] if "ids" in arrays else _numbered(len(x))
    names = [str(n) for n in arrays["class_names"]] if "class_names" in arrays else None
    return Raw(x, arrays.get("y"), ids, _natural_range(x), names)


def _mapped(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    """Return an array of an .npz; a large one that is not compressed (`np.savez`) stays on disk until it is used."""
    assert archive.zip is not None
    info = archive.zip.NameToInfo.get(f"{key}.npy")
    if info is None or info.compress_type != zipfile.ZIP_STORED or info.file_size < scratch.LARGE:
        array: np.ndarray = archive[key]
        return array
    with archive.zip.open(info) as file:
        shape, by_columns, dtype = npy_header(file)
        header = file.tell()
        while file.read(2**20):  # against its checksum
            pass
    with path.open("rb") as raw_file:
        # Its own header in the archive: 30 bytes, of which the last four say how long name and extra field are.
        raw_file.seek(info.header_offset + 26)
        before = info.header_offset + 30 + sum(struct.unpack("<HH", raw_file.read(4)))
    return np.memmap(path, dtype, "r", before + header, shape, "F" if by_columns else "C")


def _check_headers(path: Path, archive: np.lib.npyio.NpzFile) -> None:
    """Raise UserError if a header declares more data than the file or the memory holds; numpy would trust it."""
    assert archive.zip is not None
    for info in archive.zip.infolist():
        with archive.zip.open(info) as file:
            shape, _, dtype = npy_header(file)
            stored_bytes = info.file_size - file.tell()
        claimed = math.prod(shape) * dtype.itemsize
        if claimed != stored_bytes and not dtype.hasobject:
            raise ValueError(f"{info.filename} says it has {claimed} bytes, and the file holds {stored_bytes}")
        if info.compress_type != zipfile.ZIP_STORED:  # else it is mapped
            _check_free(path, claimed)


def _check_free(path: Path, size: int) -> None:
    free = psutil.virtual_memory().available
    if size > free / 2:
        raise UserError(f"{path}: needs {size / 1e9:.0f} GB of memory, and {free / 1e9:.0f} GB are free")


def _pair(read: Callable[[Path], np.ndarray], data: Data, split: str) -> Raw:
    """Return the samples (N, ...) of one file, and the labels (N,) of another where `labels` names one."""
    x, key = _samples(read(_file(data, f"{split}path"))), f"{split}labels"
    labels = None if getattr(data, key) in (None, "none") else read(_file(data, key))
    return Raw(x, labels, _numbered(len(x)), _natural_range(x))


def _read_npy(path: Path) -> np.ndarray:
    """Return the array of a .npy file, which stays on disk until it is used."""
    with foreign_errors(lambda e: f"{path}: not a .npy of a plain array ({first_line(e)})"):
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        return array


def read_idx(path: Path) -> np.ndarray:
    """Return a file as of MNIST, gzipped or not: unsigned bytes as an array."""
    try:
        with open_file(path, gunzip=True) as file:
            shape = idx_header(file, path)
            size, is_packed = math.prod(shape), path.suffix.lower() == ".gz"
            if size and not is_packed and path.stat().st_size - file.tell() == size:
                return np.memmap(path, np.uint8, "r", file.tell(), shape)
            _check_free(path, size)
            content = file.read(size + 1)  # the header may lie, and gzip unpacks to a thousand times its size
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    if len(content) != size:
        amount = f"more than {size}" if len(content) > size else str(len(content))
        raise UserError(f"{path}: holds {amount} values, its header says {'x'.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def image_files(folder: Path) -> Iterator[Path]:
    """Yield the images below a folder but for hidden ones, of systems and editors: macOS's ._photo.png, .ipynb_checkpoints."""
    images = (f for f in folder.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    return (f for f in images if not any(part.startswith(".") for part in f.relative_to(folder).parts))


def _folder(data: Data, split: str) -> Raw:
    """Return a folder of images: one subfolder a class, or `labels` a CSV of file,label, or `labels: none`."""
    key, labels_key = f"data.{split}path", f"{split}labels"
    path, labels = getattr(data, f"{split}path"), getattr(data, labels_key)
    folder = Path(path or "")
    if path is None or not folder.is_dir():
        raise UserError(f"{key}: {path or '(nothing)'}: no such folder")
    files = sorted(image_files(folder))
    if not files:
        raise UserError(f"{key}: {folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    if odd := [file for file in files if not file.is_file()]:  # a pipe would be waited for
        raise UserError(f"{key}: {shown(str(odd[0]))} is no file; a link that leads nowhere, a directory or a pipe")
    names = [file.relative_to(folder).as_posix() for file in files]
    if odd_names := [name for name in names if not name.isprintable()]:
        raise UserError(f"{key}: {odd_names[0]!a} is a file name that is no UTF-8, or not printable; rename it")
    class_of_file = None
    if labels not in {None, "none"}:
        class_of_file = _csv_labels(_file(data, labels_key), names, f"data.{labels_key}")
    elif labels is None:
        if loose := [name for name in names if "/" not in name]:
            raise UserError(
                f"{key}: {loose[0]} is in no class folder of {folder}; give data.{labels_key} a CSV of "
                f"file,label, or 'none'"
            )
        class_of_file = [name.split("/")[0] for name in names]
    pixels = ImageFiles(files, data.channels, data.size, key, crop=data.crop is not None)
    return Raw(pixels, None if class_of_file is None else np.array(class_of_file), names, (0.0, 255.0))


def _csv_labels(path: Path, names: Sequence[str], key: str) -> list[str]:
    try:
        text = io.StringIO(read_text(path, where=key, max_bytes=_LABELS_BYTES), newline="")
        table = {row[0].strip(): row[1].strip() for row in csv.reader(text) if len(row) >= 2}
    except csv.Error as error:
        raise UserError(f"{key}: {path} is not a CSV ({error})") from error
    if unlabelled := [name for name in names if name not in table]:
        raise UserError(f"{key}: {path} has no line for {unlabelled[0]} (lines are file,label)")
    file_names = set(names)
    if lost := [name for name in table if name not in file_names and Path(name).suffix.lower() in IMAGE_SUFFIXES]:
        raise UserError(f"{key}: {path} names {lost[0]}, which is not in the folder ({len(lost)} such)")
    return [table[name] for name in names]


def _image(path: Path, channels: int | None, resize: tuple[int, int] | None, *, crop: bool) -> np.ndarray:
    picture = _picture(path, channels)
    if crop:
        rows, columns = middle((picture.height, picture.width), resize)
        picture = picture.crop((columns.start, rows.start, columns.stop, rows.stop))
    if resize and (picture.height, picture.width) != resize:
        picture = picture.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def read_corrupted(file: Path, shape: tuple[int, ...], prepared: Mapping[str, Json]) -> np.ndarray:
    """Read an image as uint8 (H, W, C) of `shape`; one of another size is cropped and resized as the samples were.

    Raises UserError for what is no image, and for another size where the samples were not resized.
    """
    height, width, channels = shape
    image = _image(file, channels, None, crop=False)
    if image.shape[1:] != (height, width):
        if "resize" not in prepared and "crop" not in prepared:
            raise UserError(
                f"{path_text(file)}: is {image.shape[1]}x{image.shape[2]}, and the assessed images are {height}x{width}"
            )
        image = _image(file, channels, (height, width), crop="crop" in prepared)
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def _picture(path: Path, channels: int | None) -> Image.Image:
    with (
        foreign_errors(lambda e: f"{path}: not an image that can be read ({first_line(e)})"),
        Image.open(path, formats=IMAGE_FORMATS) as image,
    ):
        if image.mode in _DEEP_MODES:
            raise UserError(f"{path}: has more than 8 bits a channel ({image.mode}); convert it, or give an .npz")
        mode = {1: "L", 3: "RGB"}.get(channels or 0) or ("L" if image.mode in {"1", "L", "LA"} else "RGB")
        return image.convert(mode)


def turned_pictures(data: Data, names: Sequence[str]) -> str:
    """Return the line for pictures (their `names`) that EXIF says to turn, which `data` does not; empty where there are none."""
    folder = Path(data.path or "") if data.source == "folder" else None
    turned = [name for name in names if folder and _orientation(folder / name) != 1]
    if not turned:
        return ""
    return (
        f"data.path: EXIF says to turn {len(turned)} of {len(names)} pictures ({turned[0]}, ...), which is not done, as in torchvision "
        f"and timm; OpenCV and Pillow's exif_transpose do: if the model was trained on turned pictures, store them so"
    )


def _orientation(path: Path) -> int:
    """Return the orientation by EXIF, 1 for upright."""
    with Image.open(path, formats=IMAGE_FORMATS) as image:
        return int(image.getexif().get(ExifTags.Base.Orientation) or 1)


def load_function(data: Data, seed: int) -> tuple[Raw | Dataset, Raw | Dataset | None]:
    """`module:function`, called with data.kwargs: a Dataset, (x, y), or a pair of those (assessed, train)."""
    if data.function is None:
        raise UserError("data.function: is required for source: function (module:function)")
    with bounded(f"data.function: {data.function}", data.time_limit, "data.time_limit"):
        function = resolve(data.function, "data.function")
        data_made = function(**data.kwargs)
    if isinstance(data_made, tuple) and len(data_made) == 2 and isinstance(data_made[0], tuple | Dataset):
        return _from_function(data_made[0], data.function), _from_function(data_made[1], data.function)
    return _from_function(data_made, data.function), None


def _from_function(data_made: object, where: str) -> Raw | Dataset:
    if isinstance(data_made, Dataset):
        return data_made
    if isinstance(data_made, tuple) and len(data_made) == 2:
        with foreign_errors(lambda e: f"data.function: {where} returned what is no array ({first_line(e)})"):
            x, y = map(np.asarray, data_made)  # lists may have different lengths
        x = _samples(x, f"data.function: {where} returned")
        return Raw(x, None if data_made[1] is None else y, _numbered(len(x)), _natural_range(x))
    raise UserError(f"data.function: {where} returned a {type(data_made).__name__}; a Dataset or (x, y) is needed")


def _natural_range(x: np.ndarray) -> tuple[float, float]:
    return (0.0, 255.0) if x.dtype == np.uint8 else (0.0, 1.0)


def channels_are_last(shape: Sequence[int]) -> bool:
    """Return True for images (N, H, W, C) of 1 or 3 channels that cannot be (N, C, H, W)."""
    return len(shape) == 4 and shape[3] in {1, 3} and shape[1] not in {1, 3}


def channels_first(shape: Sequence[int]) -> Sequence[int]:
    """Return (C, H, W) of the shape (N, C, H, W) or (N, H, W, C) of images."""
    return (shape[3], *shape[1:3]) if channels_are_last(shape) else shape[1:]


def _samples(x: np.ndarray, source: str = "data:") -> np.ndarray:
    """Return `x`, images with channels last as (N, C, H, W).

    Raises UserError for an array of no axes, and for any number of samples without values.
    """
    if not x.ndim or (len(x) and not x.size):
        needed = "(N, C, H, W), (N, H, W) or tabular (N, F) is needed"
        raise UserError(f"{source} an array of shape {x.shape} is a single value or none; {needed}")
    return x.transpose(0, 3, 1, 2) if channels_are_last(x.shape) else x


def _numbered(n: int) -> list[str]:
    return [f"{i:05d}" for i in range(n)]


def _file(data: Data, key: str) -> Path:
    path: str | None = getattr(data, key)
    if path is None:
        raise UserError(f"data.{key}: is required for this data.source")
    if not Path(path).is_file():
        raise UserError(f"data.{key}: {path}: no such file")
    return Path(path)


# (params, seed) -> (assessed samples, training split or None)
Source = Callable[[Data, int], "tuple[Raw | Dataset, Raw | Dataset | None]"]


def _of_files(read: Callable[[Data, str], Raw]) -> Source:
    """Return the source that reads the assessed samples and, where `data.train_path` is set, the split whose keys begin so."""
    return lambda data, seed: (read(data, ""), read(data, "train_") if data.train_path else None)


SOURCES: dict[str, Source] = {
    "digits": load_digits,
    "npz": _of_files(_npz),
    "npy": _of_files(partial(_pair, _read_npy)),
    "idx": _of_files(partial(_pair, read_idx)),
    "folder": _of_files(_folder),
    "function": load_function,
}


def source_of(name: str) -> Source:
    """Return the source of this name: one of ours, or of a plug-in of the group `windtunnel.data`."""
    return SOURCES[name] if name in SOURCES else load_plugin("windtunnel.data", name)


_MOST_AXES = 4  # samples, channels, rows, columns
_MOST_VALUES = np.iinfo(np.intp).max  # of a sample: numpy counts no further


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether by columns, type) of an array of numpy's; `file` stands behind the header then. Raises ValueError."""
    from numpy.lib import format as npy

    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype] = read(file)
    return header


def idx_header(file: IO[bytes], path: Path) -> tuple[int, ...]:
    """Return the shape of an idx file of unsigned bytes; `file` stands behind the header then. Raises UserError for another file.

    Source: LeCun's description of the MNIST format.
    """
    start = file.read(4)
    if len(start) < 4 or start[:3] != b"\x00\x00\x08":
        raise UserError(f"{path}: not an idx file of unsigned bytes (it should begin with 00 00 08)")
    if start[3] > _MOST_AXES:
        raise UserError(f"{path}: not an idx file of images or labels (its header says it has {start[3]} axes)")
    header = file.read(4 * start[3])
    if len(header) < 4 * start[3]:
        raise UserError(f"{path}: ends inside its header")
    shape = struct.unpack(f">{start[3]}I", header)
    if not shape or 0 in shape[1:] or math.prod(shape[1:]) > _MOST_VALUES:
        raise UserError(f"{path}: has the shape {shape} in its header, which is a single value or none, or no sample's")
    return shape


def without_x(names: Iterable[str]) -> str:
    """Return why an .npz with these array names is refused, as the end of a sentence."""
    return f"has no array 'x' (it has {', '.join(names) or 'none'}); x is (N, C, H, W), y is (N,)"


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """1,797 scans (N, 8, 8) with values from 0 to 16, and the digit each shows (N,): `sklearn.datasets.load_digits`.

    Read from its file: importing scikit-learn takes longer than all else that `prepare` does.
    Source: Alpaydin and Kaynak 1998, the test set of UCI's optdigits. Raises UserError where scikit-learn has no such file.
    """
    spec = find_spec("sklearn")
    folders = (spec.submodule_search_locations or []) if spec else []
    path = next((Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders), None)
    if path is None or not path.is_file():
        raise UserError("data.source: digits: scikit-learn, which has them, is not installed, or without its data")
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def stratified_split(
    labels: NDArray[np.int64], test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(train, test): ascending indices, the test set with `test_fraction` of each class, as nearly as whole samples allow.

    Draw by draw what scikit-learn's `StratifiedShuffleSplit` does (model_selection/_split.py, BSD-3): the same samples for a seed.
    Raises ValueError where one of the two is smaller than the number of classes.
    """
    _, of_class, counts = np.unique(labels, return_inverse=True, return_counts=True)
    n_test = math.ceil(test_fraction * len(labels))
    n_train = len(labels) - n_test
    if min(n_train, n_test) < len(counts):
        raise ValueError(f"{n_train} and {n_test} samples, for {len(counts)} classes")
    random = np.random.RandomState(seed)
    for_train = _apportioned(counts, n_train, random)
    for_test = _apportioned(counts - for_train, n_test, random)
    members = np.split(np.argsort(of_class, kind="stable"), np.cumsum(counts)[:-1])
    shuffled = [indices[random.permutation(len(indices))] for indices in members]
    train = [indices[:n] for indices, n in zip(shuffled, for_train, strict=True)]
    test = [indices[n : n + m] for indices, n, m in zip(shuffled, for_train, for_test, strict=True)]
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _apportioned(counts: NDArray[np.int64], draws: int, random: np.random.RandomState) -> NDArray[np.int64]:
    """Return how many of `draws` fall to each class: by largest remainder, ties by chance."""
    exact = counts / counts.sum() * draws
    floors = np.floor(exact)
    missing, remainder = int(draws - floors.sum()), exact - floors
    for value in np.unique(remainder)[::-1]:
        if not missing:
            break
        (tied,) = np.nonzero(remainder == value)
        extra = random.choice(tied, size=min(len(tied), missing), replace=False)
        floors[extra] += 1
        missing -= len(extra)
    shares: NDArray[np.int64] = floors.astype(np.int64)
    return shares
