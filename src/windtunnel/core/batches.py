"""The unit of work: a batch of samples with its own seed. A killed run continues where it stopped."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from windtunnel.core.artifacts import load_tensors, save_tensors
from windtunnel.core.errors import UserError
from windtunnel.core.executors import executor
from windtunnel.core.seeds import derive_seed

CHECKPOINTS = Path(".cache/windtunnel/checkpoints")
KEEP_EVERY = 1.0  # seconds: what takes less is sooner done again than written
TELL_EVERY = 20.0  # seconds between lines of progress where there is no terminal
KEEP_AT_MOST = 4  # batches that wait in memory to be written


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples `indices` (int64) of the data set, batch number `number`, with the seed that is this batch's own."""

    number: int
    indices: Tensor
    seed: int


def batches_of(indices: Tensor, batch_size: int, run_seed: int, name: str) -> list[Batch]:
    """Cut `indices` into batches; the seed of each is derived from (run seed, assessment name, batch number)."""
    parts = indices.split(batch_size) if len(indices) else ()
    return [Batch(i, part, derive_seed(run_seed, name, i)) for i, part in enumerate(parts)]


class Checkpoint:
    """Results of finished batches, kept outside DVC's outputs until the assessment is whole.

    `resolved` is the digest of everything that `resolve` found to decide the result (params, code, versions), `identity`
    what is known only later (digests of data and model, device); a run that differs in either never sees these files.
    Without `resolved`, outside the pipeline, nothing is kept: nobody could tell whether a file is still right.
    """

    def __init__(self, name: str, resolved: str, identity: object, root: Path | None = None) -> None:
        text = json.dumps([name, resolved, identity], sort_keys=True, default=str)
        self.directory = (root or CHECKPOINTS) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        self._keeps = bool(resolved)

    def get(self, number: int) -> dict[str, Tensor] | None:
        """The result of batch `number`, or None where it is not there or was damaged by a kill."""
        if not self._keeps:
            return None
        try:
            loaded = load_tensors(self.directory / f"{number:06d}.pt")
        except UserError:
            return None
        return {key: value for key, value in loaded.items() if isinstance(value, Tensor)}

    def has(self, number: int) -> bool:
        """Whether there is a result of batch `number`, be it damaged."""
        return self._keeps and (self.directory / f"{number:06d}.pt").is_file()

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        """Keep the result of batch `number`."""
        if self._keeps:
            save_tensors(dict(result), self.directory / f"{number:06d}.pt")

    def clear(self) -> None:
        """Forget everything: the assessment is on disk."""
        shutil.rmtree(self.directory, ignore_errors=True)


def each_batch(
    batches: Iterable[Batch],
    work: Callable[[Batch], dict[str, Tensor]],
    *,
    name: str,
    checkpoint: Checkpoint | None = None,
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Do `work` on every batch, with a progress bar; each batch beside its result, in order, which is not kept here.

    `work` returns tensors with one row per sample of its batch; it is done wherever `executor` says, and gives the same there.
    A run that is killed loses `KEEP_EVERY` seconds at most.
    """
    todo = list(batches)
    fresh: list[Callable[[], None]] = []
    kept = time.monotonic()
    try:
        with progress_bar() as progress:
            task = progress.add_task(name, total=sum(len(b.indices) for b in todo))
            there = {b.number for b in todo if checkpoint and checkpoint.has(b.number)}
            new = executor().results(work, (b for b in todo if b.number not in there), name)
            for batch in todo:
                part = checkpoint.get(batch.number) if checkpoint and batch.number in there else None
                if part is None:
                    part = next(new) if batch.number not in there else work(batch)  # it was there, but damaged
                    if checkpoint:
                        fresh.append(functools.partial(checkpoint.put, batch.number, part))
                if len(fresh) >= KEEP_AT_MOST or time.monotonic() - kept > KEEP_EVERY:
                    _write(fresh)
                    kept = time.monotonic()
                yield batch, part
                progress.advance(task, len(batch.indices))
    except BaseException:
        _write(fresh)
        raise


def _write(waiting: list[Callable[[], None]]) -> None:
    while waiting:
        waiting.pop()()


def run_batches(
    batches: Iterable[Batch],
    work: Callable[[Batch], dict[str, Tensor]],
    *,
    name: str,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Tensor]:
    """As `each_batch`, all results joined along the first axis, in batch order; an empty dictionary for no batches."""
    parts = [part for _, part in each_batch(batches, work, name=name, checkpoint=checkpoint)]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]} if parts else {}


class _Told(Progress):
    """A bar on a terminal; elsewhere (a log, a scheduler) a line now and then, for work that takes long."""

    _told: float | None = None

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """As rich's, and the line where one is due."""
        super().advance(task_id, advance)
        if not self.disable:
            return
        task, now = self._tasks[task_id], time.perf_counter()
        self._told = now if self._told is None else self._told
        if now - self._told > TELL_EVERY:
            self._told = now
            print(f"{task.description}: {task.completed:.0f} of {task.total or 0:.0f}", file=sys.stderr, flush=True)


def progress_bar() -> Progress:
    """The one progress bar of the project: name, bar, samples done, time left; a line now and then where there is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return _Told(*columns, transient=True, disable=not sys.stderr.isatty(), console=Console(stderr=True))
