"""Read a state from the tracking store, to compare it with the files."""

from __future__ import annotations

from windtunnel.boundary.mlflow_server import connect, tracking_uri
from windtunnel.core.errors import UserError
from windtunnel.runtime.credentials import reason_of, without_credentials


def logged_metrics(digest: str, experiment: str, configured_uri: str | None) -> dict[str, float] | None:
    """The metrics of the parent run of the state `digest`; None where it is not logged. Raises UserError for a dead server."""
    uri = tracking_uri(configured_uri)
    try:
        client = connect(uri)
        experiment_record = client.get_experiment_by_name(experiment)
        query = f"tags.`windtunnel.state` = '{digest}' and tags.`windtunnel.role` = 'parent'"
        runs = client.search_runs([experiment_record.experiment_id], query, max_results=1) if experiment_record else []
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like
        raise UserError(f"tracking: {without_credentials(uri)}: {type(error).__name__}: {reason_of(error)}") from error
    return dict(runs[0].data.metrics) if runs else None
