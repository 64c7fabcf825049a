"""The checks that are about this moment and not about the artifacts: asked when somebody looks, never cached."""

import math
from collections.abc import Callable
from typing import NamedTuple

from windtunnel.boundary.mlflow_server import connect, tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.decide import regression_mismatch
from windtunnel.operations.dvc_files import git_output
from windtunnel.operations.tracking.state import read_state
from windtunnel.operations.tracking.store import find_state
from windtunnel.records.findings import FindingRecord, Status
from windtunnel.records.gate import OUTCOMES_FILE, read_record
from windtunnel.records.layout import CHAMPION, SUMMARY
from windtunnel.runtime.credentials import reason_at


class LiveOutcome(NamedTuple):
    """Outcome of a live check, with the reason in words; value: None where there is no number."""

    status: Status
    reason: str
    value: float | None = None

    def instead_of(self, recorded: FindingRecord) -> FindingRecord:
        """Return the finding as it is now."""
        return recorded.model_copy(update=self._asdict())


def committed() -> LiveOutcome:
    """G6: whether git has everything that made the numbers; not run outside a repository."""
    status = git_output("status", "--porcelain")
    if status is None:
        return LiveOutcome(Status.NOT_RUN, "this is no git repository")
    changed = [line[3:] for line in status.splitlines()]
    if not changed:
        return LiveOutcome(Status.PASS, "", 0)
    return LiveOutcome(Status.WARN, f"not committed: {', '.join(changed[:5])}", len(changed))


def tracked() -> LiveOutcome:
    """G5: whether the metrics of this state's MLflow run are those of the files; not run where there is no such run."""
    try:
        state = read_state()
        logged = logged_metrics(state.digest, state.experiment, load_params().tracking.uri)
    except UserError as error:
        return LiveOutcome(Status.NOT_RUN, str(error))
    if logged is None:
        return LiveOutcome(Status.NOT_RUN, "this state is not tracked yet: windtunnel track")
    wrong = [key for key, value in state.metrics.items() if not abs(logged.get(key, math.nan) - value) <= 1e-9]
    if wrong:
        return LiveOutcome(Status.FAIL, f"other numbers in MLflow: {', '.join(wrong[:5])}", len(wrong))
    return LiveOutcome(Status.PASS, "", 0)


def paired() -> LiveOutcome:
    """F3: whether the champion can be paired with this run on every metric of `gate.maximum_regression`."""
    if not CHAMPION.is_file():
        return LiveOutcome(Status.NOT_APPLICABLE, "there is no champion to compare with")
    try:
        gate, mine = load_params().gate, read_record(SUMMARY / OUTCOMES_FILE)
        unpaired = regression_mismatch(gate, mine, read_record(CHAMPION))
    except UserError as error:
        return LiveOutcome(Status.NOT_RUN, str(error))
    if unpaired:
        reason = f"the champion was assessed on other samples or settings: {', '.join(unpaired)}"
        return LiveOutcome(Status.WARN, reason, len(unpaired))
    return LiveOutcome(Status.PASS, "", 0)


ASKED_NOW: dict[str, Callable[[], LiveOutcome]] = {"F3": paired, "G5": tracked, "G6": committed}


def logged_metrics(digest: str, experiment: str, configured_uri: str | None) -> dict[str, float] | None:
    """Return the metrics of the parent run of the state `digest`; None where it is not logged. Raises UserError for a dead server."""
    uri = tracking_uri(configured_uri)
    try:
        run = find_state(connect(uri), experiment, digest)
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like
        raise UserError(f"tracking: {reason_at(uri, error)}") from error
    return dict(run.data.metrics) if run else None
