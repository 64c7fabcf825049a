"""Decide where work runs: which executor the environment or a local file names, and the time limit of a unit. Enters no cache key.

Apart from `runtime.executors`, which does the work: a stage without units asks it, and does not depend on how they are done.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from windtunnel.core.errors import UserError, shown, unknown_word
from windtunnel.core.machine import usable_processors
from windtunnel.core.references import asking_project
from windtunnel.records.files import read_json

VARIABLE, LOCAL_FILE, KEY = "WINDTUNNEL_EXECUTOR", Path("windtunnel.local.yaml"), "executor"
PROGRESS_FILE = "WINDTUNNEL_PROGRESS"  # a variable that names the file to which a stage writes how far it is
RUNNING_FILE = "running.json"  # beside that one: the number of stages that run side by side
LIMIT_VARIABLE, LIMIT_KEY = "WINDTUNNEL_BATCH_LIMIT", "batch_limit"
# Seconds for a unit, after which its worker counts as hung: far beyond any sensible batch, so that none waits for ever.
BATCH_LIMIT = 6 * 3600.0
_KEYS = (KEY, LIMIT_KEY)
MAX_SECONDS = 1e7  # of a batch: four months
MAX_BYTES = 4096  # of the local file
KINDS = ("here", "processes", "ray", "slurm")
_PACKAGES = {"ray": "ray", "slurm": "submitit"}  # kind: what it needs; the extra has the name of the kind
# Workers of one thread each that any machine may be asked for, and for each of its processors: more is a slip of the pen.
_FEW, _A_PROCESSOR = 16, 4


_is_inside = False  # of this process: nested work runs serially, without progress


@contextmanager
def inside_a_unit() -> Iterator[None]:
    """Mark the block as the computation of a unit."""
    global _is_inside
    before, _is_inside = _is_inside, True
    try:
        yield
    finally:
        _is_inside = before


def is_inside_a_unit() -> bool:
    """Return True while this process computes a unit."""
    return _is_inside


def share_of_processors() -> int:
    """Return how many processors a stage may use: all that the process may, shared with the stages that run beside it."""
    running = 1
    if path := os.environ.get(PROGRESS_FILE):
        with suppress(UserError, TypeError, ValueError):
            running = int(str(read_json(Path(path).with_name(RUNNING_FILE))))
    return max(1, usable_processors() // max(1, running))


def placement() -> tuple[str, int | None] | None:
    """Return (one of `KINDS`, workers) as the environment or the local file configures; None where neither does.

    Workers are None where a cluster decides. Raises UserError for an unknown executor, or one that this machine lacks.
    """
    where, text = _setting(VARIABLE, KEY)
    if text is None:
        return None
    kind, colon, number = text.partition(":")
    if kind not in KINDS:
        raise UserError(unknown_word(where, kind, KINDS, what="an executor (here, processes:4, ray, slurm:8)"))
    if (
        (colon and not (number.isascii() and number.isdecimal()))
        or (kind == "processes" and not number)
        or (kind == "here" and colon)
    ):
        raise UserError(f"{where}: '{text}' is not an executor; write here, processes:4, ray or slurm:8")
    workers = int(number) if number else None
    if workers == 0:
        raise UserError(f"{where}: '{text}' has no workers; at least one is needed")
    n_processors = usable_processors()
    if kind == "processes" and workers is not None and workers > (most := max(_FEW, _A_PROCESSOR * n_processors)):
        raise UserError(
            f"{where}: '{text}' is more than this machine of {n_processors} processors can use; at most {most}"
        )
    if (package := _PACKAGES.get(kind)) and find_spec(package) is None:
        raise UserError(f"{where}: '{text}' needs {package}, which is not installed; pip install 'windtunnel[{kind}]'")
    return kind, 1 if kind == "here" else workers


def require_placement() -> None:
    """Raise UserError for a wrong executor or time limit of a unit, before anything is computed."""
    placement()
    batch_limit()


def batch_limit() -> float:
    """Seconds for a unit, after which its worker counts as hung. Raises UserError unless it is a number above 0."""
    where, configured = _setting(LIMIT_VARIABLE, LIMIT_KEY)
    try:
        seconds = BATCH_LIMIT if configured is None else float(configured)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise UserError(f"{where}: {shown(configured)} is no number of seconds above 0, {MAX_SECONDS:g} at most")
    return seconds


def _setting(variable: str, key: str) -> tuple[str, str | None]:
    """Return (where it is set, its text), of the environment or else of the local file; None for neither."""
    if text := os.environ.get(variable, "").strip():
        return variable, text
    return f"{LOCAL_FILE}: {key}", _local().get(key)


def _local() -> dict[str, str]:
    """Return the keys of the local file; in an experiment of DVC, of the one beside the params.yaml of who began it.

    Nothing of it is constructed: it is a map of plain values, so that no alias, tag or nesting can cost anything.
    """
    file = next((path for path in (LOCAL_FILE, asking_project() / LOCAL_FILE) if os.path.lexists(path)), None)
    if file is None:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import MappingNode, ScalarNode

    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        raise UserError(f"{file}: is no regular file of at most {MAX_BYTES} bytes")
    try:
        node = YAML(typ="safe", pure=True).compose(file.read_text(encoding="utf-8-sig"))
    except Exception as error:  # ruamel raises IndexError and the like beside its own
        mark = getattr(error, "problem_mark", None)
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = str(getattr(error, "problem", None) or error).splitlines() or [type(error).__name__]
        raise UserError(f"{file}: is not YAML ({reason[0][:100]}{position})") from error
    if node is None:  # comments alone
        return {}
    if not isinstance(node, MappingNode):
        content_text = shown(node.value) if isinstance(node, ScalarNode) else "a list"
        raise UserError(f"{file}: holds {content_text} and no keys; write `{KEY}: processes:4`")
    content: dict[str, str] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, ScalarNode) else "a list or a map"
        if name not in _KEYS:
            raise UserError(unknown_word(str(file), name, _KEYS, what="a key here"))
        if not isinstance(value, ScalarNode):
            raise UserError(f"{file}: {name}: a list or a map is no value here; write `{KEY}: processes:4`")
        if not str(value.tag).endswith(":null"):
            content[name] = value.value
    return content
