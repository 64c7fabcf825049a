"""Track the state of reports/: at once, or through the outbox where the server is down. Results are on disk already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from windtunnel.boundary.mlflow_server import tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.core.errors import UserError
from windtunnel.operations.tracking.outbox import keep, kept, waiting
from windtunnel.operations.tracking.recall import remember_logged
from windtunnel.operations.tracking.state import read_state, volatile_tags
from windtunnel.operations.tracking.store import deliver, is_logged
from windtunnel.runtime.credentials import reason_of, without_credentials


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
    state, entries = read_state(), waiting()
    if not entries and is_logged(state.digest, uri):
        remember_logged()
        return Delivery(None, already=True)
    origin = volatile_tags()
    try:
        run = deliver(state, uri, origin)
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like; no result may be lost to it
        reason = _reason(uri, error)
        if strict:
            raise UserError(f"tracking: {reason}") from error
        keep(state, origin)
        return Delivery(None, reason=reason)
    delivered, problems = _deliver_waiting(entries, uri)
    remember_logged()
    if strict and problems:
        raise UserError("\n".join(f"tracking: {line}" for line in problems))
    return Delivery(run, delivered_from_outbox=delivered, problems=(*state.problems, *problems))


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
            problems.append(f"{folder} stays in the outbox: {_reason(uri, error)}")
    return delivered, problems


def _reason(uri: str, error: Exception) -> str:
    return f"{without_credentials(uri)}: {type(error).__name__}: {reason_of(error)}"
