"""Deliver a state to MLflow as runs, metrics and artifacts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from windtunnel.boundary.mlflow_server import ARTIFACTS, connect, main_root, store_lock
from windtunnel.boundary.params_file import read_params
from windtunnel.operations.redaction import TEXT_SUFFIXES, redacted_file, secrets_of
from windtunnel.operations.tracking.state import MAX_TAG, ChildState, State
from windtunnel.records.files import DATA_FILE, read_own
from windtunnel.records.layout import Layout

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# MLflow 3 opens an experiment of no kind in its GenAI view.
_EXPERIMENT = {
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": (
        "Robustness assessments by windtunnel. A run is one state of the pipeline: one model, one data set, one budget. "
        "Its nested runs are the assessments; a sweep is a run above its states. "
        "`certified/accuracy` <= true robust accuracy <= `worst_case/accuracy` <= `clean/accuracy`. "
        "Read `sanity.status` first: where it is fail, the numbers are not valid. "
        "`windtunnel ui` opens this list with the right columns."
    ),
}
_PARAMS_AT_ONCE = 100  # MLflow's limit for one batch


def deliver(state: State, uri: str, origin: Mapping[str, str]) -> tuple[str, bool]:
    """Log `state` unless it is logged already; return (the parent's run id, True if it was logged now).

    Complete, or raises what MLflow raises. `origin` are tags on where the state was made (`state.volatile_tags`), kept from the
    first delivery. Runs are found by tag, so that delivering twice makes nothing twice; an interrupted delivery is completed.
    """
    with store_lock():
        client = connect(uri)
        experiment = find_experiment(client, state.experiment, uri)
        existing = find_state(client, state.experiment, state.digest)
        if existing and _is_complete(existing):
            return str(existing.info.run_id), False
        tags = {**state.tags, **origin, "windtunnel.role": "parent", "mlflow.source.name": "dvc repro"}
        parent = str(existing.info.run_id) if existing else _create(client, experiment, _run_name(state), tags)
        secrets = secrets_of(read_params(state.layout.params))
        model = _log_parent(client, parent, state, secrets)
        for child in state.children:
            _deliver_child(client, experiment, parent, child, state, model, secrets)
        _complete(client, parent)
        return parent, True


def find_state(client: MlflowClient, experiment: str, digest: str) -> Run | None:
    """Return the parent run of a state, complete or not; None where there is none, or no experiment of this name."""
    entry = client.get_experiment_by_name(experiment)
    query = f"tags.`windtunnel.state` = '{digest}' and tags.`windtunnel.role` = 'parent'"
    return _find(client, str(entry.experiment_id), query) if entry else None


def tag_state(digest: str, experiment: str, uri: str, tags: Mapping[str, str]) -> str | None:
    """Set tags on the run of a state; return its id, None where the state is not logged."""
    with store_lock():
        client = connect(uri)
        run = find_state(client, experiment, digest)
        if run is None:
            return None
        for key, value in tags.items():
            client.set_tag(run.info.run_id, key, value)
        return str(run.info.run_id)


def find_experiment(client: MlflowClient, name: str, uri: str) -> str:
    """Return the id of the experiment, made where it is new; artifacts of a SQLite store lie in the main work tree."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = (main_root() / ARTIFACTS).as_uri() if urlparse(uri).scheme == "sqlite" else None
        identifier = str(client.create_experiment(name, artifact_location=location))
        tags: Mapping[str, str] = {}
    else:
        identifier, tags = str(experiment.experiment_id), experiment.tags
    for key, value in _EXPERIMENT.items():
        if key not in tags:  # what a user wrote stays
            client.set_experiment_tag(identifier, key, value)
    return identifier


def _find(client: MlflowClient, experiment: str, query: str) -> Run | None:
    return next(iter(client.search_runs([experiment], filter_string=query, max_results=1)), None)


def _create(client: MlflowClient, experiment: str, name: str, tags: Mapping[str, str]) -> str:
    allowed = {_name(key): value for key, value in tags.items()}
    return str(client.create_run(experiment, tags=allowed, run_name=name).info.run_id)


def _name(name: str) -> str:
    """Return a name that MLflow takes for a metric, a parameter or a tag: one that it refuses would lose the whole run."""
    return re.sub(r"[^\w\-./: ]", "_", name)[:250]


def _is_complete(run: Run) -> bool:
    return bool(run.data.tags.get("windtunnel.complete") == "true")


def _complete(client: MlflowClient, run: str) -> None:
    # The tag comes last: a run without it is continued by the next delivery.
    client.set_terminated(run)
    client.set_tag(run, "windtunnel.complete", "true")


def _run_name(state: State) -> str:
    budget = [state.params.get(key, "") for key in ("budget.norm", "budget.epsilon", "budget")]
    return " ".join([*filter(None, budget), state.digest[:8]])


def _log_parent(client: MlflowClient, run: str, state: State, secrets: set[str]) -> str:
    """Log the state itself; return the id of its model."""
    client.set_tag(run, "mlflow.note.content", state.description.replace("{run}", run))
    _log_params(client, run, state.params)
    # With its model and its data set, a metric ranks models: search_logged_models, and the columns of the Models page.
    origin = _log_subject(client, run, state)
    _log_metrics(client, run, {name: [(0, value)] for name, value in state.metrics.items()}, origin)
    for path in state.files:
        in_reports = path.is_relative_to(state.layout.reports)
        below = path.parent.relative_to(state.layout.reports).as_posix() if in_reports else "."
        _log_file(client, run, path, None if below == "." else below, secrets)
    return origin["model_id"]


def _log_file(client: MlflowClient, run: str, path: Path, below: str | None, secrets: set[str]) -> None:
    """Upload a file; one of text without the credentials that may stand in it (`tracking.uri` in params.yaml and dvc.lock)."""
    if path.suffix in TEXT_SUFFIXES:
        text = read_own(path).decode()
        if (clean := redacted_file(text, path.suffix, secrets)) != text:
            client.log_text(run, clean, f"{below}/{path.name}" if below else path.name)
            return
    client.log_artifact(run, str(path), artifact_path=below)


def _deliver_child(
    client: MlflowClient, experiment: str, parent: str, child: ChildState, state: State, model: str, secrets: set[str]
) -> None:
    same = f"tags.`windtunnel.digest` = '{child.digest}'"
    # The name too: two assessments may find the same, and are two runs all the same.
    query = f"{same} and tags.`mlflow.parentRunId` = '{parent}' and attributes.run_name = '{child.name}'"
    existing = _find(client, experiment, query)
    if existing and _is_complete(existing):
        return
    if existing:
        run = str(existing.info.run_id)
    else:
        earlier = _find(client, experiment, f"{same} and tags.`windtunnel.complete` = 'true'")
        # A cached result is linked to the run that first logged it.
        link = {"reused_from": str(earlier.info.run_id)} if earlier else {}
        tags = {**_child_tags(child, state.layout), **link, "mlflow.parentRunId": parent}
        run = _create(client, experiment, child.name, tags)
    _log_params(client, run, child.params)
    # Its metrics are not tied to the model: `accuracy` of two assessments would be one column of the Models page.
    _log_inputs(client, run, state, model)
    _log_metrics(client, run, {**{k: [(0, v)] for k, v in child.metrics.items()}, **child.curves})
    for path in child.files:
        _log_file(client, run, path, None, secrets)
    if state.log_tensors:
        client.log_artifact(run, str(child.directory / DATA_FILE))
    _complete(client, run)


def _child_tags(child: ChildState, layout: Layout) -> dict[str, str]:
    """By what a nested run is found, and what limits its numbers."""
    return {
        "windtunnel.role": "assessment",
        "windtunnel.digest": child.digest,
        "assessment_kind": child.metadata.assessment_kind.value,
        "threat_model": child.metadata.semantics.threat_model.value,
        "tensors": f"{layout.name_in_dvc(child.directory / DATA_FILE)} (in DVC)",
        # A metric that is a word, such as the rating of a sweep: MLflow takes numbers alone.
        **{f"metric.{key}": word for key, word in child.metadata.metrics.items() if isinstance(word, str)},
        **{f"caveat.{caveat.code}": caveat.text[:MAX_TAG] for caveat in child.metadata.all_caveats},
        **child.dvc_tags,
    }


def _log_params(client: MlflowClient, run: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    logged = client.get_run(run).data.params
    values = {_name(name): value for name, value in params.items()}
    rows = [Param(key, value[:6000]) for key, value in values.items() if key not in logged]
    for start in range(0, len(rows), _PARAMS_AT_ONCE):
        client.log_batch(run, params=rows[start : start + _PARAMS_AT_ONCE])


def _log_metrics(
    client: MlflowClient,
    run: str,
    series: Mapping[str, list[tuple[int, float]]],
    origin: Mapping[str, str] | None = None,
) -> None:
    """Metrics by name, each a list of (step, value). `origin`: the model_id, dataset_name and dataset_digest they are of."""
    from mlflow.entities import Metric

    of = {**origin, "run_id": run} if origin else {}
    rows = [Metric(_name(name), value, 0, step, **of) for name, points in series.items() for step, value in points]
    for start in range(0, len(rows), 1000):
        client.log_batch(run, metrics=rows[start : start + 1000])


def _log_subject(client: MlflowClient, run: str, state: State) -> dict[str, str]:
    """Link a parent run to its data set and model; return model_id, dataset_name and dataset_digest, as metrics name them."""
    from mlflow.entities import LoggedModelOutput

    model = logged_model(client, run, state)
    name, digest = _log_inputs(client, run, state, model)
    # The pipeline made it; any other model it was given. Once: MLflow refuses an output that a cut-off delivery has told.
    if state.model.source == "train" and not client.get_run(run).outputs.model_outputs:
        client.log_outputs(run, [LoggedModelOutput(model, 0)])
    return {"model_id": model, "dataset_name": name, "dataset_digest": digest}


def _log_inputs(client: MlflowClient, run: str, state: State, model: str) -> tuple[str, str]:
    """Link a run to its data set and to the logged model of this id; return the name and the digest of the data set."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput

    facts = state.dataset.model_dump(mode="json", include={"n", "shape", "class_names"})
    dataset = Dataset(
        name=state.dataset.source or "data",
        digest=state.dataset.digest[:36],
        source_type="local",
        source=json.dumps({"source": state.dataset.source}),
        profile=json.dumps(facts)[:16000],
    )
    inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "assessment")])]
    client.log_inputs(run, datasets=inputs, models=[LoggedModelInput(model)])
    return dataset.name, dataset.digest


def logged_model(client: MlflowClient, run: str, state: State) -> str:
    """Return the id of the model under assessment as MLflow knows it: one entry per digest, whoever logs it first.

    The weights stay in DVC until it is registered; MLflow gets what they are, so that all runs of one model can be found from it.
    """
    experiment = client.get_run(run).info.experiment_id
    name = f"model-{state.model_digest[:12]}"
    models = client.search_logged_models([experiment], filter_string=f"name = '{name}'", max_results=1)
    if models:
        return str(models[0].model_id)
    facts = {key: json.dumps(value)[:500] for key, value in state.model.facts.items()}
    tags = {"windtunnel.model_digest": state.model_digest}
    created = client.create_logged_model(experiment, name=name, source_run_id=run, tags=tags, params=facts)
    return str(client.finalize_logged_model(created.model_id, "READY").model_id)
