"""The unit of work: a batch of samples with its own seed. A killed run continues where it stopped."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.artifacts import load_tensors, save_tensors
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.core.executors import Lost, executor, is_inside_a_unit
from windtunnel.core.narration import say
from windtunnel.core.placement import PROGRESS_FILE
from windtunnel.core.seeds import derive_seed

T = TypeVar("T")
CHECKPOINTS = Path(".cache/windtunnel/checkpoints")
WORTH_KEEPING = 1.0  # seconds: what takes less in all is sooner done again than written
TELL_EVERY = 60.0  # seconds between lines of progress where there is no terminal
_WRITE_EVERY = 0.5  # seconds between writes of the progress file
KEEP_AT_MOST = 4  # batches that wait in memory to be written
KEPT_TEXT = "what is finished is kept, and the next dvc repro does only the rest"
LOST_SAMPLES = "batch_failed"  # code of the caveat on samples whose workers died or hung
_HALVED = "halved"  # in a result: the memory did not hold the batch


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


class Checkpoint:
    """Results of finished batches, kept outside DVC's outputs until the assessment is whole.

    `resolved` is the digest of everything that `resolve` found to decide the result (params, code, versions), `identity`
    what is known only later (digests of data and model, device); a run that differs in either never sees these files.
    Without `resolved`, outside the pipeline, nothing is kept: nobody could tell whether a file is still right.
    """

    def __init__(self, name: str, resolved: str, identity: object, root: Path | None = None) -> None:
        text = json.dumps([name, resolved, identity], sort_keys=True, default=str)
        self.directory = (root or CHECKPOINTS) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        self._keeps, self._kept = bool(resolved), False

    def keep(self) -> None:
        """The assessment is not whole: `clear` leaves what there is, for whoever tries the rest."""
        self._kept = True

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
        """Forget everything: the assessment is on disk. But not where it is not whole (`keep`)."""
        if not self._kept:
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(slots=True)
class Incidents:
    """What did not go as it should: samples (by their index) without a result, by reason, and samples worked on in halves."""

    lost: dict[str, list[int]] = field(default_factory=dict)
    halved: list[int] = field(default_factory=list)

    @property
    def lost_samples(self) -> Tensor:
        """The samples without a result, int64, ascending."""
        return torch.tensor(sorted(index for indices in self.lost.values() for index in indices), dtype=torch.int64)

    def caveats(self, ids: Sequence[str]) -> list[Caveat]:
        """A line for each, with the samples it concerns."""
        found = [
            Caveat(LOST_SAMPLES, f"{len(indices)} samples have no result: {reason}.", tuple(ids[i] for i in indices))
            for reason, indices in self.lost.items()
        ]
        if self.halved:
            text = "Memory was short: batches were worked on in halves, whose random draws are others than those of the whole."
            found.append(Caveat("batch_halved", text, tuple(ids[i] for i in self.halved)))
        return found


def each_batch(
    batches: Iterable[Batch],
    work: Callable[[Batch], dict[str, Tensor]],
    *,
    name: str,
    checkpoint: Checkpoint | None = None,
    without: Callable[[Batch], dict[str, Tensor]] | None = None,
    incidents: Incidents | None = None,
    processes: int = 1,
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Do `work` on every batch, with a progress bar; each batch beside its result, in order, which is not kept here.

    `work` returns tensors whose first axis is the samples of its batch; it is done wherever `executor` says (where nothing is asked for
    in so many `processes`), and gives the same there. A batch that the memory does not hold is worked on in halves.
    A run that is killed loses what is in work; of the first second, `WORTH_KEEPING`, all but KEEP_AT_MOST batches.
    without: what stands for the result of a batch whose workers died or hung; `incidents` then says why. Raises InfrastructureError
    for such a batch where there is no such thing, when all others are done and kept.
    """
    todo = list(batches)
    said = Incidents() if incidents is None else incidents
    there = {b.number for b in todo if checkpoint and checkpoint.has(b.number)}
    fresh = _finished([b for b in todo if b.number not in there], work, name, checkpoint, processes)
    ready: dict[int, dict[str, Tensor] | Lost] = {}  # by number, what came before its turn
    with closing(fresh), progress_bar() as progress:
        before = sum(len(b.indices) for b in todo if b.number in there)
        task = progress.add_task(name, total=sum(len(b.indices) for b in todo), completed=before)
        for batch in todo:
            part: dict[str, Tensor] | Lost | None = None
            if checkpoint and batch.number in there:
                part = checkpoint.get(batch.number)
            if part is None and batch.number in there:  # it was damaged by a kill
                part = _Fitting(work)(batch)
            while part is None:
                if (part := ready.pop(batch.number, None)) is None:
                    done, found = next(fresh)
                    ready[done.number] = found
                    progress.advance(task, len(done.indices))
            if isinstance(part, Lost):
                said.lost.setdefault(part.reason, []).extend(batch.indices.tolist())
                if without is None:
                    continue
                part = without(batch)
            elif part.pop(_HALVED, None) is not None:
                said.halved += batch.indices.tolist()
            yield batch, part
        if not said.lost:
            next(fresh, None)  # its end: closed before it, it would write what nobody needs any more
    if said.lost:
        if checkpoint is not None:
            checkpoint.keep()
        if without is None:
            raise InfrastructureError(
                f"{name}: {len(said.lost_samples)} samples have no result: {next(iter(said.lost))}; {KEPT_TEXT}"
            )
        say(f"{name}: {len(said.lost_samples)} samples have no result: {next(iter(said.lost))}; {KEPT_TEXT}")


def _finished(
    batches: Sequence[Batch],
    work: Callable[[Batch], dict[str, Tensor]],
    name: str,
    checkpoint: Checkpoint | None,
    processes: int,
) -> Generator[tuple[Batch, dict[str, Tensor] | Lost], None, None]:
    """Every batch beside its result, as they come; kept at once, whatever is still missing before it."""
    fresh: list[Callable[[], None]] = []
    began = time.monotonic()
    results = executor(processes).results(_Fitting(work), batches, name)
    try:
        with closing(results):
            for place, part in results:
                if checkpoint and not isinstance(part, Lost):
                    fresh.append(functools.partial(checkpoint.put, batches[place].number, dict(part)))
                if len(fresh) >= KEEP_AT_MOST or time.monotonic() - began > WORTH_KEEPING:
                    _write(fresh)
                yield batches[place], part
    except BaseException:
        _write(fresh)
        raise


@dataclass(frozen=True, slots=True)
class _Fitting:
    """`work`, in halves where the memory does not hold a batch: always the same ones, and their results say so."""

    work: Callable[[Batch], dict[str, Tensor]]

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        try:
            return self.work(batch)
        except (RuntimeError, MemoryError) as error:
            if len(batch.indices) < 2 or not out_of_memory(error):
                raise
        parts = [self(half) for half in batch.halves()]
        found = {key: torch.cat([part[key] for part in parts]) for key in parts[0].keys() - {_HALVED}}
        return {**found, _HALVED: torch.ones(len(batch.indices), dtype=torch.bool)}


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory is short; on the CPU torch raises a plain RuntimeError for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in ("allocate memory", "bad_alloc")
    )


def _write(waiting: list[Callable[[], None]]) -> None:
    while waiting:
        waiting.pop()()


def run_batches(
    batches: Iterable[Batch],
    work: Callable[[Batch], dict[str, Tensor]],
    *,
    name: str,
    checkpoint: Checkpoint | None = None,
    without: Callable[[Batch], dict[str, Tensor]] | None = None,
    incidents: Incidents | None = None,
) -> dict[str, Tensor]:
    """As `each_batch`, all results joined along the first axis, in batch order; an empty dictionary for no batches."""
    todo = list(batches)
    n, filled = sum(len(batch.indices) for batch in todo), 0
    joined: dict[str, Tensor] = {}
    for batch, part in each_batch(todo, work, name=name, checkpoint=checkpoint, without=without, incidents=incidents):
        place = slice(filled, filled + len(batch.indices))
        for key, value in part.items():
            if key not in joined:
                joined[key] = scratch.empty((n, *value.shape[1:]), value.dtype)
            joined[key][place] = value
        filled = place.stop
    return joined


class _Told(Progress):
    """A bar on a terminal; elsewhere (a log, a scheduler) a line a minute, for work that takes long; none before a batch is done."""

    _began = _told = 0.0
    _before = _written = 0.0

    def add_task(self, description: str, *, total: float, completed: float = 0) -> TaskID:  # type: ignore[override]
        """As rich's; the clock of the lines starts."""
        self._began = self._told = time.perf_counter()
        self._before = completed
        return super().add_task(description, total=total, completed=int(completed))

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """As rich's, and the line where one is due."""
        super().advance(task_id, advance)
        now = time.perf_counter()
        if (file := os.environ.get(PROGRESS_FILE)) and not is_inside_a_unit() and now - self._written > _WRITE_EVERY:
            self._written, task = now, self._tasks[task_id]
            rate = (task.completed - self._before) / (now - self._began)
            Path(file).write_text(json.dumps({"completed": task.completed, "total": task.total, "rate": rate}))
        if not self.disable or is_inside_a_unit() or now - self._told < TELL_EVERY:
            return
        # By the clock and not by the last line, so that batches of 35 s do not make it a line every 70.
        self._told += (now - self._told) // TELL_EVERY * TELL_EVERY
        task = self._tasks[task_id]
        total, rate = task.total or 0.0, (task.completed - self._before) / (now - self._began)
        left = timedelta(seconds=round((total - task.completed) / rate)) if rate else "an unknown time"
        line = f"{task.description}: {task.completed:.0f} of {total:.0f}, {rate:.3g}/s, {left} left"
        print(line, file=sys.stderr, flush=True)

    def track(self, sequence: Sequence[T], *, description: str) -> Iterator[T]:  # type: ignore[override]
        """As rich's, whose thread ends at once where nothing is drawn, so that it would tell nothing."""
        task = self.add_task(description, total=len(sequence))
        for value in sequence:
            yield value
            self.advance(task)


class _Rate(ProgressColumn):
    """Samples a second, over all workers."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.3g}/s" if task.speed else "", style="progress.data.speed")


def progress_bar() -> _Told:
    """The one progress bar of the project: name, bar, samples done, rate, time left; a line a minute where there is no terminal.

    Silent inside a unit, whose progress is that of the whole.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    silent = is_inside_a_unit() or not sys.stderr.isatty()
    return _Told(*columns, transient=True, disable=silent, console=Console(stderr=True))
