"""Stage `track`: log to MLflow what is not logged yet. Cheap, always runs, idempotent."""

from __future__ import annotations

from windtunnel.core.endings import user_errors
from windtunnel.operations.tracking.recall import logged_before

if __name__ == "__main__":
    with user_errors():
        if logged_before():
            print("track: this state is logged already")
        else:
            # Slow to import, which nobody should wait for where there is nothing to log.
            from windtunnel.cli.track import report_outcome
            from windtunnel.operations.tracking.track import track

            report_outcome(track())
