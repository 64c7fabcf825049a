"""Stage `track`: log to MLflow what is not logged yet. Cheap, always runs, idempotent."""

from __future__ import annotations

from windtunnel.cli.track import report_outcome
from windtunnel.core.endings import user_errors
from windtunnel.operations.tracking.track import track

if __name__ == "__main__":
    with user_errors():
        report_outcome(track())
