"""Run batches on the executor, with progress, and with results on disk, so that a killed run continues where it stopped.

What decides a result is in `core.batches`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from torch import Tensor

from windtunnel.core.batches import HALVED, Batch, HalvingWork, Incidents, join_results
from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import load_tensors, save_tensors
from windtunnel.runtime.console import warn
from windtunnel.runtime.executors import executor
from windtunnel.runtime.executors.dispatcher import Lost
from windtunnel.runtime.progress import progress_bar

WORTH_KEEPING = 1.0  # seconds: what takes less in all is sooner done again than written
KEEP_AT_MOST = 4  # batches that wait in memory to be written
CHECKPOINTS = Path(".cache/windtunnel/checkpoints")
_FORMAT = 1  # raise it when a file of another meaning is written: this module is in no cache key
KEPT_TEXT = "what is finished is kept, and the next dvc repro does only the rest"


class Checkpoint:
    """Results of finished batches, kept outside DVC's outputs until the assessment is whole.

    `resolved` is the digest of everything that `resolve` found to decide the result (params, code, versions), `identity`
    what is known only later (digests of data and model, device); a run that differs in either never sees these files.
    Without `resolved`, outside the pipeline, nothing is kept: nobody could tell whether a file is still right.
    """

    def __init__(self, name: str, resolved: str, identity: object, root: Path | None = None) -> None:
        text = json.dumps([_FORMAT, name, resolved, identity], sort_keys=True, default=str)
        self.directory = (root or CHECKPOINTS) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        self._keeps, self._kept = bool(resolved), False

    @classmethod
    def of(cls, name: str, subject: Subject, *identity: object) -> Checkpoint:
        """Return the checkpoint of an assessment of `subject`, whose data, model, seed and device join the `identity`."""
        data, model = subject.dataset.digest(), subject.classifier.digest
        return cls(name, subject.resolved, [*identity, data, model, subject.seed, str(subject.classifier.device)])

    def keep(self) -> None:
        """Mark the assessment as incomplete: `clear` leaves what there is, for whoever tries the rest."""
        self._kept = True

    def get(self, number: int) -> dict[str, Tensor] | None:
        """Return the result of batch `number`, or None where it is not there or was damaged by a kill."""
        if not self._keeps:
            return None
        try:
            loaded = load_tensors(self.directory / f"{number:06d}.pt")
        except UserError:
            return None
        return {key: value for key, value in loaded.items() if isinstance(value, Tensor)}

    def has(self, number: int) -> bool:
        """Return True if there is a file for batch `number`, even a damaged one."""
        return self._keeps and (self.directory / f"{number:06d}.pt").is_file()

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        """Keep the result of batch `number`."""
        if self._keeps:
            save_tensors(dict(result), self.directory / f"{number:06d}.pt")

    def clear(self) -> None:
        """Forget everything: the assessment is on disk. But not where it is not whole (`keep`)."""
        if not self._kept:
            shutil.rmtree(self.directory, ignore_errors=True)


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
    """Run `work` on every batch with a progress bar; yield (batch, result) in order, without keeping results.

    `work` returns tensors whose first axis is the samples of its batch; it is done wherever `executor` says (where nothing is asked for
    in so many `processes`), and gives the same there. A batch that does not fit in memory is halved.
    A run that is killed loses what is in work; of the first second, `WORTH_KEEPING`, all but KEEP_AT_MOST batches.
    without: returns the substitute result of a batch whose workers died or hung; `incidents` gets the reason. Raises InfrastructureError
    for such a batch where there is no such thing, when all others are done and kept.
    """
    todo = list(batches)
    log = Incidents() if incidents is None else incidents
    stored = {b.number for b in todo if checkpoint and checkpoint.has(b.number)}
    fresh = _finished([b for b in todo if b.number not in stored], work, name, checkpoint, processes)
    ready: dict[int, dict[str, Tensor] | Lost] = {}  # by number, what came before its turn
    with closing(fresh), progress_bar() as progress:
        before = sum(len(b.indices) for b in todo if b.number in stored)
        task = progress.add_task(name, total=sum(len(b.indices) for b in todo), completed=before)
        for batch in todo:
            part: dict[str, Tensor] | Lost | None = None
            if checkpoint and batch.number in stored:
                part = checkpoint.get(batch.number)
            if part is None and batch.number in stored:  # it was damaged by a kill
                part = HalvingWork(work)(batch)
            while part is None:
                if (part := ready.pop(batch.number, None)) is None:
                    done, result = next(fresh)
                    ready[done.number] = result
                    progress.advance(task, len(done.indices))
            if isinstance(part, Lost):
                log.lost.setdefault(part.reason, []).extend(batch.indices.tolist())
                if without is None:
                    continue
                part = without(batch)
            elif part.pop(HALVED, None) is not None:
                log.halved += batch.indices.tolist()
            yield batch, part
        if not log.lost:
            next(fresh, None)  # its end: closed before it, it would write what nobody needs any more
    if log.lost:
        if checkpoint is not None:
            checkpoint.keep()
        if without is None:
            raise InfrastructureError(
                f"{name}: {len(log.lost_samples)} samples have no result: {next(iter(log.lost))}; {KEPT_TEXT}"
            )
        warn(f"{name}: {len(log.lost_samples)} samples have no result: {next(iter(log.lost))}; {KEPT_TEXT}")


def _finished(
    batches: Sequence[Batch],
    work: Callable[[Batch], dict[str, Tensor]],
    name: str,
    checkpoint: Checkpoint | None,
    processes: int,
) -> Generator[tuple[Batch, dict[str, Tensor] | Lost], None, None]:
    """Yield (batch, result) as they finish; each is stored at once, also before earlier batches are done."""
    fresh: list[Callable[[], None]] = []
    began = time.monotonic()
    results = executor(processes).results(HalvingWork(work), batches, name)
    try:
        with closing(results):
            for index, part in results:
                if checkpoint and not isinstance(part, Lost):
                    fresh.append(functools.partial(checkpoint.put, batches[index].number, dict(part)))
                if len(fresh) >= KEEP_AT_MOST or time.monotonic() - began > WORTH_KEEPING:
                    _write(fresh)
                yield batches[index], part
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
    without: Callable[[Batch], dict[str, Tensor]] | None = None,
    incidents: Incidents | None = None,
) -> dict[str, Tensor]:
    """Run `each_batch` and join all results along the first axis, in batch order; an empty dictionary for no batches."""
    todo = list(batches)
    results = each_batch(todo, work, name=name, checkpoint=checkpoint, without=without, incidents=incidents)
    return join_results(results, sum(len(batch.indices) for batch in todo))
