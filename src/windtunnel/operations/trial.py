"""One entry, tried on a few samples: how long it takes, and how much memory."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from windtunnel.assessments.run import result_of, task_on
from windtunnel.assessments.verification.bound_propagation.memory import counts_its_own
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.machine import system_text, whole_memory
from windtunnel.core.subject import subject_of
from windtunnel.operations.api.pipeline import resolved_directly
from windtunnel.params.entry import Entry, Storage
from windtunnel.params.schema import Params
from windtunnel.records.layout import Layout
from windtunnel.records.result import AssessmentResult
from windtunnel.registry.plugins import families

_SAMPLED = 0.005  # seconds between looks at the memory
_IN_HALVES = frozenset({"batch_halved", "smaller_batch"})  # caveats


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Cost of `result`. memory: the most bytes that the process had beside mapped files. on_device: the most bytes of an
    accelerator; 0 where there is none.
    """

    seconds: float
    memory: int
    on_device: int
    result: AssessmentResult

    @property
    def taken(self) -> int:
        """Bytes of the memory that limits a batch: the accelerator's, or the process's own."""
        return self.on_device or self.memory

    @property
    def in_halves(self) -> bool:
        """Return True if the memory was too small for a batch."""
        return any(caveat.code in _IN_HALVES for caveat in self.result.caveats)


def tried(
    params: Params, family: str, name: str, entry: Entry, classifier: Classifier, samples: Dataset
) -> MeasuredCost:
    """Return an entry on all of `samples`, as if it stood alone: what other entries would have left to do is not known.

    The model's own predictions are the labels, so that each sample is attacked, whether the model is trained or not.
    Raises UserError for what the entry cannot run on.
    """
    unbound: dict[str, object] = {"on": None, "examples_from": (), "reference": None, "transfer_to": {}}
    changes = {key: value for key, value in unbound.items() if key in type(entry).model_fields}
    entry = entry.model_copy(update={**changes, "samples": type(entry.samples)(), "storage": Storage()})
    subject = subject_of(classifier, replace(samples, labelled=False), params.seed)
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder:
        task = task_on(
            families()[family], resolved_directly(params, family, name, entry), subject, Layout(Path(folder))
        )
        with _Accelerator(classifier.device) as accelerator, OwnMemory() as memory:
            started = time.perf_counter()
            result = result_of(families()[family], task)
            took = time.perf_counter() - started
    return MeasuredCost(took, memory.most, accelerator.most, result)


def memory_of_a_worker(device: torch.device, workers: int) -> int:
    """Bytes that there are for each worker, of `device` or of the machine and the container, whatever is free now."""
    if counts_its_own(device):
        total: int = torch.get_device_module(device).mem_get_info(device)[1]
    else:
        total = whole_memory()
    return total // workers


class _Accelerator:
    """`most`: the most bytes that torch held of an accelerator while the block ran; 0 of what has no memory of its own."""

    def __init__(self, device: torch.device) -> None:
        self.most, self._device = 0, device

    def __enter__(self) -> _Accelerator:
        if counts_its_own(self._device):
            module = torch.get_device_module(self._device)
            module.empty_cache()  # else what an earlier batch needed would count
            module.reset_peak_memory_stats(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if counts_its_own(self._device):
            self.most = torch.get_device_module(self._device).max_memory_reserved(self._device)


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
        lines = system_text(Path("/proc/self/status")).splitlines()
    except OSError:  # not Linux: what is mapped counts too
        return int(psutil.Process().memory_info().rss)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))
