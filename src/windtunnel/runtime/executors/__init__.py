"""Where units of work are done: in this process, in others on this machine, or on a Ray cluster. Never what they compute.

`WINDTUNNEL_EXECUTOR` says which, or `executor:` in a git-ignored `windtunnel.local.yaml` beside params.yaml: `here` (the
default), `processes:4`, `ray` or `ray:8`. It enters no params, nothing that is resolved and no result: a run on a cluster and one
on a laptop share one cache.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from windtunnel.runtime.executors.allocator import keep_freed_memory
from windtunnel.runtime.placement import Placement, placement

U = TypeVar("U")
R = TypeVar("R")
# Of this machine, for work that pays for them (solvers, large corruption suites) where no executor is asked for.
UNASKED = 2


@dataclass(frozen=True, slots=True)
class Lost:
    """What stands for the result of a unit whose workers died or hung, with the reason."""

    reason: str
    hung: bool = False


class Executor(Protocol):
    """Does units of work."""

    def results(
        self,
        work: Callable[[U], R],
        units: Sequence[U],
        name: str,
        limit: Callable[[U], float] | None = None,
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """(place in `units`, result of `work`), each as soon as it is there.

        name: of the assessment, for messages. limit: seconds that a unit may take before its worker is ended and it is given
        up; without it `batch_limit()`, and a second try. Neither holds in this process, which nobody could end.
        Raises what `work` raises.
        """


class _Inside:
    """Whether this process is doing a unit: what is spread within one is done here, and shows no progress of its own."""

    unit = False


@contextmanager
def inside_a_unit() -> Iterator[None]:
    """While a unit is done."""
    before, _Inside.unit = _Inside.unit, True
    try:
        yield
    finally:
        _Inside.unit = before


def is_inside_a_unit() -> bool:
    """Whether this process is doing a unit."""
    return _Inside.unit


class Here:
    """One unit after the other, in this process."""

    def results(
        self,
        work: Callable[[U], R],
        units: Sequence[U],
        name: str,
        limit: Callable[[U], float] | None = None,
    ) -> Generator[tuple[int, R | Lost], None, None]:
        """See `Executor`."""
        keep_freed_memory()
        for place, unit in enumerate(units):
            with inside_a_unit():
                found = work(unit)
            yield place, found


def executor(processes: int = 1) -> Executor:
    """The executor that the environment or the local file asks for; where neither does, `processes` of this machine.

    Raises UserError as `placement`.
    """
    if _Inside.unit:
        return Here()
    asked = placement() or (Placement("processes", processes) if processes > 1 else Placement("here"))
    if asked.kind == "processes":
        from windtunnel.runtime.executors.processes import Processes

        assert asked.workers is not None
        return Processes(asked.workers)
    if asked.kind == "ray":
        from windtunnel.runtime.executors.ray_cluster import OnRay

        return OnRay(asked.workers)
    return Here()
