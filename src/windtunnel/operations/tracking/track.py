"""Track the state of reports/: at once, or through the outbox where the server is down. Results are on disk already.

The outbox has the states that could not be delivered yet, kept whole so that they can be after the work tree moved on.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field, ValidationError

from windtunnel.boundary.mlflow_server import main_root, tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.core.errors import UserError
from windtunnel.operations.tracking.state import State, read_state, volatile_tags
from windtunnel.operations.tracking.store import deliver
from windtunnel.records.files import read_json, write_json
from windtunnel.records.layout import Layout
from windtunnel.records.metadata import Record
from windtunnel.runtime.credentials import reason_at

_MANIFEST = "state.json"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Outcome of a call of `track`.

    run: the id of this state's run; None where it was logged before (`already`) or waits in the outbox (`reason`).
    delivered_from_outbox: how many waiting states were delivered. problems: a line for each that was not.
    """

    run: str | None
    already: bool = False
    reason: str = ""
    delivered_from_outbox: int = 0
    problems: tuple[str, ...] = ()


def track(*, strict: bool = False) -> Delivery:
    """Log the state of reports/ unless it is logged, and deliver what waits in the outbox.

    A server that is down costs a warning and an entry in the outbox. Raises UserError with `strict` (or
    `tracking.strict`) where anything, old or new, was not delivered.
    """
    params = load_params()
    strict, uri = strict or params.tracking.strict, tracking_uri(params.tracking.uri)
    state, entries, origin = read_state(), waiting(), volatile_tags()
    try:
        run, is_new = deliver(state, uri, origin)
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like; no result may be lost to it
        reason = reason_at(uri, error)
        if strict:
            raise UserError(f"tracking: {reason}") from error
        keep(state, origin)
        return Delivery(None, reason=reason)
    delivered, problems = _deliver_waiting(entries, uri)
    if strict and problems:
        raise UserError("\n".join(f"tracking: {line}" for line in problems))
    return Delivery(run if is_new else None, not is_new, "", delivered, (*state.problems, *problems))


def _deliver_waiting(entries: list[Path], uri: str) -> tuple[int, list[str]]:
    """(how many were delivered and forgotten, a line for each that was not): one that is damaged blocks no other."""
    delivered, problems = 0, []
    for folder in entries:
        try:
            with kept(folder) as (state, origin):
                deliver(state, uri, origin)
            delivered += 1
        except UserError as error:
            problems.append(f"{folder} is damaged and stays in the outbox; delete it to give it up: {error}")
        except Exception as error:  # as above
            problems.append(f"{folder} stays in the outbox: {reason_at(uri, error)}")
    return delivered, problems


class OutboxManifest(Record):
    """Record of a stored state beside its files: digests and run times, for which the tensors were needed.

    children: digest of each assessment. run_times: metrics of those that have them. origin: tags on where the state was made.
    """

    digest: str
    children: dict[str, str]
    origin: dict[str, str]
    kept: float = 0.0
    run_times: dict[str, dict[str, float]] = Field(default_factory=dict)


def outbox() -> Path:
    """Return the folder of undelivered states, in the main work tree."""
    return main_root() / ".cache" / "windtunnel" / "outbox"


def waiting() -> list[Path]:
    """Return the folders of the states that wait, the oldest first."""
    # A kill while keeping a state leaves a .partial folder; only whole ones are delivered.
    folders = [path for path in outbox().glob(f"*/{_MANIFEST}") if path.parent.suffix != ".partial"]
    return [path.parent for path in sorted(folders, key=lambda path: path.stat().st_mtime)]


def keep(state: State, origin: Mapping[str, str]) -> None:
    """Copy what a state is made of, without tensors unless they are to be uploaded."""
    target = outbox() / state.digest
    if target.is_dir():
        return
    ignore = shutil.ignore_patterns() if state.log_tensors else shutil.ignore_patterns("*.pt", "generators")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    here, there = state.layout, Layout(partial)
    shutil.copytree(here.reports, there.reports, ignore=ignore)
    for source, copy in ((here.params, there.params), (here.lock, there.lock)):
        if source.is_file():
            shutil.copyfile(source, copy)
    manifest = OutboxManifest(
        digest=state.digest,
        children={child.name: child.digest for child in state.children},
        origin=dict(origin),
        kept=time.time(),
        run_times={child.name: dict(child.run_times) for child in state.children if child.run_times},
    )
    write_json(manifest.model_dump(mode="json"), partial / _MANIFEST)
    partial.rename(target)


@contextmanager
def kept(folder: Path) -> Iterator[tuple[State, Mapping[str, str]]]:
    """Yield (the state, its origin) of a folder that `keep` made; forget it unless the body raises.

    Digests and run times were taken while the tensors were at hand. Raises UserError where the folder is damaged.
    """
    try:
        manifest = OutboxManifest.model_validate(read_json(folder / _MANIFEST))
    except ValidationError as error:
        raise UserError(f"{folder / _MANIFEST}: not the manifest of a kept state") from error
    state = read_state(Layout(folder), tensors=False)
    if missing := [child.name for child in state.children if child.name not in manifest.children]:
        raise UserError(f"{folder / _MANIFEST}: has no digest of {', '.join(missing)}")
    children = [
        replace(child, digest=manifest.children[child.name], run_times=manifest.run_times.get(child.name, {}))
        for child in state.children
    ]
    tags = {**state.tags, "windtunnel.state": manifest.digest}
    yield replace(state, digest=manifest.digest, children=children, tags=tags), manifest.origin
    shutil.rmtree(folder)
