"""Dispatch units of work to workers, one at a time each; replace workers that die or hang."""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from windtunnel.core.errors import InfrastructureError
from windtunnel.runtime.placement import batch_limit

AHEAD = 2  # units for each worker that are in work, or done and waiting for one before them: memory stays bounded
# A unit is given up after DEATHS deaths of its workers, plus one for each death that no unit can have caused (a worker that was only
# starting, or whose unit another worker finished), at most AT_MOST. Measured: tests/hostile/worker_kills.py.
DEATHS, AT_MOST = 5, 20
HANGS = 2  # a unit that hangs hangs again, and each time costs the whole limit
STARTS = 3  # so many times a whole pool may die before one of it is ready
START_LIMIT = 300.0  # seconds in which some worker must be ready
_LOOK_EVERY = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Lost:
    """Sentinel result of a unit that was given up; `reason` says why."""

    reason: str
    hung: bool = False


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A message from a worker, or its death.

    kind: `ready`, `done`, `raised` or `died`. content: the versions it computes with, the result, the exception, the reason.
    """

    kind: Literal["ready", "done", "raised", "died"]
    content: Any


class Worker(Protocol):
    """A process that has loaded the work and computes one unit at a time. channel: what `WorkerPool.wait` waits for."""

    channel: Any

    def load(self, payload: Any) -> None:
        """Begin to load the work; the event is `ready` or `raised`."""

    def submit(self, unit: object) -> None:
        """Begin a unit; the event is `done` or `raised`."""

    def read_event(self) -> WorkerEvent:
        """Return the event that has come on the channel; `died` for a worker that is no more."""

    def end(self) -> None:
        """Kill the worker."""


@dataclass
class WorkerPool:
    """Workers of one kind, reused for the next piece of work because their imports take seconds."""

    size: int
    """The number of workers wanted."""
    start: Callable[[], Worker]
    """Starts one."""
    wait: Callable[[list[Any], float], Sequence[Any]]
    """Waits at most some seconds until one of the channels has an event; returns those that have."""
    check_worker: Callable[[Mapping[str, str]], None]
    """Raises UserError for a worker whose versions would give other results."""
    workers: list[Worker] = field(default_factory=list)
    """Those that are alive."""

    def spawn(self) -> Worker:
        """Start one more worker."""
        self.workers.append(self.start())
        return self.workers[-1]

    def wait_events(self, workers: Sequence[Worker], seconds: float) -> list[tuple[Worker, WorkerEvent]]:
        """Return the events of `workers`, after waiting at most `seconds` for one."""
        by_channel = {worker.channel: worker for worker in workers}
        return [(by_channel[c], by_channel[c].read_event()) for c in self.wait(list(by_channel), seconds)]

    def end(self) -> None:
        """Kill all workers."""
        while self.workers:
            self.workers.pop().end()


@dataclass(frozen=True, slots=True)
class _Assignment:
    index: int
    seconds: float
    until: float


@dataclass
class Dispatcher:
    """Spread one piece of work over a pool of workers."""

    pool: WorkerPool
    payload: Any
    units: Sequence[Any]
    name: str
    limit: Callable[[Any], float] | None = None
    _busy: dict[Worker, _Assignment] = field(default_factory=dict)
    _opening: dict[Worker, float] = field(default_factory=dict)
    _idle: deque[Worker] = field(default_factory=deque)
    _again: deque[int] = field(default_factory=deque)
    _deaths: Counter[int] = field(default_factory=Counter)
    _from_outside: int = 0
    _hangs: Counter[int] = field(default_factory=Counter)
    _starts: int = 0
    _unfinished: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _next: int = 0

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yield (index of the unit, its result) as `Executor.results` does."""
        longest = batch_limit() if self.limit is None else 0.0
        self._unfinished = OrderedDict.fromkeys(range(len(self.units)))
        try:
            while len(self.pool.workers) < min(self.pool.size, len(self.units)):
                self.pool.spawn()
            for worker in self.pool.workers:
                self._open(worker)
            while self._unfinished:
                self._dispatch(longest)
                for index, result in self._collect():
                    del self._unfinished[index]
                    self._dispatch(longest)  # workers go on while the caller uses the result
                    yield index, result
        finally:
            for worker in [*self._busy, *self._opening]:  # its events would be taken for those of the next work
                self._end_worker(worker)

    def _dispatch(self, longest: float) -> None:
        """Submit a unit to every idle worker. longest: seconds for each unit where `limit` is None."""
        while self._idle and (index := self._next_index()) is not None:
            unit = self.units[index]
            seconds = self.limit(unit) if self.limit else longest
            worker = self._idle.popleft()
            self._busy[worker] = _Assignment(index, seconds, time.monotonic() + seconds)
            worker.submit(unit)

    def _next_index(self) -> int | None:
        if self._again:
            return self._again.popleft()
        lowest = next(iter(self._unfinished), self._next)
        if self._next < len(self.units) and self._next - lowest < AHEAD * self.pool.size:
            self._next += 1
            return self._next - 1
        return None

    def _open(self, worker: Worker) -> None:
        self._opening[worker] = time.monotonic() + START_LIMIT
        worker.load(self.payload)

    def _collect(self) -> Iterator[tuple[int, Any]]:
        """Yield results that arrived and units that were given up."""
        for worker, event in self.pool.wait_events([*self._busy, *self._opening], _LOOK_EVERY):
            if event.kind == "ready":
                self._opening.pop(worker)
                self.pool.check_worker(event.content)
                self._starts = 0
                self._idle.append(worker)
            elif event.kind == "done":
                assignment = self._busy.pop(worker)
                self._idle.append(worker)
                self._from_outside += self._deaths[assignment.index]
                yield assignment.index, event.content
            elif event.kind == "raised":
                raise event.content
            elif worker in self._busy:
                max_tries = min(DEATHS + self._from_outside, AT_MOST)
                yield from self._retry_or_give_up(worker, self._deaths, max_tries, f"its worker died ({event.content})")
            else:
                self._replace_failed_start(worker, event.content)
        now = time.monotonic()
        for worker in [worker for worker, assignment in self._busy.items() if now > assignment.until]:
            seconds = self._busy[worker].seconds
            max_tries = HANGS if self.limit is None else 1
            yield from self._retry_or_give_up(
                worker, self._hangs, max_tries, f"its worker gave no answer in {seconds:g} s"
            )
        if not self._busy and not self._idle and self._opening and now > max(self._opening.values()):
            raise InfrastructureError(
                f"{self.name}: no worker was ready in {START_LIMIT:g} s; is there a free processor for one? What is finished is kept"
            )

    def _retry_or_give_up(
        self, worker: Worker, count: Counter[int], max_tries: int, reason: str
    ) -> Iterator[tuple[int, Any]]:
        index = self._busy.pop(worker).index
        self._end_worker(worker)
        count[index] += 1
        if count[index] >= max_tries:
            yield index, Lost(f"{reason}, {max_tries} times" if max_tries > 1 else reason, hung=count is self._hangs)
        else:
            self._again.append(index)
        self._open(self.pool.spawn())

    def _replace_failed_start(self, worker: Worker, reason: str) -> None:
        """Start another worker; raise InfrastructureError where every worker dies before it is ready."""
        self._starts += 1
        self._from_outside += 1
        self._end_worker(worker)
        if self._starts >= STARTS * self.pool.size and not self._busy and not self._idle:
            raise InfrastructureError(
                f"{self.name}: {self._starts} workers in a row died before they were ready ({reason}). What is finished is kept"
            )
        self._open(self.pool.spawn())

    def _end_worker(self, worker: Worker) -> None:
        self._opening.pop(worker, None)
        self._busy.pop(worker, None)
        if worker in self.pool.workers:
            self.pool.workers.remove(worker)
        worker.end()
