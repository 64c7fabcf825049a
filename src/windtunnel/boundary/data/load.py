"""From `data` in params.yaml to a Dataset that any model may see: converted, checked, selected, and recorded."""

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from windtunnel.boundary.data.record import DATASET_JSON, DatasetRecord, read_record
from windtunnel.boundary.data.sources import ImageFiles, Raw, channels_are_last, middle, source_of
from windtunnel.core import scratch
from windtunnel.core.contracts import Json
from windtunnel.core.dataset import Dataset, select
from windtunnel.core.errors import UserError, shown, unknown_word
from windtunnel.core.scratch import AT_A_TIME, finite_samples
from windtunnel.params.data import MOST_CLASSES, Data
from windtunnel.records.artifacts import load_tensors, save_tensors
from windtunnel.records.files import write_json
from windtunnel.records.metadata import fitting
from windtunnel.records.result import tensor_in
from windtunnel.registry.plugins import View

ASSESSED, TRAIN = "assessed.pt", "train.pt"
# Values may leave the range by float rounding alone (a mean of pixels, a resize); more is another range.
RANGE_TOLERANCE = 1e-6
_LUMINANCE = torch.tensor([0.299, 0.587, 0.114])  # ITU-R BT.601, as PIL's convert("L")


def load_dataset(data: Data, seed: int, view: View | None = None) -> tuple[Dataset, Dataset | None]:
    """Return (the assessed samples, the training split or None), float32 in [0, 1] (tabular data: in its own range).

    view: the transforms and the class names that the model's library brings; what `data` says of them itself counts instead.
    Raises UserError, in one line, for a file that is missing or no such file, an empty data set, values that are not
    finite or out of range, and labels that are out of range or of another number than the samples.
    """
    if view is not None:
        data = _with_channels(data, view)
    return convert(data, seed, *source_of(data.source)(data, seed), view)


def convert(
    data: Data, seed: int, assessed: Raw | Dataset, train: Raw | Dataset | None, view: View | None = None
) -> tuple[Dataset, Dataset | None]:
    """Convert the raw content of a source as `data` specifies (see `load_dataset`)."""
    assessed, train = _one_label(assessed, data), None if train is None else _one_label(train, data)
    parts = [part for part in (assessed, train) if part is not None]
    for part in parts:
        if not len(part.inputs):
            raise UserError(f"data: {data.source} {data.path or data.function or ''} holds no samples")
    names = _class_names(data, parts, view)
    if unwritable := [name for name in names if any("\ud800" <= letter <= "\udfff" for letter in name)]:
        raise UserError(f"data: the name {shown(unwritable[0])} of a class is no text in UTF-8")
    selection_seed = seed if data.samples.seed is None else data.samples.seed
    targets = assessed.targets if isinstance(assessed, Dataset) else _targets(assessed, names)
    chosen = select(len(targets), data.samples.n, data.samples.selection, selection_seed, targets)
    selection: dict[str, Json] = {
        "of": len(targets),
        "n": len(chosen),
        "selection": data.samples.selection,
        "seed": selection_seed,
    }
    result = _convert(assessed, data, names, chosen, view)
    result = replace(result, metadata={**result.metadata, "samples": selection})
    return result, None if train is None else _convert(train, data, names, torch.arange(len(train.inputs)), view)


def _one_label(part: Raw | Dataset, data: Data) -> Raw | Dataset:
    """Return the samples with the column of their labels (N, L) that `data.label_column` names, as 0 and 1."""
    labels = part.targets.numpy() if isinstance(part, Dataset) else part.labels
    if isinstance(part, Raw) and data.label_column is None and labels is not None and labels.shape[1:] == (1,):
        return replace(part, labels=labels[:, 0])  # a column of numbers, as Keras has it
    if data.label_column is None or labels is None:
        return part
    if labels.ndim != 2 or data.label_column >= labels.shape[1]:
        raise UserError(
            f"data.label_column: {data.label_column}: labels have shape {labels.shape}; (N, L) with that column"
        )
    column = labels[:, data.label_column]
    if column.dtype.kind not in "buif" or not np.isin(column, (0, 1)).all():
        raise UserError(f"data.label_column: {data.label_column}: labels of a column are 0 and 1")
    column = column.astype(np.int64)
    return (
        replace(part, targets=torch.from_numpy(column)) if isinstance(part, Dataset) else replace(part, labels=column)
    )


def save_datasets(assessed: Dataset, train: Dataset | None, directory: Path) -> None:
    """Write both splits and dataset.json; equal data give equal bytes.

    Raises UserError if a user's data function and dataset.json describe the samples differently.
    """
    save_tensors({"inputs": assessed.inputs, "targets": assessed.targets}, directory / ASSESSED)
    (directory / TRAIN).unlink(missing_ok=True)
    if train is not None:
        save_tensors({"inputs": train.inputs, "targets": train.targets}, directory / TRAIN)
    facts = {
        **assessed.metadata,
        "n": len(assessed),
        "n_train": len(train) if train is not None else 0,
        "shape": list(assessed.inputs.shape[1:]),
        "class_names": list(assessed.class_names),
        "labelled": assessed.labelled,
        "value_range": list(assessed.value_range),
        "digest": assessed.digest(),
        "ids": list(assessed.ids),
    }
    record = fitting(DatasetRecord, facts, "data: metadata of the samples", "what dataset.json holds")
    write_json(record.model_dump(mode="json"), directory / DATASET_JSON)


def read_assessed(directory: Path) -> Dataset:
    """Return the assessed samples that `save_datasets` wrote."""
    record = read_record(directory)
    return _read(directory / ASSESSED, record, record.ids)


def read_train(directory: Path) -> Dataset | None:
    """Return the training split that `save_datasets` wrote, None where there was none."""
    record = read_record(directory)
    if not record.n_train:
        return None
    return _read(directory / TRAIN, record, tuple(f"train-{i:06d}" for i in range(record.n_train)))


def _read(path: Path, record: DatasetRecord, ids: tuple[str, ...]) -> Dataset:
    tensors = load_tensors(path)
    return Dataset(
        inputs=tensor_in(tensors, "inputs"),
        targets=tensor_in(tensors, "targets"),
        ids=ids,
        class_names=record.class_names,
        labelled=record.labelled,
        value_range=record.value_range,
        metadata=record.prepared,
    )


def _convert(
    raw: Raw | Dataset, data: Data, names: tuple[str, ...], indices: Tensor, view: View | None = None
) -> Dataset:
    """Return the samples at `indices` as the model sees them. Values are checked after the choice: files are read only then."""
    if isinstance(raw, Dataset):
        return _checked(raw).subset(indices)
    targets = _targets(raw, names)
    if len(raw.ids) != len(raw.inputs) or len(set(raw.ids)) != len(raw.ids):
        raise UserError(f"data: {len(set(raw.ids))} different ids for {len(raw.inputs)} samples; one of its own each")
    value_range, facts = (0.0, 1.0), dict[str, Json](source=data.source)
    if isinstance(raw.inputs, np.ndarray):
        _require_numbers(raw.inputs)
    if view is not None and data.resize is None and data.crop is None:
        inputs = _joined(_viewed(raw, data, indices, view), len(indices))
        _check_values(inputs, value_range, "after the model's own transforms")
        inputs.clamp_(0, 1)
        facts |= {"channels": view.channels, "prepared_by": view.said}
    else:
        first = raw.inputs[indices[:1].numpy()]
        is_image = first.ndim in {3, 4}
        low, high = data.value_range or (raw.value_range if is_image else _span(raw.inputs))
        if high <= low:
            raise UserError(f"data.value_range: [{low:g}, {high:g}] is empty; write [lowest, highest]")
        parts = indices.split(max(1, AT_A_TIME // max(1, first.size)))
        prepare = partial(_as_image, data=data) if is_image else _as_table
        inputs = _joined((prepare(_values_of(raw, part, int(indices[0])), low, high) for part in parts), len(indices))
        facts["value_range_of_source"] = [low, high]
        if is_image:
            facts |= {"crop": data.crop} if data.crop else {}
            facts["channels"] = int(inputs.shape[1])
            if data.size:
                facts |= {"resize": list(data.size), "resize_method": "bilinear, antialiased"}
        else:
            value_range = low, high
    ids = tuple(raw.ids[i] for i in indices.tolist())
    return Dataset(inputs, targets[indices], ids, names, raw.labels is not None, value_range, facts)


def _joined(parts: Iterable[Tensor], n: int) -> Tensor:
    """Join parts (m, ...) of n samples, at least one, in a file where they are large."""
    inputs, filled = torch.empty(0), 0
    for part in parts:
        if not filled:
            _check_space(n, part.shape[1:])
            inputs = scratch.empty((n, *part.shape[1:]))
        inputs[filled : filled + len(part)] = part
        filled += len(part)
    return inputs


def _values_of(raw: Raw, indices: Tensor, first: int) -> Tensor:
    """Return finite raw inputs at `indices`, float32; files must have the size of the file at `first`."""
    at = indices.numpy()
    array = raw.inputs.like(first, at) if isinstance(raw.inputs, ImageFiles) else raw.inputs[at]
    values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    _check_finite(values, [raw.ids[i] for i in indices.tolist()])
    return values


def _as_table(values: Tensor, low: float, high: float) -> Tensor:
    _check_values(values, (low, high), "of data.value_range")
    return values


def _as_image(images: Tensor, low: float, high: float, data: Data) -> Tensor:
    """Raw images (n, H, W) or (n, C, H, W) as the model sees them, float32 (n, C, H, W) in [0, 1]."""
    images = _scaled(images, low, high, data.channels)
    if data.crop:
        images = images[(..., *middle((images.shape[2], images.shape[3]), data.size))]
    return _resize(images, data.size).clamp(0, 1)


def _scaled(images: Tensor, low: float, high: float, channels: int | None) -> Tensor:
    """Map raw images (n, H, W) or (n, C, H, W) from [low, high] to [0, 1], float32 (n, `channels`, H, W)."""
    images = (images - low) / (high - low)
    _check_values(
        images, (0.0, 1.0), f"after conversion from [{low:g}, {high:g}]; data.value_range says what they span"
    )
    return _channels(images[:, None] if images.ndim == 3 else images, channels)


def _with_channels(data: Data, view: View) -> Data:
    if data.channels not in (None, view.channels):
        raise UserError(f"data.channels: {data.channels}, but the model takes {view.channels}; leave the key out")
    return data.model_copy(update={"channels": view.channels})


def _viewed(raw: Raw, data: Data, indices: Tensor, view: View) -> Iterator[Tensor]:
    """Yield each sample at `indices` by the library's own transforms, (1, C, H, W); they take pictures of 8 bits a channel."""
    if isinstance(raw.inputs, ImageFiles):
        pictures = replace(raw.inputs, channels=view.channels).pictures(indices.numpy())
    else:
        pictures = _pictures(raw, data, indices, view)
    return (view.image(picture)[None] for picture in pictures)


def _pictures(raw: Raw, data: Data, indices: Tensor, view: View) -> Iterator[Image.Image]:
    assert isinstance(raw.inputs, np.ndarray)  # files are pictures already
    if raw.inputs.ndim not in {3, 4}:
        raise UserError(
            f"data: inputs of shape {(len(indices), *raw.inputs.shape[1:])} are no images, which the model's own transforms take"
        )
    values = _values_of(raw, indices, 0)
    inputs = _scaled(values, *(data.value_range or raw.value_range), view.channels)
    for pixels in (inputs * 255).round().byte().numpy():
        yield Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _checked(dataset: Dataset) -> Dataset:
    """Validate a Dataset that a user's function returned, as every source is validated."""
    n = len(dataset.inputs)
    if dataset.inputs.dtype != torch.float32 or dataset.inputs.ndim not in {2, 4}:
        shape, dtype = tuple(dataset.inputs.shape), dataset.inputs.dtype
        raise UserError(
            f"data.function: inputs are {dtype} of shape {shape}; float32 (N, C, H, W) or (N, F) are needed"
        )
    if len(dataset.ids) != n or len(dataset.targets) != n:
        raise UserError(f"data.function: {len(dataset.targets)} labels and {len(dataset.ids)} ids for {n} samples")
    _check_finite(dataset.inputs, dataset.ids)
    _check_values(dataset.inputs, dataset.value_range)
    if dataset.labelled:
        _check_labels(dataset.targets.numpy(), dataset.class_names)
    return dataset


def _require_numbers(array: np.ndarray) -> None:
    if array.dtype.kind not in "uifb":
        raise UserError(f"data: inputs of type {array.dtype} are not numbers")
    if array.ndim not in {2, 3, 4} or not array.size:
        raise UserError(f"data: inputs of shape {array.shape}; (N, C, H, W), (N, H, W) or tabular (N, F) are needed")
    if channels_are_last(array.shape):
        raise UserError(f"data: inputs of shape {array.shape} have their channels last; (N, C, H, W) is needed")


def _span(array: np.ndarray | ImageFiles) -> tuple[float, float]:
    """Range of tabular values over the whole source, so that a selection does not change it."""
    assert isinstance(array, np.ndarray)
    return float(np.float32(array.min())), float(np.float32(array.max()))


def _check_finite(inputs: Tensor, ids: Sequence[str]) -> None:
    bad = ~finite_samples(inputs)
    if bad.any():
        first = int(bad.nonzero()[0])
        what = "NaN" if inputs[first].isnan().any() else "infinity"
        raise UserError(f"data: sample {ids[first]} holds {what}; every value must be a finite number")


def _check_values(inputs: Tensor, value_range: tuple[float, float], note: str = "") -> None:
    low, high = float(inputs.min()), float(inputs.max())
    if low < value_range[0] - RANGE_TOLERANCE or high > value_range[1] + RANGE_TOLERANCE:
        allowed = f"[{value_range[0]:g}, {value_range[1]:g}]"
        raise UserError(f"data: values span [{low:g}, {high:g}], outside {allowed} {note}".rstrip())


def _channels(inputs: Tensor, channels: int | None) -> Tensor:
    have = inputs.shape[1]
    if channels is None or channels == have:
        return inputs
    if have == 1:
        return inputs.expand(-1, channels, -1, -1).contiguous()
    if have == 3 and channels == 1:
        return (inputs * _LUMINANCE.view(1, 3, 1, 1)).sum(1, keepdim=True)
    raise UserError(f"data.channels: {channels} cannot be made of {have} channels; only 1 to 3 and 3 to 1")


def _check_space(samples: int, shape: Sequence[int]) -> None:
    """Raise UserError where float32 samples of `shape` would not fit on the disk, twice: while they are made, and as an output."""
    needed, free = 2 * samples * math.prod(shape) * 4, shutil.disk_usage(".").free
    if needed > free:
        raise UserError(
            f"data.resize: {samples} samples of {'x'.join(map(str, shape))} need {needed / 1e9:.0f} GB on disk, "
            f"{free / 1e9:.0f} GB are free; a smaller size, or fewer samples (data.samples.n)"
        )


def _resize(inputs: Tensor, size: tuple[int, int] | None) -> Tensor:
    if size is None or tuple(inputs.shape[2:]) == size:
        return inputs
    return torch.nn.functional.interpolate(inputs, size, mode="bilinear", antialias=True)


def _class_names(data: Data, parts: Sequence[Raw | Dataset], view: View | None = None) -> tuple[str, ...]:
    """Names of the K classes, one list for both splits, so that a label means the same class in both.

    Where neither params.yaml nor the source names them, those that the model's library knows, if they hold every label.
    """
    if isinstance(data.class_names, int):
        return tuple(map(str, range(data.class_names)))
    declared = [names for names in (data.class_names, *(part.class_names for part in parts)) if names]
    if declared:
        if len(set(declared[0])) < len(declared[0]):
            raise UserError("data: two classes have one name; each has a name of its own")
        return tuple(declared[0])
    arrays = [part.labels for part in parts if isinstance(part, Raw) and part.labels is not None and part.labels.size]
    labels_in_words = {str(word) for labels in arrays if labels.dtype.kind == "U" for word in labels.ravel()}
    numbers = [int(labels.max()) for labels in arrays if labels.dtype.kind in "ui"]
    view_names = view.names_of(labels_in_words) if view else ()
    if view_names and max(numbers, default=0) < len(view_names):
        return view_names
    if labels_in_words:
        return tuple(sorted(labels_in_words, key=_numeric_first))
    if numbers:
        if max(numbers) >= MOST_CLASSES:
            raise UserError(f"data: a label is {max(numbers)}; labels are integers from 0, below {MOST_CLASSES}")
        return tuple(map(str, range(max(numbers) + 1)))
    if arrays:
        raise UserError(f"data: labels of type {arrays[0].dtype}; integers from 0, or names, are needed")
    raise UserError("data.class_names: is required where there are no labels; the names, or how many classes there are")


def _numeric_first(word: str) -> tuple[int, int, str]:
    return (0, int(word), word) if word.isdecimal() else (1, 0, word)


def _targets(raw: Raw, names: tuple[str, ...]) -> Tensor:
    """Class indices of all samples, int64 (N,); -1 throughout where there are no labels."""
    n, labels = len(raw.inputs), raw.labels
    if labels is None:
        return torch.full((n,), -1)
    if labels.ndim != 1 or len(labels) != n:
        raise UserError(
            f"data: {len(labels) if labels.ndim else 0} labels of shape {labels.shape} for {n} samples; one each"
            + "; model.head: {labels: [...], label: ...} assesses one column" * (labels.ndim == 2)
        )
    if labels.dtype.kind == "U":
        index_of = {name: i for i, name in enumerate(names)}
        if strangers := sorted(set(labels.tolist()) - set(index_of)):
            raise UserError(unknown_word("data.class_names", strangers[0], names, what="a class"))
        return torch.tensor([index_of[word] for word in labels.tolist()])
    if labels.dtype.kind not in "ui":
        raise UserError(f"data: labels of type {labels.dtype}; integers from 0, or names, are needed")
    _check_labels(labels, names)
    return torch.from_numpy(labels.astype(np.int64))


def _check_labels(labels: np.ndarray, names: tuple[str, ...]) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(names):
        raise UserError(f"data: labels span {low} to {high}, outside 0 to {len(names) - 1} of the {len(names)} classes")
