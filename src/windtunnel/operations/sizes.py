"""Estimate a run before it starts: disk space of its results and memory of a batch."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from windtunnel.core.classifier import Classifier, forward_samples
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.references import users_code
from windtunnel.operations.resolve import dependencies
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.layout import REPORTS
from windtunnel.records.storage import Wanted
from windtunnel.registry.plugins import families

_FLOAT = 4  # bytes
_SMALL = 160  # bytes of a sample that are neither images nor a value per class: verdicts, predictions, distances, costs
_PROGRAM = 400 * 2**20  # Python, torch and the libraries
_FEW = 1000  # samples whose images are plenty to look at


@dataclass(frozen=True, slots=True)
class Size:
    """Disk space of one entry or stage: `results` of `samples` samples each, in bytes."""

    name: str
    samples: int
    results: int
    bytes: int


def sizes_of(params: Params, assessed: Dataset, train: Dataset | None, keep: Wanted | None = None) -> list[Size]:
    """Return the entries of params.yaml, and `data, clean, sanity, summary, report` together. `keep`: as if storage.inputs were this."""
    image, sizes = math.prod(assessed.inputs.shape[1:]) * _FLOAT, []
    n_samples = len(assessed)

    def result(n: int, stored_inputs: Wanted, images: int = 2) -> int:
        n_stored = n if stored_inputs == "all" else min(n, stored_inputs)
        return n_stored * images * image + n * (_SMALL + 4 * _FLOAT * assessed.num_classes)

    for family, name, entry in entries(params):
        n, record = _samples(entry, n_samples), families()[family]
        stored_inputs = dependencies.as_it_runs(family, entry, params).kept_inputs
        stored_inputs = keep if keep is not None and entry.drops_images else stored_inputs
        results = record.results()(entry) if record.results else 1
        sizes.append(Size(f"{family}.{name}", n, results, results * result(n, stored_inputs)))
    default_inputs = params.storage.inputs if keep is None else keep
    shared = 3 * result(n_samples, default_inputs) + result(
        n_samples, default_inputs, images=1
    )  # clean, summary and report; sanity
    data = (n_samples + (len(train) if train is not None else 0)) * (image + 8)
    sizes.append(Size("data, clean, sanity, summary, report", n_samples, 1, shared + data))
    return sizes


def no_room(params: Params, assessed: Dataset, train: Dataset | None) -> tuple[str, str]:
    """Return (the line for results that the disk cannot hold, one for those that DVC's cache cannot hold besides); empty where they fit."""
    needed = total(sizes_of(params, assessed, train))
    free = shutil.disk_usage(".").free
    available = free + _held(REPORTS)  # what lies there is replaced
    if needed <= available:
        tight = f"the results need {gigabytes(needed)}, and as much again in DVC's cache where it copies; {gigabytes(free)} are free"
        return "", tight if 2 * needed > available else ""
    stored_inputs = params.storage.inputs
    fewer = total(sizes_of(params, assessed, train, keep=_FEW))
    advice = f"storage: {{inputs: {_FEW}}} needs {gigabytes(fewer)}, " if fewer < 0.9 * needed else ""
    return (
        f"storage.inputs: {stored_inputs}: the results need {gigabytes(needed)} and {gigabytes(free)} are free on the disk; {advice}or "
        f"assess fewer samples (data.samples.n)"
    ), ""


def total(sizes: Sequence[Size]) -> int:
    """Bytes of all of them."""
    return sum(size.bytes for size in sizes)


def memory_of(params: Params, classifier: Classifier, assessed: Dataset) -> int:
    """About how many bytes the process of a stage takes at its peak, beside mapped files: its program, and one batch in the model.

    From what one sample leaves for its gradient; for a model without gradients from its inputs.
    """
    image = math.prod(assessed.inputs.shape[1:]) * _FLOAT
    stored, largest = _activation_bytes(classifier, assessed)
    forward = forward_samples(assessed.inputs) * (image + 2 * max(largest, image))
    batch = max((min(entry.batch_size, _samples(entry, len(assessed))) for _, _, entry in entries(params)), default=0)
    return _PROGRAM + max(forward, batch * (6 * image + stored + 2 * largest))


def _activation_bytes(classifier: Classifier, assessed: Dataset) -> tuple[int, int]:
    """(bytes that autograd stores of one sample, bytes of the largest tensor among them); of a model without gradients zeros."""
    if Capability.AUTOGRAD not in classifier.capabilities:
        return 0, 0
    # A quantised layer also stores dtypes and packed weights among its state.
    state = classifier.module.state_dict().values()
    weights = {value.untyped_storage().data_ptr() for value in state if isinstance(value, torch.Tensor)}
    storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address is given twice

    def store(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return tensor

    inputs = assessed.inputs[:1].clone().to(classifier.device).requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor)
    with users_code("model"), torch.enable_grad(), hooks:
        classifier.module(inputs)
    sizes = [storage.nbytes() for storage in storages.values()]
    return sum(sizes), max(sizes, default=0)


def gigabytes(size: float) -> str:
    """`1.2 GB`, `30 MB`."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"


def _samples(entry: Entry, n_samples: int) -> int:
    return min(entry.samples.n or n_samples, n_samples)


def _held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
