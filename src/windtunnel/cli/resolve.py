"""Find a run by name: a directory, the workspace, a git revision, a DVC experiment, or an MLflow run."""

from __future__ import annotations

from pathlib import Path

from windtunnel.core.errors import UserError, nearest
from windtunnel.records.files import METADATA_FILE
from windtunnel.reporting.compare.runs import Run, numbers_in, run_in

WORKSPACE = "workspace"


def resolve(name: str, scratch: Path) -> Run:
    """Return the run called `name`, downloading into `scratch` if necessary. Raises UserError for an unknown name."""
    from windtunnel.operations.revisions import known_names, run_at

    directory = Path("." if name == WORKSPACE else name)
    if name == WORKSPACE or _has_results(directory):
        return run_in(directory, name, "as it is now" if name == WORKSPACE else "directory")
    run = run_at(name, scratch) or _mlflow_run(name, scratch)
    if run is not None:
        return run
    if directory.is_dir():
        return run_in(directory, name)  # which says what is missing there
    near = nearest(name, known_names())
    hint = f" Did you mean '{near}'?" if near else ""
    raise UserError(
        f"compare: '{name}' is no directory of results, git revision, DVC experiment or MLflow run.{hint} "
        f"See dvc exp list, git branch, windtunnel ui"
    )


def _has_results(directory: Path) -> bool:
    return any(any(directory.glob(f"{inside}robustness/*/{METADATA_FILE}")) for inside in ("", "reports/"))


def _mlflow_run(name: str, scratch: Path) -> Run | None:
    from windtunnel.boundary.mlflow_server import tracking_uri
    from windtunnel.boundary.params import load_params
    from windtunnel.operations.revisions import fetch_run, run_of_lock

    tracking = load_params().tracking
    label = fetch_run(name, scratch, tracking_uri(tracking.uri), tracking.experiment)
    if label is None:
        return None
    if _has_results(scratch):
        return run_in(scratch, label, "MLflow run, with its tensors")
    try:
        return run_of_lock(scratch, label, "MLflow run")
    except UserError as error:
        return numbers_in(scratch, label, "MLflow run", str(error))
