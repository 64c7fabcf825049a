"""States that could not be delivered yet, kept whole so that they can be after the work tree moved on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import Field, ValidationError

from windtunnel.boundary.mlflow_server import main_root
from windtunnel.core.errors import UserError
from windtunnel.operations.tracking.state import State, read_state
from windtunnel.records.files import read_json, write_json
from windtunnel.records.layout import Layout
from windtunnel.records.metadata import Record

_MANIFEST = "state.json"


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
