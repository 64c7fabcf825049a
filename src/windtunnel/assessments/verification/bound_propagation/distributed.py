"""Bounds of many samples over the workers there are: a batch is a unit of work, and what is known of it is kept."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.bounder import WEAKER, Bounder
from windtunnel.assessments.verification.bound_propagation.lirpa import Bounds
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.core.batches import Batch, Incidents
from windtunnel.records.files import parse_own_json
from windtunnel.runtime.batch_runner import each_batch
from windtunnel.runtime.checkpoint import Checkpoint

_METHODS = tuple(sorted({*WEAKER, *WEAKER.values()}))


@dataclass(frozen=True, slots=True)
class BoundedBatch:
    """Bounds of some samples: indices int64 (n,), the method that ran, its bounds (None where it failed), seconds of each."""

    indices: Tensor
    method: str
    bounds: Bounds | None
    seconds: float


def bound_all(
    bounder: Bounder,
    method: str,
    indices: Tensor,
    epsilons: Tensor,
    *,
    name: str,
    checkpoint: Checkpoint | None = None,
    logits: bool = True,
) -> Iterator[BoundedBatch]:
    """Run `Bounder.bound` batch by batch on the executor; record fallbacks in `bounder`. name: for the progress bar.

    Where the workers of a batch were lost, its samples have no bounds.
    """
    places = bounder.units(indices, epsilons)
    batches = [Batch(number, indices[members], 0) for number, members in enumerate(places)]
    is_known = torch.zeros(len(bounder.subject.dataset), dtype=epsilons.dtype)
    is_known[indices] = epsilons
    alone = replace(bounder, fallbacks={}, halved={}, incidents=Incidents(), deadline=float("inf"))
    work = _Unit(alone, Deadline(bounder.deadline), method, is_known, logits, bounder.unsupported)
    for batch, result in each_batch(
        batches, work, name=name, checkpoint=checkpoint, without=work.nothing, incidents=bounder.incidents
    ):
        _remember(bounder, _Notes.model_validate(parse_own_json(bytes(result["notes"].tolist()))))
        kinds = torch.stack([result["method"], result["failed"].long()], 1)
        for kind in kinds.unique(dim=0):
            at = (kinds == kind).all(1)
            k = bounder.subject.classifier.criterion.k
            bounds = Bounds(result["margins"][at], result["lower"][at], result["upper"][at], k)
            seconds = float(result["seconds"][0]) / len(batch.indices)
            yield BoundedBatch(batch.indices[at], _METHODS[int(kind[0])], None if kind[1] else bounds, seconds)


@dataclass(slots=True)
class _Unit:
    """Bounds one batch. bounder: with nothing remembered but what no method can bound, which is true of every batch."""

    bounder: Bounder
    deadline: Deadline
    method: str
    epsilons: Tensor
    logits: bool
    unsupported: dict[str, str]

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        started = time.perf_counter()
        bounder = replace(
            self.bounder, fallbacks={}, halved={}, deadline=self.deadline.here(), unsupported=self.unsupported
        )
        results = self.nothing(batch)
        position = {row: i for i, row in enumerate(batch.indices.tolist())}
        for indices, method, bounds in bounder.bound(
            self.method, batch.indices, self.epsilons[batch.indices], logits=self.logits
        ):
            at = torch.tensor([position[row] for row in indices.tolist()])
            results["method"][at] = _METHODS.index(method)
            if bounds is not None:
                results["failed"][at] = False
                for key in ("margins", "lower", "upper"):
                    results[key][at] = getattr(bounds, key)
        results["seconds"][:] = time.perf_counter() - started
        fallbacks = tuple((*key, tuple(indices)) for key, indices in bounder.fallbacks.items())
        return {**results, "notes": _text(_Notes(halved=bounder.halved, fallbacks=fallbacks))}

    def nothing(self, batch: Batch) -> dict[str, Tensor]:
        """Return NaN bounds for a batch that no worker finished."""
        n, k = len(batch.indices), self.bounder.subject.classifier.num_classes
        return {
            "method": torch.full((n,), _METHODS.index(self.method)),
            "failed": torch.ones(n, dtype=torch.bool),
            "margins": torch.full((n, k - 1), torch.nan),
            "lower": torch.full((n, k), torch.nan),
            "upper": torch.full((n, k), torch.nan),
            "seconds": torch.zeros(n),
            "notes": _text(_Notes()),
        }


class _Notes(BaseModel):
    """Notes of bounding a batch: the chunk that fits in memory, and (method, weaker one, why, samples) where one gave way."""

    halved: dict[str, int] = Field(default_factory=dict)
    fallbacks: tuple[tuple[str, str, str, tuple[int, ...]], ...] = ()


def _text(notes: _Notes) -> Tensor:
    return torch.tensor(list(notes.model_dump_json().encode()), dtype=torch.uint8)


def _remember(bounder: Bounder, notes: _Notes) -> None:
    for method, size in notes.halved.items():
        bounder.halved[method] = min(bounder.halved.get(method, size), size)
    for method, weaker, reason, indices in notes.fallbacks:
        bounder.fell_back_to(method, weaker, reason, indices)
