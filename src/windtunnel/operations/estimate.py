"""`windtunnel check --estimate`: one batch of every entry, and what the whole job comes to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import torch

from windtunnel.assessments.attacks.preflight import seconds_a_sample
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity.cost import Cost, cost_of_checks
from windtunnel.operations.sizes import Size, gigabytes, sizes_of
from windtunnel.operations.trial import MeasuredCost, memory_of_a_worker, tried
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.registry.plugins import families
from windtunnel.runtime.executors import executor

_ALONE = 4  # samples of a method that takes minutes for each: a batch of them could take hours
_PART = 8  # an eighth of a batch, or eight times a small one, says what a batch costs whatever its size
_WORTH_SAYING = 10.0  # seconds that another batch size must save, and half of the time


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of one entry. batch: samples that were tried, in `measured` seconds. seconds: for all `samples`, over the workers.

    memory: the most bytes that the process took beside mapped files. disk: bytes of its results. skipped: why nothing was
    measured; the seconds and the memory are then 0. advice: the line for a batch size that does not fit, or is slow.
    """

    name: str
    samples: int
    batch: int
    measured: float
    seconds: float
    memory: int
    disk: int
    skipped: str = ""
    advice: str = ""

    @property
    def is_attack(self) -> bool:
        """True if the witness of the sanity checks makes passes in proportion to those of the entry."""
        return self.name.startswith(("attacks.", "queries."))


def estimates(
    params: Params, classifier: Classifier, assessed: Dataset, train: Dataset | None, workers: int
) -> Iterator[Estimate]:
    """One batch of each entry of params.yaml. Time grows with the samples, so that of the others is taken to be the same.

    The model's own predictions are the labels here, so that each sample is attacked, whether the model is trained or not.
    """
    sizes = {size.name: size for size in sizes_of(params, assessed, train)}
    for family, name, entry in entries(params):
        size = sizes[f"{family}.{name}"]
        if why := cannot_be_tried(family, classifier):
            yield _nothing(size, why)
            continue
        try:
            yield _measured(params, family, name, entry, classifier, assessed, size, workers)
        except UserError as error:
            yield _nothing(size, str(error).splitlines()[0])


def cannot_be_tried(family: str, classifier: Classifier) -> str:
    """Why no entry of a family can be tried on a model before the run; empty where it can."""
    if isinstance(classifier.module, PredictFunction):
        return "a Python predict is not asked: every query counts"
    return "its generative models are made by the run" if families()[family].generators else ""


def workers_there() -> int:
    """Return the number of workers of the executor; one for work that is done in this process."""
    return executor().workers or os.cpu_count() or 1


def _measured(
    params: Params,
    family: str,
    name: str,
    entry: Entry,
    classifier: Classifier,
    assessed: Dataset,
    size: Size,
    workers: int,
) -> Estimate:
    few = min(size.samples, entry.batch_size)
    if entry.takes_minutes_a_sample or (family == "attacks" and seconds_a_sample(entry, assessed) > 1):
        few = min(few, _ALONE)
    several = few == entry.batch_size < size.samples and not entry.batch_size_unused

    other = ceil(few / _PART) if few >= _PART else min(few * _PART, size.samples)

    def on(n: int) -> MeasuredCost:
        together = entry.model_copy(update={"batch_size": max(entry.batch_size, n)})
        return tried(params, family, name, together, classifier, assessed.subset(torch.arange(n)))

    if several:
        on(other)  # libraries are imported within the first
    trial = on(few)
    beside = on(other).seconds if several else 0.0
    # A batch of several units was spread over the workers when it was timed.
    spread = max(1, min(workers, -(-size.samples // few))) if entry.batch_is_a_unit else 1
    seconds_in_all = trial.seconds * size.samples / few / spread
    advice = _too_large(entry, trial, memory_of_a_worker(classifier.device, workers))
    if several and not advice:
        each = max(0.0, (trial.seconds - beside) / (few - other))
        advice = _too_small(entry, max(0.0, trial.seconds - each * few) + each * size.samples / spread, seconds_in_all)
    advice_line = f"{size.name}.{advice}" if advice else ""
    return Estimate(
        size.name, size.samples, few, trial.seconds, seconds_in_all, trial.memory, size.bytes, advice=advice_line
    )


def _too_large(entry: Entry, trial: MeasuredCost, limit: int) -> str:
    """Return the line for a batch that the memory does not hold."""
    if trial.taken <= limit and not trial.in_halves:
        return ""
    return (
        f"batch_size: {entry.batch_size} takes {gigabytes(trial.taken)}, and a worker has {gigabytes(limit)}: it does not fit, or "
        f"only in halves; set a smaller batch_size"
    )


def _too_small(entry: Entry, best: float, seconds: float) -> str:
    """Return the line where beginning a batch costs more than its samples. best: seconds of all in a batch for each worker."""
    if best > seconds / 2 or seconds - best < _WORTH_SAYING:
        return ""
    return (
        f"batch_size: {entry.batch_size} takes about {seconds:.0f} s, and larger batches as little as {best:.0f} s; set a "
        f"larger batch_size"
    )


def attack_seconds(rows: Sequence[Estimate]) -> float:
    """Return the seconds of all attacks among the entries."""
    return sum(row.seconds for row in rows if row.is_attack)


def checks_cost(params: Params, classifier: Classifier, assessed: Dataset, rows: Sequence[Estimate]) -> Cost | None:
    """Estimate what the sanity checks cost after entries of these costs; None where they make no passes, or as `cost_of_checks`."""
    certified = sum(row.samples for row in rows if row.name.startswith("verification."))
    return cost_of_checks(params.sanity, classifier, assessed, certified, attack_seconds=attack_seconds(rows))


def _nothing(size: Size, why: str) -> Estimate:
    return Estimate(size.name, size.samples, 0, 0.0, 0.0, 0, size.bytes, why)
