"""`windtunnel check --estimate`: one batch of every entry, and what the whole job comes to."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from windtunnel.assessments.run import compute, task_on
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.executors import executor
from windtunnel.core.layout import Layout
from windtunnel.core.plugins import families
from windtunnel.core.subject import Subject, subject_of
from windtunnel.inputs.models.backends import PredictFunction
from windtunnel.operations.direct.pipeline import resolved_directly
from windtunnel.operations.sizes import Size, sizes_of
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params

_SAMPLED = 0.005  # seconds between looks at the memory
_ALONE = 4  # samples of a method with a time limit for each: a batch of them could take hours


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one entry comes to. batch: samples that were tried, in `measured` seconds. seconds: for all `samples`, over the workers.

    memory: the most bytes that the process took beside mapped files. disk: bytes of its results. skipped: why nothing was
    measured; the seconds and the memory are then 0.
    """

    name: str
    samples: int
    batch: int
    measured: float
    seconds: float
    memory: int
    disk: int
    skipped: str = ""


def estimates(
    params: Params, classifier: Classifier, assessed: Dataset, train: Dataset | None, workers: int
) -> Iterator[Estimate]:
    """One batch of each entry of params.yaml. Time grows with the samples, so that of the others is taken to be the same.

    The model's own predictions are the labels here, so that each sample is attacked, whether the model is trained or not.
    """
    sizes = {size.name: size for size in sizes_of(params, assessed, train)}
    for family, name, entry in entries(params):
        size = sizes[f"{family}.{name}"]
        if isinstance(classifier.module, PredictFunction):
            yield _nothing(size, "a Python predict is not asked: every query counts")
        elif families()[family].generators:
            yield _nothing(size, "its generative models are made by the run")
        else:
            try:
                yield _measured(params, family, name, entry, classifier, assessed, size, workers)
            except UserError as error:
                yield _nothing(size, str(error).splitlines()[0])


def workers_there() -> int:
    """How many workers the executor has; one for work that is done in this process."""
    found = executor()
    known: int | None = getattr(found, "workers", 1)
    return known or os.cpu_count() or 1


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
    alone = getattr(entry, "timeout", None) is not None
    few = min(size.samples, entry.batch_size, _ALONE if alone else entry.batch_size)
    # What other entries would have left to do is not known: it is attacked, or verified, as if it stood alone.
    unbound: dict[str, object] = {"on": None, "examples_from": (), "reference": None, "transfer_to": {}}
    changes = {key: value for key, value in unbound.items() if key in type(entry).model_fields}
    entry = entry.model_copy(update={**changes, "samples": type(entry.samples)()})
    subject = _first(classifier, assessed, few, params.seed)
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder:
        resolved = resolved_directly(params, family, name, entry)
        task = task_on(families()[family], resolved, subject, Layout(Path(folder)))
        with OwnMemory() as memory:
            started = time.perf_counter()
            compute(families()[family], task)
            took = time.perf_counter() - started
    # A batch of several units was spread over the workers when it was timed.
    spread = max(1, min(workers, -(-size.samples // few))) if entry.batch_is_a_unit else 1
    return Estimate(size.name, size.samples, few, took, took * size.samples / few / spread, memory.most, size.bytes)


def _first(classifier: Classifier, assessed: Dataset, few: int, seed: int) -> Subject:
    unlabelled = replace(
        assessed, inputs=assessed.inputs[:few], targets=assessed.targets[:few], ids=assessed.ids[:few], labelled=False
    )
    return subject_of(classifier, unlabelled, seed)


def _nothing(size: Size, why: str) -> Estimate:
    return Estimate(size.name, size.samples, 0, 0.0, 0.0, 0, size.bytes, why)


class OwnMemory:
    """`most`: the most bytes that this process had of memory in no file, while the block ran."""

    def __init__(self) -> None:
        self.most, self._done = 0, threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> OwnMemory:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watching.join()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, _own_memory())
            if self._done.wait(_SAMPLED):
                return


def _own_memory() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux: what is mapped counts too
        return int(psutil.Process().memory_info().rss)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))
