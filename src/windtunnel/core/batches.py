"""The unit of work: a batch of samples with its own seed, halved where memory is too small for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import Caveat
from windtunnel.core.seeds import derive_seed

LOST_SAMPLES = "batch_failed"  # code of the caveat on samples whose workers died or hung
HALVED = "halved"  # key in the result of a batch that was computed in halves for want of memory


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples `indices` (int64) of the data set, batch number `number`, with the seed that is this batch's own."""

    number: int
    indices: Tensor
    seed: int

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches of half its samples, each with a seed of its own."""
        first, second = self.indices.split((len(self.indices) + 1) // 2)
        seeds = [derive_seed(self.seed, "half", half) for half in (0, 1)]
        return Batch(self.number, first, seeds[0]), Batch(self.number, second, seeds[1])


def batches_of(indices: Tensor, batch_size: int, run_seed: int, name: str) -> list[Batch]:
    """Cut `indices` into batches; the seed of each is derived from (run seed, assessment name, batch number)."""
    parts = indices.split(batch_size) if len(indices) else ()
    return [Batch(i, part, derive_seed(run_seed, name, i)) for i, part in enumerate(parts)]


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return at most `most` of the positions 0 to count - 1, evenly spaced, int64."""
    return torch.linspace(0, count - 1, min(most, count)).round().long()


def rows_of_table(table: Mapping[str, Tensor]) -> Callable[[Batch], dict[str, Tensor]]:
    """Return the function from a batch to its rows of a table of all samples: what replaces the result of a lost batch."""
    return lambda batch: {key: values[batch.indices] for key, values in table.items()}


@dataclass(slots=True)
class Incidents:
    """Samples (by index) that have no result, by reason, and samples that were computed in halves."""

    lost: dict[str, list[int]] = field(default_factory=dict)
    halved: list[int] = field(default_factory=list)

    @property
    def lost_samples(self) -> Tensor:
        """Return the indices of the samples without a result, int64, ascending."""
        return torch.tensor(sorted(index for indices in self.lost.values() for index in indices), dtype=torch.int64)

    def caveats(self, ids: Sequence[str]) -> list[Caveat]:
        """Return one caveat per incident, with the ids of its samples."""
        caveats = [
            Caveat(LOST_SAMPLES, f"{len(indices)} samples have no result: {reason}.", tuple(ids[i] for i in indices))
            for reason, indices in self.lost.items()
        ]
        if self.halved:
            text = "Memory was short: batches were computed in halves, with other random draws than the whole batch."
            caveats.append(Caveat("batch_halved", text, tuple(ids[i] for i in self.halved)))
        return caveats


@dataclass(frozen=True, slots=True)
class HalvingWork:
    """Run `work` on a batch; where memory runs out, run it on fixed halves of the batch and mark the result as `HALVED`."""

    work: Callable[[Batch], dict[str, Tensor]]

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return the tensors of `work`, one row per sample of `batch`."""
        try:
            return self.work(batch)
        except (RuntimeError, MemoryError) as error:
            if len(batch.indices) < 2 or not out_of_memory(error):
                raise
        parts = [self(half) for half in batch.halves()]
        results = {key: torch.cat([part[key] for part in parts]) for key in parts[0].keys() - {HALVED}}
        return {**results, HALVED: torch.ones(len(batch.indices), dtype=torch.bool)}


def out_of_memory(error: Exception) -> bool:
    """Return True for an error that reports exhausted memory; on the CPU torch raises a plain RuntimeError for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        phrase in str(error) for phrase in ("allocate memory", "bad_alloc")
    )


def join_results(results: Iterable[tuple[Batch, dict[str, Tensor]]], n: int) -> dict[str, Tensor]:
    """Concatenate results of batches along the first axis, in the order given; return an empty dictionary for no batches.

    Args:
        results: batches with their results, whose tensors have one row per sample of the batch.
        n: number of samples of all batches together.
    """
    filled = 0
    joined: dict[str, Tensor] = {}
    for batch, result in results:
        rows = slice(filled, filled + len(batch.indices))
        for key, value in result.items():
            if key not in joined:
                joined[key] = scratch.empty((n, *value.shape[1:]), value.dtype)
            joined[key][rows] = value
        filled = rows.stop
    return joined
