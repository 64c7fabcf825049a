"""Track the state of reports/: at once, or through the outbox where the server is down. Results are on disk already."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json, write_json
from windtunnel.params.load import load_params
from windtunnel.tracking.state import State, read_state
from windtunnel.tracking.store import deliver, is_logged, main_root, public_address, tracking_uri

# What a state is made of, kept whole so that it can be delivered after the work tree moved on.
_KEPT = ("reports", "params.yaml", "dvc.lock")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call of `track`: the run's id, or why it waits in the outbox; how many waited before."""

    run: str | None
    already: bool = False
    reason: str = ""
    delivered_from_outbox: int = 0


def track(*, strict: bool = False) -> Outcome:
    """Log the state of reports/ unless it is logged, and deliver what waits in the outbox.

    A server that is down costs a warning and an entry in the outbox. Raises UserError with `strict` (or
    `tracking.strict`) instead.
    """
    params = load_params()
    uri = tracking_uri(params.tracking.uri)
    state = read_state()
    # A kill while keeping a state leaves a .partial folder; only whole ones are delivered.
    waiting = sorted(p.parent for p in outbox().glob("*/state.json") if p.parent.suffix != ".partial")
    if not waiting and is_logged(state.digest, uri):
        return Outcome(None, already=True)
    try:
        run = deliver(state, uri)
        count = sum(_deliver_waiting(folder, uri) for folder in waiting)
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like; no result may be lost to it
        reason = f"{public_address(uri)}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if strict or params.tracking.strict:
            raise UserError(f"tracking: {reason}") from error
        _keep(state)
        return Outcome(None, reason=reason)
    return Outcome(run, delivered_from_outbox=count)


def outbox() -> Path:
    """Where undelivered states wait."""
    return main_root() / ".cache" / "windtunnel" / "outbox"


def _keep(state: State) -> None:
    """Copy what the state is made of, without the tensors unless they are to be uploaded, under its digest."""
    target = outbox() / state.digest
    if target.is_dir():
        return
    ignore = shutil.ignore_patterns() if state.log_tensors else shutil.ignore_patterns("*.pt", "generators")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in _KEPT:
        source = Path(name)
        if source.is_dir():
            shutil.copytree(source, partial / name, ignore=ignore)
        elif source.is_file():
            partial.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, partial / name)
    digests = {child.name: child.digest for child in state.children}
    write_json({"digest": state.digest, "children": digests, "kept": time.time()}, partial / "state.json")
    partial.rename(target)


def _deliver_waiting(folder: Path, uri: str) -> bool:
    """Deliver one kept state and forget it. Its digests were taken when its tensors were at hand."""
    import os
    from dataclasses import replace

    known = read_json(folder / "state.json")
    assert isinstance(known, dict)
    digests = known["children"]
    assert isinstance(digests, dict)
    here = Path.cwd()
    os.chdir(folder)
    try:
        state = read_state(tensors=False)
        children = [replace(child, digest=str(digests[child.name])) for child in state.children]
        tags = {**state.tags, "windtunnel.state": str(known["digest"])}
        deliver(replace(state, digest=str(known["digest"]), children=children, tags=tags), uri)
    finally:
        os.chdir(here)
    shutil.rmtree(folder)
    return True
