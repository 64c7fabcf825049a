"""From `data` in params.yaml to a Dataset that any model may see: converted, checked, selected, and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from windtunnel.core.artifacts import load_tensors, read_json, save_tensors, write_json
from windtunnel.core.contracts import Json
from windtunnel.core.dataset import Dataset, select
from windtunnel.core.errors import UserError
from windtunnel.data.sources import SOURCES, Raw
from windtunnel.params.data import Data

ASSESSED, TRAIN, FACTS = "assessed.pt", "train.pt", "dataset.json"
# Values may leave the range by float rounding alone (a mean of pixels, a resize); more is another range.
RANGE_TOLERANCE = 1e-6
_LUMINANCE = torch.tensor([0.299, 0.587, 0.114])  # ITU-R BT.601, as PIL's convert("L")


def load_dataset(data: Data, seed: int) -> tuple[Dataset, Dataset | None]:
    """(the assessed samples, the training split or None), float32 in [0, 1] (tabular data: in its own range).

    Raises UserError, in one line, for a file that is missing or no such file, an empty data set, values that are NaN
    or out of range, and labels that are out of range or of another number than the samples.
    """
    assessed, train = (_convert(part, data) if part is not None else None for part in SOURCES[data.source](data, seed))
    assert assessed is not None  # every source gives one
    if train is not None and assessed.labelled and train.num_classes > assessed.num_classes and data.class_names is None:
        # A selection of test samples may lack the last classes; the training split knows them.
        assessed = replace(assessed, class_names=train.class_names)
    chosen = select(
        len(assessed),
        data.samples.n,
        data.samples.selection,
        seed if data.samples.seed is None else data.samples.seed,
        assessed.targets,
    )
    selection: dict[str, Json] = {"of": len(assessed), "n": len(chosen), "selection": data.samples.selection}
    assessed = assessed.subset(chosen)
    return replace(assessed, metadata={**assessed.metadata, "samples": selection}), train


def save_datasets(assessed: Dataset, train: Dataset | None, directory: Path) -> None:
    """Write both splits and dataset.json; equal data give equal bytes."""
    save_tensors({"inputs": assessed.inputs, "targets": assessed.targets}, directory / ASSESSED)
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
    write_json(facts, directory / FACTS)


def read_assessed(directory: Path) -> Dataset:
    """The assessed samples that `save_datasets` wrote."""
    facts = read_json(directory / FACTS)
    assert isinstance(facts, dict)
    ids = tuple(str(i) for i in cast(list[Json], facts["ids"]))
    return _read(directory / ASSESSED, facts, ids)


def read_train(directory: Path) -> Dataset | None:
    """The training split that `save_datasets` wrote, None where there was none."""
    facts = read_json(directory / FACTS)
    assert isinstance(facts, dict)
    if not facts["n_train"]:
        return None
    return _read(directory / TRAIN, facts, tuple(f"train-{i:06d}" for i in range(int(str(facts["n_train"])))))


def _read(path: Path, facts: dict[str, Json], ids: tuple[str, ...]) -> Dataset:
    tensors = load_tensors(path)
    low, high = cast(list[float], facts["value_range"])
    kept = {k: v for k, v in facts.items() if k not in {"ids", "class_names", "labelled", "value_range", "digest"}}
    return Dataset(
        inputs=cast(Tensor, tensors["inputs"]),
        targets=cast(Tensor, tensors["targets"]),
        ids=ids,
        class_names=tuple(str(n) for n in cast(list[Json], facts["class_names"])),
        labelled=bool(facts["labelled"]),
        value_range=(low, high),
        metadata=kept,
    )


def _convert(raw: Raw | Dataset, data: Data) -> Dataset:
    if isinstance(raw, Dataset):
        _check_values(raw.inputs, raw.value_range)
        return raw
    inputs = _numbers(raw.inputs)
    if not len(inputs):
        raise UserError(f"data: {data.source} {data.path or data.function or ''} holds no samples")
    if inputs.isnan().any():
        bad = int(inputs.flatten(1).isnan().any(1).nonzero()[0])
        raise UserError(f"data: sample {raw.ids[bad]} holds NaN; every value must be a finite number")
    low, high = data.value_range or raw.value_range
    if high <= low:
        raise UserError(f"data.value_range: [{low:g}, {high:g}] is empty; write [lowest, highest]")
    is_image = inputs.ndim in {3, 4}
    if is_image:
        inputs = (inputs - low) / (high - low)
        inputs = _channels(inputs[:, None] if inputs.ndim == 3 else inputs, data.channels)
        inputs = _resize(inputs, data.resize)
        _check_values(inputs, (0.0, 1.0), f"after conversion from [{low:g}, {high:g}]; data.value_range says what they span")
        inputs = inputs.clamp(0, 1)
        value_range = (0.0, 1.0)
    else:
        value_range = (low, high) if data.value_range else (float(inputs.min()), float(inputs.max()))
    targets, names = _labels(raw, len(inputs), data)
    steps: dict[str, Json] = {
        "source": data.source,
        "value_range_of_source": [low, high],
        "resize": list(inputs.shape[2:]) if data.resize and is_image else None,
        "channels": int(inputs.shape[1]) if is_image else None,
    }
    return Dataset(
        inputs, targets, tuple(raw.ids), names, raw.labels is not None, value_range, {k: v for k, v in steps.items() if v}
    )


def _numbers(array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "uifb":
        raise UserError(f"data: inputs of type {array.dtype} are not numbers")
    if array.ndim not in {2, 3, 4}:
        raise UserError(f"data: inputs of shape {array.shape}; (N, C, H, W), (N, H, W) or tabular (N, F) are needed")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _check_values(inputs: Tensor, value_range: tuple[float, float], note: str = "") -> None:
    low, high = float(inputs.min()), float(inputs.max())
    if not (low >= value_range[0] - RANGE_TOLERANCE and high <= value_range[1] + RANGE_TOLERANCE):
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


def _resize(inputs: Tensor, size: int | tuple[int, int] | None) -> Tensor:
    if size is None:
        return inputs
    target = (size, size) if isinstance(size, int) else size
    return torch.nn.functional.interpolate(inputs, target, mode="bilinear", antialias=True).clamp(0, 1)


def _labels(raw: Raw, n: int, data: Data) -> tuple[Tensor, tuple[str, ...]]:
    names = data.class_names or raw.class_names
    if raw.labels is None:
        if names is None:
            raise UserError("data.class_names: is required where there are no labels; it says how many classes there are")
        return torch.full((n,), -1), tuple(names)
    labels = raw.labels
    if labels.ndim != 1 or len(labels) != n:
        raise UserError(f"data: {len(labels)} labels of shape {labels.shape} for {n} samples; one integer a sample")
    if labels.dtype.kind not in "ui":
        raise UserError(f"data: labels of type {labels.dtype}; integers from 0 are needed")
    low, high = int(labels.min()), int(labels.max())
    count = len(names) if names is not None else high + 1
    if low < 0 or high >= count:
        raise UserError(f"data: labels span {low} to {high}, outside 0 to {count - 1} of the {count} classes")
    return torch.from_numpy(labels.astype(np.int64)), tuple(names or map(str, range(count)))
