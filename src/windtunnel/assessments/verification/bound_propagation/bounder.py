"""Bounds of any number of samples, over the workers there are: by the method asked for, or by the next weaker one, never silently."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.lirpa import Bounds, bound_batch
from windtunnel.assessments.verification.bound_propagation.memory import memory_to_use, samples_that_suit
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.core.batches import Batch, Incidents, out_of_memory
from windtunnel.core.contracts import Caveat, Norm
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.machine import memory_limit, time_limit
from windtunnel.core.subject import Subject
from windtunnel.records.files import parse_own_json
from windtunnel.runtime.batch_runner import Checkpoint, each_batch

# A method that cannot hold its memory, or has no bound for an operator, gives way to the next one down.
WEAKER = {
    "alpha-crown": "crown",
    "forward+backward": "crown",
    "forward": "crown-ibp",
    "crown": "crown-ibp",
    "crown-ibp": "ibp",
}
Part = tuple[Tensor, str, Bounds | None]


@dataclass(slots=True)
class Bounder:
    """Bounds the samples of a subject under one norm; remembers what had to be halved, and what gave way to what.

    batch_size: the most samples at a time. slack: how far rounding parts the subject's network from the user's, by which
    all bounds are widened. deadline: time.monotonic() at which a bound is interrupted. together: how many samples suit the
    size of the layers, never the memory that is free; a batch that does not fit is halved. halved: the smallest batch to which a
    method came down. fallbacks: for (method, weaker one, reason) the samples it concerns, as keys, in order.
    incidents: batches that were lost. logits: whether the logits are bounded too, beside the margins.
    """

    subject: Subject
    norm: Norm
    batch_size: int
    slack: float = 0.0
    deadline: float = float("inf")
    fallbacks: dict[tuple[str, str, str], dict[int, None]] = field(default_factory=dict)
    halved: dict[str, int] = field(default_factory=dict)
    together: int = field(init=False)
    unsupported: dict[str, str] = field(default_factory=dict)
    incidents: Incidents = field(default_factory=Incidents)
    logits: bool = True

    def __post_init__(self) -> None:
        classifier, inputs = self.subject.classifier, self.subject.dataset.inputs
        sample = inputs[:1].to(classifier.device)
        self.together = min(self.batch_size, samples_that_suit(classifier.module, sample)) if len(sample) else 1

    def bound(self, method: str, indices: Tensor, epsilons: Tensor) -> Iterator[Part]:
        """Yield (indices, the method that ran, bounds) for parts of `indices` (int64), `epsilons` (n,) one each; in this process.

        The bounds are None where even the weakest method runs out of memory on a single sample. Raises IncompatibleError
        where no method has a bound for the model, OutOfTimeError at the deadline.
        """
        for members in self.units(indices, epsilons):
            yield from self._bound(method, indices[members], epsilons[members])

    def units(self, indices: Tensor, epsilons: Tensor) -> list[Tensor]:
        """Places of `indices` that are bounded together: under L2 and L1 auto-LiRPA takes one epsilon for all."""
        alike = [torch.arange(len(indices))]
        if self.norm is not Norm.LINF:
            alike = [(epsilons == value).nonzero().flatten() for value in epsilons.unique()]
        return [part for members in alike if len(members) for part in members.split(self.together)]

    def fell_back_to(self, method: str, weaker: str, reason: str, indices: Iterable[int]) -> None:
        """Remember that `weaker` answered for the samples at `indices`."""
        self.fallbacks.setdefault((method, weaker, reason), {}).update(dict.fromkeys(indices))

    def caveats(self) -> list[Caveat]:
        """Return a caveat for every fallback."""
        ids = self.subject.dataset.ids
        caveats = [
            Caveat("smaller_batch", f"{method} was run on {size} samples at a time, not {self.together}: memory.")
            for method, size in sorted(self.halved.items())
        ]
        caveats += [
            Caveat("weaker_method", f"{weaker} was used instead of {method}: {reason}.", tuple(ids[i] for i in indices))
            for (method, weaker, reason), indices in self.fallbacks.items()
        ]
        return [*caveats, *self.incidents.caveats(ids)]

    def _bound(self, method: str, indices: Tensor, epsilons: Tensor) -> Iterator[Part]:
        if method in self.unsupported:
            yield from self._give_way(method, indices, epsilons, self.unsupported[method])
            return
        try:
            bounds = self._bounded(method, indices, epsilons)
        except IncompatibleError as error:
            if method not in WEAKER:
                raise
            self.unsupported[method] = str(error)
            yield from self._bound(method, indices, epsilons)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(indices) == 1:
                yield from self._give_way(method, indices, epsilons, "out of memory on one sample")
                return
            half = (len(indices) + 1) // 2
            self.halved[method] = min(self.halved.get(method, half), half)
            for part, radii in zip(indices.split(half), epsilons.split(half), strict=True):
                yield from self._bound(method, part, radii)
        else:
            yield indices, method, bounds

    def _bounded(self, method: str, indices: Tensor, epsilons: Tensor) -> Bounds:
        classifier, epsilon = self.subject.classifier, epsilons if self.norm is Norm.LINF else float(epsilons[0])
        x, targets = self.subject.dataset.inputs[indices], self.subject.dataset.targets[indices]
        with time_limit(self.deadline), memory_limit(memory_to_use(classifier.device), classifier.device):
            bounds = bound_batch(classifier, x, targets, self.norm, epsilon, method, logits=self.logits)
        self._check(method, indices, bounds)
        return bounds.widened(self.slack)

    def _check(self, method: str, indices: Tensor, bounds: Bounds) -> None:
        """Raise IncompatibleError for bounds that exclude the clean sample, a point of every ball: they are wrong."""
        clean = self.subject.clean_logits[indices]
        margins = self.subject.classifier.criterion.margin(clean, self.subject.dataset.targets[indices])
        slack = 1e-3 * clean.abs().amax(1, keepdim=True).clamp(min=1)
        wrong = bounds.worst_margin[:, None] > margins[:, None] + slack
        wrong = wrong | (bounds.lower > clean + slack).any(1, True) | (bounds.upper < clean - slack).any(1, True)
        if wrong.any():
            sample = self.subject.dataset.ids[int(indices[int(wrong.flatten().nonzero()[0])])]
            raise IncompatibleError(
                f"auto-LiRPA {method} gives bounds that exclude the clean sample {sample}: they are wrong"
            )

    def _give_way(self, method: str, indices: Tensor, epsilons: Tensor, reason: str) -> Iterator[Part]:
        weaker = WEAKER.get(method)
        if weaker is None:
            yield indices, method, None
            return
        self.fell_back_to(method, weaker, reason, indices.tolist())
        yield from self._bound(weaker, indices, epsilons)


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
    alone = replace(bounder, fallbacks={}, halved={}, incidents=Incidents(), deadline=float("inf"), logits=logits)
    work = _Unit(alone, Deadline(bounder.deadline), method, is_known)
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

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        started = time.perf_counter()
        bounder = replace(self.bounder, fallbacks={}, halved={}, deadline=self.deadline.here())
        results = self.nothing(batch)
        position = {row: i for i, row in enumerate(batch.indices.tolist())}
        for indices, method, bounds in bounder.bound(self.method, batch.indices, self.epsilons[batch.indices]):
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
