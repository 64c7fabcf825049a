"""How units are handed out: workers that hold the work and do one unit at a time; one that dies or hangs is replaced."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from windtunnel.core.errors import InfrastructureError
from windtunnel.runtime.executors import Lost
from windtunnel.runtime.executors.payload import Parcel
from windtunnel.runtime.placement import batch_limit

U = TypeVar("U")
AHEAD = 2  # units for each worker that are in work, or done and waiting for one before them: memory stays bounded
# So many times a unit may be in hand when its worker dies before it is held to be the cause: so many, and one more for each death
# that was no unit's doing (of a worker that was only starting, or whose unit another one finished), since who kills those from outside
# strikes some units again and again; but never more than AT_MOST. Measured: tests/hostile/worker_kills.py.
DEATHS, AT_MOST = 5, 20
HANGS = 2  # a unit that hangs hangs again, and each time costs the whole limit
STARTS = 3  # so many times a whole crew may die before one of it is ready
START_LIMIT = 300.0  # seconds in which some worker must be ready
_LOOK_EVERY = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class News:
    """What a worker says: it is `ready` (content: what it computes with), a unit is `done` (its result), the work has
    `raised` (the exception), or the worker has `died` (why).
    """

    kind: Literal["ready", "done", "raised", "died"]
    content: Any


class Worker(Protocol):
    """Holds the work, and does one unit at a time."""

    def open(self, parcel: Parcel) -> None:
        """Begin to open the work; it says `ready`, or has `raised`."""

    def give(self, unit: object) -> None:
        """Begin a unit; it is `done`, or has `raised`."""

    def end(self) -> None:
        """End it at once, whatever it does."""


W = TypeVar("W", bound=Worker)


class Crew(Protocol[W]):
    """Workers of one kind, kept from one piece of work to the next: what they import takes seconds.

    size: how many there should be. workers: those there are.
    """

    size: int
    workers: list[W]

    def hire(self) -> W:
        """One more worker."""

    def news(self, of: Sequence[W], seconds: float) -> list[tuple[W, News]]:
        """What some of the workers say, waiting at most so many seconds for it."""

    def accept(self, ready: Mapping[str, str]) -> None:
        """Raise UserError for a worker that would compute something else, by what it said when it was ready."""


@dataclass
class _Given:
    place: int
    unit: Any
    seconds: float
    until: float


@dataclass
class Shift:
    """One piece of work, spread over a crew."""

    crew: Crew[Any]
    parcel: Parcel
    units: Sequence[Any]
    name: str
    limit: Callable[[Any], float] | None = None
    _busy: dict[Any, _Given] = field(default_factory=dict)
    _opening: dict[Any, float] = field(default_factory=dict)
    _idle: deque[Any] = field(default_factory=deque)
    _again: deque[int] = field(default_factory=deque)
    _deaths: Counter[int] = field(default_factory=Counter)
    _from_outside: int = 0
    _hangs: Counter[int] = field(default_factory=Counter)
    _starts: int = 0
    _left: set[int] = field(default_factory=set)
    _lowest: int = 0
    _next: int = 0

    def results(self) -> Iterator[tuple[int, Any]]:
        """As `Executor.results`."""
        longest = batch_limit() if self.limit is None else 0.0
        self._left = set(range(len(self.units)))
        try:
            while len(self.crew.workers) < min(self.crew.size, len(self.units)):
                self.crew.hire()
            for worker in self.crew.workers:
                self._open(worker)
            while self._left:
                self._hand_out(longest)
                for place, result in self._listen():
                    self._left.discard(place)
                    self._hand_out(longest)  # nobody waits while the caller does its share
                    yield place, result
        finally:
            for worker in [*self._busy, *self._opening]:  # it would speak of this work when it is asked about another
                self._dismiss(worker)

    def _hand_out(self, longest: float) -> None:
        """A unit for every worker that waits, as long as there are some to be begun. longest: seconds for each without a limit."""
        while self._idle and (place := self._following()) is not None:
            unit = self.units[place]
            seconds = self.limit(unit) if self.limit else longest
            worker = self._idle.popleft()
            self._busy[worker] = _Given(place, unit, seconds, time.monotonic() + seconds)
            worker.give(unit)

    def _following(self) -> int | None:
        if self._again:
            return self._again.popleft()
        while self._lowest < self._next and self._lowest not in self._left:
            self._lowest += 1
        if self._next < len(self.units) and self._next - self._lowest < AHEAD * self.crew.size:
            self._next += 1
            return self._next - 1
        return None

    def _open(self, worker: Any) -> None:
        self._opening[worker] = time.monotonic() + START_LIMIT
        worker.open(self.parcel)

    def _listen(self) -> Iterator[tuple[int, Any]]:
        """What came in, or was given up."""
        for worker, news in self.crew.news([*self._busy, *self._opening], _LOOK_EVERY):
            if news.kind == "ready":
                self._opening.pop(worker)
                self.crew.accept(news.content)
                self._starts = 0
                self._idle.append(worker)
            elif news.kind == "done":
                given = self._busy.pop(worker)
                self._idle.append(worker)
                self._from_outside += self._deaths[given.place]
                yield given.place, news.content
            elif news.kind == "raised":
                raise news.content
            elif worker in self._busy:
                most = min(DEATHS + self._from_outside, AT_MOST)
                yield from self._lost(worker, self._deaths, most, f"its worker died ({news.content})")
            else:
                self._not_started(worker, news.content)
        now = time.monotonic()
        for worker in [worker for worker, given in self._busy.items() if now > given.until]:
            seconds = self._busy[worker].seconds
            most = HANGS if self.limit is None else 1
            yield from self._lost(worker, self._hangs, most, f"its worker gave no answer in {seconds:g} s")
        if not self._busy and not self._idle and self._opening and now > max(self._opening.values()):
            raise InfrastructureError(
                f"{self.name}: no worker was ready in {START_LIMIT:g} s; is there a free processor for one? What is finished is kept"
            )

    def _lost(self, worker: Any, count: Counter[int], most: int, why: str) -> Iterator[tuple[int, Any]]:
        place = self._busy.pop(worker).place
        self._dismiss(worker)
        count[place] += 1
        if count[place] >= most:
            yield place, Lost(f"{why}, {most} times" if most > 1 else why, hung=count is self._hangs)
        else:
            self._again.append(place)
        self._open(self.crew.hire())

    def _not_started(self, worker: Any, why: str) -> None:
        """Raises InfrastructureError where no worker lives until it is ready."""
        self._starts += 1
        self._from_outside += 1
        self._dismiss(worker)
        if self._starts >= STARTS * self.crew.size and not self._busy and not self._idle:
            raise InfrastructureError(
                f"{self.name}: {self._starts} workers in a row died before they were ready ({why}). What is finished is kept"
            )
        self._open(self.crew.hire())

    def _dismiss(self, worker: Any) -> None:
        self._opening.pop(worker, None)
        self._busy.pop(worker, None)
        if worker in self.crew.workers:
            self.crew.workers.remove(worker)
        worker.end()
