"""Stage `track`: log new results to MLflow. Cheap, always runs, idempotent.

What the last `track` logged is compared with small files, without MLflow, in a moment.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.boundary.data.record import DATASET_JSON
from windtunnel.boundary.mlflow_server import main_root, tracking_uri
from windtunnel.boundary.models.record import MODEL_JSON
from windtunnel.boundary.params_file import configured_server
from windtunnel.core.errors import UserError
from windtunnel.records import layout
from windtunnel.records.files import DATA_FILE, METADATA_FILE, hidden_from_dvc, read_json, read_own, write_json
from windtunnel.records.metadata import Record, fitting

if TYPE_CHECKING:
    from windtunnel.operations.tracking.track import Delivery

_SQLITE = "sqlite:///"
_MEMORY = Path(".cache") / "windtunnel" / "tracked.json"


def main() -> None:
    """Log the state of reports/, unless it is logged already."""
    if names := hidden_from_dvc(layout.ROBUSTNESS):
        _warn(f"{', '.join(names)}: not whole, kept out of DVC's cache and of dvc push; dvc repro runs it again")
    if logged_before():
        print("track: this state is logged already")
        return
    # Slow to import, which nobody should wait for where there is nothing to log.
    from windtunnel.operations.tracking.track import track

    report_delivery(track())


def report_delivery(delivery: Delivery) -> None:
    """Describe the outcome of `track` in a line or two, and remember what is logged."""
    if delivery.run or delivery.already:
        remember_logged()
    if delivery.already:
        print("track: this state is logged already")
    elif delivery.run:
        print(f"track: run {delivery.run}")
    else:
        _warn(f"not logged, kept in the outbox for the next track: {delivery.reason}")
    if delivery.delivered_from_outbox:
        print(f"track: {delivery.delivered_from_outbox} states delivered from the outbox")
    for problem in delivery.problems:
        _warn(problem)


def _warn(text: str) -> None:
    print(f"track: WARNING: {text}", file=sys.stderr)


def logged_before() -> bool:
    """Return True if nothing changed since a state was logged: no artifact, and nothing in the store.

    Of a server that is only ever asked; then the answer is no. So is it where something waits in the outbox.
    """
    try:
        now = _state()
        return now is not None and fitting(_Logged, read_json(_MEMORY), str(_MEMORY), "what was logged") == now
    except (UserError, OSError):
        return False


def remember_logged() -> None:
    """Keep that the state in the current directory is logged, and how its store is now."""
    if now := _state():
        write_json(now.model_dump(mode="json"), _MEMORY)


class _Logged(Record):
    """tracked.json: a digest of the artifacts that were logged, and the size and time of the store that has them."""

    artifacts: str
    uri: str
    store: tuple[int, int]


def _state() -> _Logged | None:
    uri = tracking_uri(configured_server())
    if not uri.startswith(_SQLITE) or any((main_root() / ".cache" / "windtunnel" / "outbox").glob("*")):
        return None
    store = Path(uri.removeprefix(_SQLITE)).stat()
    digest = hashlib.sha256()
    for path in _files():
        # Of tensors size and time: reading them is what takes long.
        facts = path.stat()
        content = [facts.st_size, facts.st_mtime_ns] if path.name == DATA_FILE else read_own(path)
        digest.update(f"{path.as_posix()} {content!r}\n".encode())
    return _Logged(artifacts=digest.hexdigest(), uri=uri, store=(store.st_size, store.st_mtime_ns))


def _files() -> Iterator[Path]:
    named = [
        layout.PARAMS_FILE,
        layout.METRICS,
        layout.GATE,
        layout.DATA / DATASET_JSON,
        layout.MODEL / MODEL_JSON,
        layout.REPORTS / "report.html",
    ]
    named += sorted(path for folder in (layout.RESOLVED, layout.DIGESTS) for path in folder.rglob("*.json"))
    for folder in (layout.SUMMARY, layout.SANITY, *sorted(layout.ROBUSTNESS.glob("*"))):
        named += [folder / METADATA_FILE, folder / DATA_FILE]
    yield from (path for path in named if path.is_file())
