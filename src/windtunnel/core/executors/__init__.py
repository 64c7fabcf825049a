"""Where units of work are done: in this process, in others on this machine, or on a Ray cluster. Never what they compute.

`WINDTUNNEL_EXECUTOR` says which, or `executor:` in a git-ignored `windtunnel.local.yaml` beside params.yaml: `here` (the
default), `processes:4`, `ray` or `ray:8`. It enters no params, nothing that is resolved and no result: a run on a cluster and one
on a laptop share one cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from windtunnel.core.errors import UserError, unknown_word

U = TypeVar("U")
VARIABLE, LOCAL_FILE, KEY = "WINDTUNNEL_EXECUTOR", Path("windtunnel.local.yaml"), "executor"
AHEAD = 2  # units for each worker that are in work, or done and not fetched: memory stays bounded, and nobody waits
KILLS = 3  # so many times a unit may be in hand when its worker dies, before it is held to be the cause
KINDS = ("here", "processes", "ray")


class Executor(Protocol):
    """Does units of work."""

    def results(self, work: Callable[[U], dict[str, Any]], units: Iterable[U], name: str) -> Iterator[dict[str, Any]]:
        """The result of `work` for each unit, in order. `name`: of the assessment, for messages.

        Raises what `work` raises, and UserError where a worker that does a unit dies again and again.
        """


class Here:
    """One unit after the other, in this process."""

    def results(self, work: Callable[[U], dict[str, Any]], units: Iterable[U], name: str) -> Iterator[dict[str, Any]]:
        """See `Executor`."""
        return map(work, units)


def executor() -> Executor:
    """The executor that the environment or the local file asks for. Raises UserError for one that is not known."""
    where, text = _asked()
    kind, colon, number = text.partition(":")
    if kind not in KINDS:
        raise UserError(unknown_word(where, kind, KINDS, what="an executor (here, processes:4, ray, ray:8)"))
    if (colon and not number.isdecimal()) or (kind == "processes" and not number) or (kind == "here" and colon):
        raise UserError(f"{where}: '{text}' is not an executor; write here, processes:4, ray or ray:8")
    workers = int(number) if number else None
    if workers == 0:
        raise UserError(f"{where}: '{text}' has no workers; at least one is needed")
    if kind == "processes":
        from windtunnel.core.executors.processes import Processes

        assert workers is not None
        return Processes(workers)
    if kind == "ray":
        from windtunnel.core.executors.on_ray import OnRay

        return OnRay(workers)
    return Here()


def _asked() -> tuple[str, str]:
    """(who says so, what)."""
    if given := os.environ.get(VARIABLE, "").strip():
        return VARIABLE, given
    if not LOCAL_FILE.is_file():
        return "", "here"
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(LOCAL_FILE)
    except YAMLError as error:
        raise UserError(f"{LOCAL_FILE}: is not YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict) or set(content) - {KEY}:
        raise UserError(f"{LOCAL_FILE}: holds one key, `{KEY}: processes:4`")
    return f"{LOCAL_FILE}: {KEY}", str(content.get(KEY) or "here")
