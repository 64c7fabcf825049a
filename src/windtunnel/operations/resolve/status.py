"""Report which stages `dvc repro` would run, why, and how long they took before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, ValidationError

from windtunnel.core.errors import UserError
from windtunnel.operations.dvc_files import LockedStage, read_lock
from windtunnel.operations.resolve.build import resolve_all
from windtunnel.params.resolved import Drawing, Resolved, Work, read_resolved, resolved_file
from windtunnel.records.files import read_json
from windtunnel.records.layout import LOCK, RESOLVED, ROBUSTNESS
from windtunnel.records.metadata import fitting, read_metadata
from windtunnel.runtime.stage_log import stage_runtime

if TYPE_CHECKING:
    from dvc.repo import Repo

_SHOWN = 3  # modules of a change of code
_ABSENT = object()
ALWAYS = frozenset({"resolve", "track"})  # they run every time, in a moment


@dataclass(frozen=True, slots=True)
class Pending:
    """A stage that would run.

    why: a phrase per reason; empty where it only depends on stages that run, named in `after`: what they make decides.
    seconds: how long it took the last time; None where that is not known. redraws: nothing of it is computed.
    workers: processes that it was spread over the last time.
    """

    stage: str
    why: tuple[str, ...]
    after: tuple[str, ...] = ()
    seconds: float | None = None
    redraws: bool = False
    workers: int = 1


class _StageChange(BaseModel):
    """One item of a stage in `dvc status`: states by path, of params.yaml by key."""

    deps: dict[str, str | dict[str, object]] = Field(default_factory=dict, alias="changed deps")
    outs: dict[str, object] = Field(default_factory=dict, alias="changed outs")


def pending_stages() -> list[Pending]:
    """Return the stages that would run, in the order of the pipeline; nothing is written.

    Raises UserError where params.yaml is not valid, or where this is no DVC repository.
    """
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo

    stages, lock = {stage.label: stage for stage in resolve_all()}, read_lock(LOCK)
    try:
        with Repo() as repo:
            why = {label: tuple(reasons) for label, reasons in _reasons(repo, stages, lock)}
            upstream = _upstream(repo)
    except NotDvcRepoError as error:
        raise UserError("status: this is no DVC repository; run dvc init, or go to where dvc.yaml is") from error
    return list(_in_order(why, upstream, set(stages)))


def _in_order(
    why: Mapping[str, tuple[str, ...]], upstream: Mapping[str, list[str]], ours: set[str]
) -> Iterator[Pending]:
    runs: set[str] = set()
    for label in upstream:
        after = tuple(above for above in upstream[label] if above in runs)
        reasons = why.get(label, ())
        if label not in ALWAYS and (after or reasons):
            runs.add(label)
            redraws = bool(reasons) and all(reason.startswith("figures:") for reason in reasons) and not after
            stage, _, name = label.partition("@")
            measured = stage_runtime(stage, name) if label in ours else None
            seconds, workers = (measured.seconds, measured.workers or 1) if measured else (None, 1)
            yield Pending(label, reasons, after, seconds, redraws, workers)


def _reasons(
    repo: Repo, stages: Mapping[str, Resolved], lock: Mapping[str, LockedStage]
) -> Iterator[tuple[str, list[str]]]:
    status = fitting(
        dict[str, list[str | _StageChange]], repo.status(), "dvc status", "what this version of windtunnel reads"
    )
    labels = {stage.addressing for stage in repo.index.stages}
    for label in [*stages, *(label for label in status if label not in stages)]:
        if label in ALWAYS or label not in labels:
            continue
        reasons = list(_failed_before(label))
        if label not in lock:
            yield label, reasons or ["has not run yet"]
            continue
        now = stages.get(label)
        if now is not None and not reasons:
            before = _resolved_before(repo, now, lock[label])
            reasons += explain(before, now) if before else ["its last settings are not known"]
        # A block of params.yaml that is written differently is a reason of its own only where it says the same.
        reasons += [
            line for line in _dvc_words(status.get(label, [])) if not (reasons and line.startswith("params.yaml"))
        ]
        if reasons:
            yield label, reasons


def _failed_before(label: str) -> Iterator[str]:
    """Why an entry has to run again that failed for a reason that may pass; nothing for every other stage."""
    stage, _, name = label.partition("@")
    if name and resolved_file(stage, name).is_file() and read_resolved(stage, name).has_failed:
        failure = read_metadata(ROBUSTNESS / name).failure
        yield f"it failed the last time: {failure.reason}" if failure else "samples had no result the last time"


def _resolved_before(repo: Repo, now: Resolved, ran: LockedStage) -> Resolved | None:
    """Return the settings of a stage's last run, from DVC's cache; None where it is not there, as after `dvc gc`."""
    md5 = ran.md5_of_deps.get(resolved_file(now.stage, now.name).as_posix())
    try:
        path = Path(repo.cache.local.oid_to_path(md5)) if md5 else None
        return Resolved.model_validate(read_json(path)) if path else None
    except (UserError, ValidationError):
        return None


def _dvc_words(changes: Sequence[str | _StageChange]) -> Iterator[str]:
    """List changes that DVC finds outside reports/resolved: files of other stages, params, missing outputs."""
    for change in changes:
        if isinstance(change, str):
            yield from ["its command changed"] if change == "changed command" else []
            continue
        for path, state in change.deps.items():
            if not isinstance(state, str):
                yield from (f"params.yaml: {key} is written differently" for key in state)
            elif not path.startswith(f"{RESOLVED.as_posix()}/"):
                yield f"{path} {state}"
        yield from (f"{path} {state}" for path, state in change.outs.items())


def _upstream(repo: Repo) -> dict[str, list[str]]:
    """Return the stages that each stage depends on, every stage after those."""
    from networkx import dfs_postorder_nodes

    graph = repo.index.graph
    order = [stage.addressing for stage in dfs_postorder_nodes(graph)]
    above = {stage.addressing: {other.addressing for other in graph.successors(stage)} for stage in graph}
    return {label: [other for other in order if other in above[label]] for label in order}


def explain(before: Resolved, now: Resolved) -> list[str]:
    """Return a phrase per change: `epsilon 0.06 -> 0.03`, `auto-LiRPA 0.3 -> 0.4`, `weights.pt changed`; none for no change."""
    return [*_of_work(before.work, now.work), *_of_drawing(before.drawing, now.drawing)]


def _of_work(before: Work, now: Work) -> Iterator[str]:
    old, new = flat(before.entry), flat(now.entry)
    for key in dict.fromkeys((*new, *old)):
        new_value, was = new.get(key, _ABSENT), old.get(key, _ABSENT)
        if new_value != was:
            yield _value_changed(key.removeprefix("budget."), was, new_value)
    for key in ("seed", "device"):
        if getattr(before, key) != getattr(now, key):
            yield _value_changed(key, getattr(before, key), getattr(now, key))
    for key in sorted({*before.files, *now.files}):
        if before.files.get(key) != now.files.get(key):
            yield f"{_file_name(key, new)} changed"
    for name in sorted({*before.builds_on, *now.builds_on}):
        if before.builds_on.get(name) != now.builds_on.get(name):
            yield f"{name}, which it builds on, changed"
    yield from _versions(before.libraries, now.libraries)
    yield from _code(before.code, now.code, "code")


def _of_drawing(before: Drawing, now: Drawing) -> Iterator[str]:
    if before.figures != now.figures:
        yield f"figures: {', '.join(figure.name for figure in now.figures) or 'none'}"
    if before.pictures != now.pictures:
        yield f"figures: report.pictures {before.pictures} -> {now.pictures}"
    yield from (f"figures: {line}" for line in _versions(before.libraries, now.libraries))
    yield from _code(before.code, now.code, "figures: code")


def _versions(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *now}, key=str.lower):
        if before.get(name) != now.get(name):
            yield f"{name} {before.get(name, 'not used')} -> {now.get(name, 'not used')}"


def _code(before: Mapping[str, str], now: Mapping[str, str], what: str) -> Iterator[str]:
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        names = [name.removeprefix("windtunnel.").removeprefix("assessments.") for name in changed[:_SHOWN]]
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield f"{what} of {', '.join(names)}{more}"


def _value_changed(key: str, before: object, now: object) -> str:
    absent = "absent" if None in (before, now) else "none"  # a null that is written is told from a key that is not
    texts = [absent if value is _ABSENT else "none" if value is None else f"{value}" for value in (before, now)]
    return f"{key} {texts[0]} -> {texts[1]}"


def _file_name(key: str, entry: Mapping[str, object]) -> str:
    """Return the name of the file that a key of params.yaml names; `key` is with the family and the name of the entry."""
    entry_key = key.split(".", 2)[-1]
    path = entry.get(key, entry.get(entry_key))
    return Path(str(path)).name if path is not None else key


def flat(block: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested blocks as `budget.epsilon`: value; a list is one value."""
    flat_values: dict[str, object] = {}
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            flat_values |= flat(value, f"{prefix}{key}.")
        elif value != {}:
            flat_values[f"{prefix}{key}"] = value
    return flat_values
