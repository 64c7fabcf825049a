"""Where units of work are done: in this process, in others on this machine, or on a Ray cluster. Never what they compute.

`WINDTUNNEL_EXECUTOR` says which, or `executor:` in a git-ignored `windtunnel.local.yaml` beside params.yaml: `here` (the
default), `processes:4`, `ray` or `ray:8`. It enters no params, nothing that is resolved and no result: a run on a cluster and one
on a laptop share one cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

from windtunnel.core.errors import UserError, shown, unknown_word
from windtunnel.core.executors.freed import keep_freed_memory
from windtunnel.core.repository import asking_project

U = TypeVar("U")
R = TypeVar("R")
VARIABLE, LOCAL_FILE, KEY = "WINDTUNNEL_EXECUTOR", Path("windtunnel.local.yaml"), "executor"
LIMIT_VARIABLE, LIMIT_KEY = "WINDTUNNEL_BATCH_LIMIT", "batch_limit"
# Seconds for a unit, after which its worker counts as hung: far beyond any sensible batch, so that none waits for ever.
BATCH_LIMIT = 6 * 3600.0
_KEYS = (KEY, LIMIT_KEY)
KINDS = ("here", "processes", "ray")
# Of this machine, for work that pays for them (solvers, large corruption suites) where no executor is asked for.
UNASKED = 2
# Workers of one thread each that any machine may be asked for, and for each of its processors: more is a slip of the pen.
_FEW, _A_PROCESSOR = 16, 4


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

    Raises UserError for one that is not known, or that this machine lacks.
    """
    if _Inside.unit:
        return Here()
    where, text = _asked()
    if not where:
        return _processes(processes) if processes > 1 else Here()
    kind, colon, number = text.partition(":")
    if kind not in KINDS:
        raise UserError(unknown_word(where, kind, KINDS, what="an executor (here, processes:4, ray, ray:8)"))
    if (
        (colon and not (number.isascii() and number.isdecimal()))
        or (kind == "processes" and not number)
        or (kind == "here" and colon)
    ):
        raise UserError(f"{where}: '{text}' is not an executor; write here, processes:4, ray or ray:8")
    workers = int(number) if number else None
    if workers == 0:
        raise UserError(f"{where}: '{text}' has no workers; at least one is needed")
    if kind == "processes":
        assert workers is not None
        there = os.cpu_count() or 1
        if workers > (most := max(_FEW, _A_PROCESSOR * there)):
            raise UserError(
                f"{where}: '{text}' is more than this machine of {there} processors can use; at most {most}"
            )
        return _processes(workers)
    if kind == "ray":
        if find_spec("ray") is None:
            raise UserError(f"{where}: '{text}' needs ray, which is not installed; pip install 'windtunnel[ray]'")
        from windtunnel.core.executors.on_ray import OnRay

        return OnRay(workers)
    return Here()


def require_executor() -> None:
    """Raise UserError for what says wrongly where work is done, or how long a unit may take: before anything is computed."""
    executor()
    batch_limit()


def batch_limit() -> float:
    """Seconds for a unit, after which its worker counts as hung. Raises UserError for what is no number above 0."""
    given: object = os.environ.get(LIMIT_VARIABLE, "").strip()
    where = LIMIT_VARIABLE
    if not given:
        where, given = f"{LOCAL_FILE}: {LIMIT_KEY}", _local().get(LIMIT_KEY, BATCH_LIMIT)
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"{where}: '{given}' is no number of seconds above 0")
    return seconds


def _processes(workers: int) -> Executor:
    from windtunnel.core.executors.processes import Processes

    return Processes(workers)


def _asked() -> tuple[str, str]:
    """(who says so, what); nobody where nothing is asked for."""
    if asked := os.environ.get(VARIABLE, "").strip():
        return VARIABLE, asked
    given = _local().get(KEY)
    if given is not None:
        return f"{LOCAL_FILE}: {KEY}", str(given)
    return "", ""


def _local() -> dict[str, Any]:
    """What the local file holds; an experiment of DVC, whose clone is without it, asks the one beside the params.yaml of who began it."""
    file = next((path for path in (LOCAL_FILE, asking_project() / LOCAL_FILE) if path.is_file()), None)
    if file is None:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(file)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(
            f"{file}: is not YAML ({str(getattr(error, 'problem', error)).splitlines()[0]}{place})"
        ) from error
    if content is None:  # comments alone
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{file}: holds {shown(content)} and no keys; write `{KEY}: processes:4`")
    for key in content:
        if key not in _KEYS:
            raise UserError(unknown_word(str(file), str(key), _KEYS, what="a key here"))
    return content
