"""Where samples come from. Each source gives raw arrays; what is done to them afterwards is the same for all."""

from __future__ import annotations

import csv
import gzip
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.references import resolve
from windtunnel.params.data import Data

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}


@dataclass(frozen=True, slots=True)
class Raw:
    """Samples as a source holds them.

    inputs: (N, H, W), (N, C, H, W) or (N, F), any number type; labels: (N,) integers, or None where there are none.
    value_range: what the source's values span.
    """

    inputs: np.ndarray
    labels: np.ndarray | None
    ids: Sequence[str]
    value_range: tuple[float, float]
    class_names: Sequence[str] | None = None


def load_digits(data: Data, seed: int) -> tuple[Raw, Raw | None]:
    """scikit-learn's digits: 1,797 real 8x8 scans, values 0 to 16; a stratified share held out of training."""
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    bunch = sklearn_digits()
    order = np.arange(len(bunch.images))
    train, test = train_test_split(order, test_size=data.test_fraction, stratify=bunch.target, random_state=seed % 2**32)

    def part(rows: np.ndarray) -> Raw:
        rows = np.sort(rows)
        names = [f"digit-{row:04d}" for row in rows]
        return Raw(bunch.images[rows], bunch.target[rows], names, (0.0, 16.0), [str(i) for i in range(10)])

    return part(test), part(train)


def load_npz(data: Data, seed: int) -> tuple[Raw, Raw | None]:
    """An .npz with `x` (N, ...) and optionally `y` (N,), `ids` (N,), `class_names` (K,)."""
    assessed = _npz(_file(data.path, "data.path"))
    return assessed, _npz(_file(data.train_path, "data.train_path")) if data.train_path else None


def _npz(path: Path) -> Raw:
    try:
        archive = np.load(path, allow_pickle=False)
        arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: not an .npz of plain arrays ({error})") from error
    if "x" not in arrays:
        raise UserError(f"{path}: has no array 'x' (it has {', '.join(arrays) or 'none'}); x is (N, C, H, W), y is (N,)")
    x = arrays["x"]
    ids = [str(i) for i in arrays["ids"]] if "ids" in arrays else _numbered(len(x))
    names = [str(n) for n in arrays["class_names"]] if "class_names" in arrays else None
    return Raw(x, arrays.get("y"), ids, _natural_range(x), names)


def load_idx(data: Data, seed: int) -> tuple[Raw, Raw | None]:
    """MNIST-style idx files, gzipped or not."""
    assessed = _idx(_file(data.path, "data.path"), data.labels, "data.labels")
    if not data.train_path:
        return assessed, None
    return assessed, _idx(_file(data.train_path, "data.train_path"), data.train_labels, "data.train_labels")


def _idx(path: Path, labels: str | None, key: str) -> Raw:
    images = read_idx(path)
    found = None if labels in (None, "none") else read_idx(_file(labels, key))
    return Raw(images, found, _numbered(len(images)), (0.0, 255.0))


def read_idx(path: Path) -> np.ndarray:
    """An idx file of unsigned bytes as an array. Source: LeCun's description of the MNIST format."""
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    try:
        with opened as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise UserError(f"{path}: not an idx file of unsigned bytes (it should begin with 00 00 08)")
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if values.size != np.prod(shape):
        raise UserError(f"{path}: holds {values.size} values, its header says {'x'.join(map(str, shape))}")
    return values.reshape(shape)


def load_folder(data: Data, seed: int) -> tuple[Raw, Raw | None]:
    """A folder of images: one subfolder a class, or `labels` a CSV of file,label, or `labels: none`."""
    assessed = _folder(data.path, data.labels, "data.path", data.channels)
    train = _folder(data.train_path, data.train_labels, "data.train_path", data.channels) if data.train_path else None
    return assessed, train


def _folder(path: str | None, labels: str | None, key: str, channels: int | None) -> Raw:
    folder = Path(path or "")
    if path is None or not folder.is_dir():
        raise UserError(f"{key}: {path or '(nothing)'}: no such folder")
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise UserError(f"{key}: {folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    names: list[str] | None
    if labels == "none":
        words, names = None, None
    else:
        words = _csv_labels(Path(labels), files, folder) if labels else [f.relative_to(folder).parts[0] for f in files]
        if not labels and any(f.parent == folder for f in files):
            raise UserError(
                f"{key}: {folder} has images outside any class folder; give data.labels a CSV of file,label, or 'none'"
            )
        names = sorted(set(words), key=_numeric_first)
    images = [_image(f, channels) for f in files]
    sizes = sorted({image.shape for image in images})
    if len(sizes) > 1:
        raise UserError(f"{key}: images of {len(sizes)} shapes, {sizes[0]} and {sizes[-1]} among them; set data.resize")
    numbers = np.array([names.index(w) for w in words]) if words is not None and names is not None else None
    return Raw(np.stack(images), numbers, [str(f.relative_to(folder)) for f in files], (0.0, 255.0), names)


def _numeric_first(word: str) -> tuple[int, int, str]:
    return (0, int(word), "") if word.isdecimal() else (1, 0, word)


def _csv_labels(path: Path, files: Sequence[Path], folder: Path) -> list[str]:
    with _file(str(path), "data.labels").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if len(row) >= 2]
    table = {row[0].strip(): row[1].strip() for row in rows}
    words = []
    for image in files:
        name = str(image.relative_to(folder))
        if name not in table:
            raise UserError(f"data.labels: {path} has no line for {name} (lines are file,label)")
        words.append(table[name])
    return words


def _image(path: Path, channels: int | None) -> np.ndarray:
    try:
        with Image.open(path) as image:
            mode = {1: "L", 3: "RGB"}.get(channels or 0) or ("L" if image.mode in {"1", "L", "I;16"} else "RGB")
            pixels = np.asarray(image.convert(mode))
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path}: not an image that can be read ({error})") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def load_function(data: Data, seed: int) -> tuple[Raw | Dataset, Raw | Dataset | None]:
    """`module:function`, called with data.kwargs: a Dataset, (x, y), or a pair of those (assessed, train)."""
    if data.function is None:
        raise UserError("data.function: is required for source: function (module:function)")
    found = resolve(data.function, "data.function")(**data.kwargs)
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], tuple | Dataset):
        return _from_function(found[0], data.function), _from_function(found[1], data.function)
    return _from_function(found, data.function), None


def _from_function(found: object, where: str) -> Raw | Dataset:
    if isinstance(found, Dataset):
        return found
    if isinstance(found, tuple) and len(found) == 2:
        x = np.asarray(found[0])
        return Raw(x, None if found[1] is None else np.asarray(found[1]), _numbered(len(x)), _natural_range(x))
    raise UserError(f"data.function: {where} returned a {type(found).__name__}; a Dataset or (x, y) is needed")


def _natural_range(x: np.ndarray) -> tuple[float, float]:
    return (0.0, 255.0) if x.dtype == np.uint8 else (0.0, 1.0)


def _numbered(n: int) -> list[str]:
    return [f"{i:05d}" for i in range(n)]


def _file(path: str | None, key: str) -> Path:
    if path is None:
        raise UserError(f"{key}: is required for this data.source")
    if not Path(path).is_file():
        raise UserError(f"{key}: {path}: no such file")
    return Path(path)


SOURCES: dict[str, Callable[[Data, int], tuple[Raw | Dataset, Raw | Dataset | None]]] = {
    "digits": load_digits,
    "npz": load_npz,
    "idx": load_idx,
    "folder": load_folder,
    "function": load_function,
}
