"""MLflow's run list with the headline columns chosen: by default it shows none.

The UI of MLflow 3 keeps a view that users share as an experiment's tag, and opens it by `viewStateShareKey`.
"""

import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from windtunnel.boundary.mlflow_server import connect, store_lock
from windtunnel.operations.tracking.store import find_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "windtunnel"
# In the order in which they are read: the first seven fit a window of 1400 pixels beside the names of the runs.
COLUMNS = (
    ("params", "budget.epsilon"),
    ("metrics", "worst_case/accuracy"),
    ("metrics", "certified/accuracy"),
    ("metrics", "clean/accuracy"),
    ("tags", "sanity.status"),
    ("tags", "windtunnel.decision"),
    ("tags", "caveat_count"),
    ("params", "budget.norm"),
    ("params", "model.source"),
    ("tags", "dvc.exp.name"),
)
SANDWICH = ("certified/accuracy", "worst_case/accuracy", "clean/accuracy")
_WORKFLOW = "workflowType=machine_learning"  # without it a new browser shows the pages of generative models
_WIDTH = 110  # pixels


def _charts() -> dict[str, object]:
    """Return the charts of the run list: a first section with the sandwich, a bar per run."""
    chart = {"type": "BAR", "metricSectionId": KEY, "runsCountToCompare": 20, "deleted": False, "isGenerated": False}
    charts = [{**chart, "uuid": f"{KEY}-{row}", "metricKey": name} for row, name in enumerate(SANDWICH)]
    section = {"uuid": KEY, "name": "Robustness sandwich", "display": True, "isReordered": True}
    return {"compareRunCharts": charts, "compareRunSections": [section], "isAccordionReordered": True}


def share_headline_view(uri: str, experiment: str) -> str:
    """Keep the view in the store (made, where it is new); the address of the run list below the UI's root.

    Raises what MLflow raises where the store cannot be reached.
    """
    with store_lock():
        client: MlflowClient = connect(uri)
        identifier = find_experiment(client, experiment, uri)
        names = [f"{kind}.`{name}`" for kind, name in COLUMNS]  # as the UI names them
        # Widths count only for columns that are in the order too.
        view = {
            "selectedColumns": names,
            "columnOrder": names,
            "columnWidths": dict.fromkeys(names, _WIDTH),
            **_charts(),
        }
        client.set_experiment_tag(identifier, f"mlflow.sharedViewState.{KEY}", json.dumps(view))
    return f"/#/experiments/{identifier}/runs?{_WORKFLOW}&{urlencode({'viewStateShareKey': KEY})}"


def run_page(experiment: str, run: str) -> str:
    """Return the address of a run's page below the UI's root."""
    return f"#/experiments/{experiment}/runs/{run}?{_WORKFLOW}"
