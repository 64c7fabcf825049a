"""MLflow's run list with the headline columns chosen: by default it shows none.

The UI of MLflow 3 keeps a view that users share as an experiment's tag, and opens it by `viewStateShareKey`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from windtunnel.inputs.mlflow_server import connect, store_lock
from windtunnel.operations.tracking.store import find_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "windtunnel"
METRICS = ("certified/accuracy", "clean/accuracy", "worst_case/accuracy", "hard_failures")
PARAMS = ("budget.epsilon", "budget.norm", "model.source")
TAGS = ("sanity.status", "caveat_count", "windtunnel.decision", "dvc.exp.name")
_WIDTH = 140  # pixels; names are longer than MLflow's columns


def columns() -> list[str]:
    """The headline columns, as the UI names them."""
    return [f"{kind}.`{name}`" for kind, names in (("metrics", METRICS), ("params", PARAMS), ("tags", TAGS))
            for name in names]  # fmt: skip


def share_headline_view(uri: str, experiment: str) -> str:
    """Keep the view in the store (made, where it is new); the address of the run list below the UI's root.

    Raises what MLflow raises where the store cannot be reached.
    """
    with store_lock():
        client: MlflowClient = connect(uri)
        identifier = find_experiment(client, experiment, uri)
        names = columns()
        # Widths count only for columns that are in the order too.
        view = {"selectedColumns": names, "columnOrder": names, "columnWidths": dict.fromkeys(names, _WIDTH)}
        client.set_experiment_tag(identifier, f"mlflow.sharedViewState.{KEY}", json.dumps(view))
    query = urlencode({"workflowType": "machine_learning", "viewStateShareKey": KEY})
    return f"/#/experiments/{identifier}/runs?{query}"


def comparison_address(experiment: str, runs: list[str]) -> str:
    """The address of MLflow's comparison page of some runs, below the UI's root."""
    return f"/#/compare-runs?runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment]))}"
