"""The samples under assessment, as one immutable value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError, shown
from windtunnel.core.scratch import sample_parts


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples as fed to the model.

    inputs: float32 (N, C, H, W) in [0, 1] for images, (N, F) in `value_range` for tabular data.
    targets: int64 (N,); -1 throughout while `labelled` is false and the model has not been asked yet.
    ids: N stable names of the samples. class_names: K names.
    metadata: what `prepare` did (source, resize, channels, range, selection), for `metadata.json`. chosen: how an entry
    chose these of the samples that `prepare` chose; empty where it takes them all.
    """

    inputs: Tensor
    targets: Tensor
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    labelled: bool = True
    value_range: tuple[float, float] = (0.0, 1.0)
    metadata: Mapping[str, Json] = field(default_factory=dict)
    chosen: Mapping[str, Json] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_image(self) -> bool:
        """True if the inputs are images (N, C, H, W)."""
        return self.inputs.ndim == 4

    @property
    def num_classes(self) -> int:
        """K, the number of classes."""
        return len(self.class_names)

    @property
    def selection(self) -> dict[str, Json]:
        """Return how the samples were chosen from the source, for `metadata.json`; `then`: the entry's selection among them."""
        of_source = self.metadata.get("samples") or {"n": len(self)}
        if not isinstance(of_source, Mapping):
            raise UserError(f"samples: {shown(of_source)} is not what this version writes there")
        return {**of_source, **({"then": dict(self.chosen)} if self.chosen else {})}

    def subset(self, indices: Tensor) -> Dataset:
        """Return the samples at `indices` (int64, any length), in that order."""
        ids = tuple(self.ids[i] for i in indices.tolist())
        return replace(self, inputs=scratch.samples_at(self.inputs, indices), targets=self.targets[indices], ids=ids)

    def digest(self) -> str:
        """sha256 over ids, inputs and targets: equal digests mean the same samples in the same order."""
        digest = hashlib.sha256("\x1f".join(self.ids).encode())
        for tensor in (self.inputs, self.targets):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            for part in sample_parts(tensor):
                digest.update(tensor[part].contiguous().numpy().data)
        return digest.hexdigest()


def too_many(where: str, count: int | None, n: int) -> str | None:
    """Return the line for an entry that asks for more samples (`where`.samples.n) than there are; None where it does not."""
    if count is None or count <= n:
        return None
    return f"{where}.samples.n: {count} are asked for, and there are {n}: all of them are taken"


def select(n: int, count: int | None, how: str, seed: int, targets: Tensor) -> Tensor:
    """Return indices (sorted, int64) of `count` of `n` samples: `first`, `random`, or `stratified` by `targets`.

    All of them when `count` is None or not below n. Stratified takes equally many of each class as far as they last.
    """
    if count is None or count >= n:
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed)
    if how == "first":
        return torch.arange(count)
    order = torch.randperm(n, generator=generator)
    if how == "random":
        return order[:count].sort().values
    # Rank of each sample inside its class, in random order; taking the lowest ranks first balances the classes.
    shuffled = targets[order]
    rank = torch.empty(n, dtype=torch.int64)
    for label in shuffled.unique():
        members = (shuffled == label).nonzero().squeeze(1)
        rank[members] = torch.arange(len(members))
    chosen = order[rank.argsort(stable=True)[:count]]
    return chosen.sort().values
