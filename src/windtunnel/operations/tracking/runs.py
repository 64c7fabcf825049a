"""Runs of MLflow, found by id or name, and their files brought here."""

from __future__ import annotations

import re
from pathlib import Path

from windtunnel.boundary.mlflow_server import connect
from windtunnel.core.errors import UserError
from windtunnel.records.files import DATA_FILE, METADATA_FILE
from windtunnel.runtime.credentials import without_credentials

FILES = ("params.yaml", "metrics.json", "dvc.lock")


def fetch_run(name: str, folder: Path, uri: str, experiment: str) -> str | None:
    """Bring a parent run's params.yaml, metrics.json and dvc.lock into `folder`; its name, or None for no such run.

    `name` is a run's id, `runs:/<id>` or a run's name. Tensors come along where they were uploaded
    (`tracking.log_tensors`), into folder/reports. Raises UserError where the store cannot be reached.
    """
    local = uri.removeprefix("sqlite:///")
    if local != uri and not Path(local).is_file():
        return None  # nothing was ever tracked; looking would make an empty store
    try:
        return _fetch(name.removeprefix("runs:/"), folder, uri, experiment)
    except Exception as error:  # MLflow, its stores and its HTTP client raise many kinds
        raise UserError(f"{name}: {without_credentials(uri)} cannot be asked ({type(error).__name__})") from error


def _fetch(name: str, folder: Path, uri: str, experiment: str) -> str | None:
    client = connect(uri)
    experiment_record = client.get_experiment_by_name(experiment)
    if experiment_record is None:
        return None
    key = "run_id" if re.fullmatch("[0-9a-f]{32}", name) else "run_name"
    where = f"attributes.{key} = '{name.replace(chr(39), '')}' and tags.`windtunnel.role` = 'parent'"
    runs = client.search_runs([experiment_record.experiment_id], filter_string=where, max_results=1)
    if not runs:
        return None
    run = runs[0].info
    folder.mkdir(parents=True, exist_ok=True)
    uploaded = {file.path for file in client.list_artifacts(run.run_id)}
    for file in uploaded & {*FILES}:
        target = folder / "reports" if file == "metrics.json" else folder
        target.mkdir(parents=True, exist_ok=True)
        client.download_artifacts(run.run_id, file, str(target))
    children = client.search_runs(
        [experiment_record.experiment_id], filter_string=f"tags.`mlflow.parentRunId` = '{run.run_id}'"
    )
    for child in children:
        if {DATA_FILE, METADATA_FILE} <= {file.path for file in client.list_artifacts(child.info.run_id)}:
            target = folder / "reports" / "robustness" / str(child.info.run_name)
            target.mkdir(parents=True, exist_ok=True)
            for file in (DATA_FILE, METADATA_FILE):
                client.download_artifacts(child.info.run_id, file, str(target))
    return str(run.run_name)
