"""A sweep as one run of MLflow: the states of its experiments nested below it, their numbers as series, and a figure across them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.plots import WIDTH, Bar, Series, bars, lines
from windtunnel.assessments.figures.scene import Scene
from windtunnel.boundary.mlflow_server import connect, store_lock
from windtunnel.core.transformations import epsilon_text
from windtunnel.operations.tracking.store import find_experiment, find_state
from windtunnel.operations.tracking.view import run_page
from windtunnel.records.basis import Basis, stated
from windtunnel.records.metadata import rate

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FIGURE = "sweep.png"
# MLflow's run list folds nested runs; it opens the parents of runs of this type, and the states are what the list is about.
_OPEN = {"mlflow.runType": "evaluation"}
_CURVES = (
    ("clean/accuracy", "clean", "clean accuracy"),
    ("worst_case/accuracy", "broken", "worst-case accuracy, 95 % intervals"),
    ("certified/accuracy", "certified", "certified accuracy, 95 % intervals"),
)
# A row of MLflow's lists shows the last step of a series: under the names of a state's metrics, a sweep would stand there, and
# be ranked, with the numbers of its last experiment.
_SERIES = "sweep/"


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment of a sweep: the values it was run at, the digest of its state, and its headline metrics, flat."""

    values: Mapping[str, str]
    state: str
    metrics: Mapping[str, float]

    @property
    def label(self) -> str:
        """`0.05`, or `0.05, L2` of several axes."""
        return ", ".join(self.values.values())


def record_sweep(
    name: str, axes: Mapping[str, Sequence[str]], points: Sequence[Point], uri: str, experiment: str
) -> str:
    """Log the sweep unless it is logged; the id of its run. Raises what MLflow raises where the store cannot be reached.

    A state is nested below the first sweep that asked for it, since a run has one parent; every sweep links all of its states.
    """
    digest = hashlib.sha256("\n".join([name, *sorted(point.state for point in points)]).encode()).hexdigest()
    with store_lock():
        client = connect(uri)
        where = find_experiment(client, experiment, uri)
        existing = client.search_runs([where], filter_string=f"tags.`windtunnel.sweep` = '{digest}'", max_results=1)
        tags = {"windtunnel.role": "sweep", "windtunnel.sweep": digest, "mlflow.source.name": "windtunnel sweep"}
        title = f"{name}: " + "; ".join(f"{axis} {', '.join(values)}" for axis, values in axes.items())
        run = str(
            existing[0].info.run_id
            if existing
            else client.create_run(where, tags=tags, run_name=title[:250]).info.run_id
        )
        states = {point.state: find_state(client, experiment, point.state) for point in points}
        for state in states.values():
            if state and "mlflow.parentRunId" not in state.data.tags:
                for key, value in {**_OPEN, "mlflow.parentRunId": run}.items():
                    client.set_tag(state.info.run_id, key, value)
        _log(client, run, title, axes, points, states)
        client.set_terminated(run)
    return run


def _log(
    client: MlflowClient,
    run: str,
    title: str,
    axes: Mapping[str, Sequence[str]],
    points: Sequence[Point],
    states: Mapping[str, Run | None],
) -> None:
    from mlflow.entities import Metric, Param

    params = [Param(axis, ", ".join(values)[:6000]) for axis, values in axes.items()]
    series = [
        Metric(f"{_SERIES}{key}", point.metrics[key], 0, step)
        for step, point in enumerate(points)
        for key, _, _ in _CURVES
        if key in point.metrics
    ]
    client.log_batch(run, metrics=series, params=params)
    client.set_tag(run, "mlflow.note.content", _note(run, points, states))
    # Imported here: a look at a store draws nothing.
    from windtunnel.assessments.figures.paint import paint

    with tempfile.TemporaryDirectory() as folder:
        paint(title, [sweep_chart(points)], Path(folder) / FIGURE)
        client.log_artifact(run, str(Path(folder) / FIGURE))


def _note(run: str, points: Sequence[Point], states: Mapping[str, Run | None]) -> str:
    rows = ["| at | worst case | certified | clean | run |", "| --- | --- | --- | --- | --- |"]
    for point in points:
        cells = [_cell(point.metrics, group) for group in ("worst_case", "certified", "clean")]
        state = states[point.state]
        link = "not logged"
        if state:
            link = f"[{state.info.run_name}]({run_page(state.info.experiment_id, state.info.run_id)})"
        rows.append(f"| {point.label} | {' | '.join(cells)} | {link} |")
    return "\n".join([*rows, "", f"![{FIGURE}](get-artifact?path={FIGURE}&run_uuid={run})"])


def _cell(metrics: Mapping[str, float], group: str) -> str:
    """Return the accuracy of a group with its interval and n; the row says at which budget."""
    value, n = rate(metrics, f"{group}/accuracy"), metrics.get(f"{group}/n")
    return stated(value, Basis(n=None if n is None else int(n))) if value else "-"


def sweep_chart(points: Sequence[Point]) -> Scene:
    """Return the sandwich across the experiments: against epsilon where that is all that differs, else the worst case of each."""
    if all(set(point.values) == {"budget.epsilon"} and "epsilon" in point.metrics for point in points):
        ordered = sorted(points, key=lambda point: point.metrics["epsilon"])
        drawn = [
            Series(
                title,
                role,
                tuple((p.metrics["epsilon"], p.metrics[key]) for p in having),
                _limits(having, key),
                line=False,
            )
            for key, role, title in _CURVES
            if (having := [p for p in ordered if key in p.metrics])
        ]
        top = ordered[-1].metrics["epsilon"]
        alt = f"Accuracy at {len(points)} values of epsilon up to {epsilon_text(top)}."
        return lines(drawn, "epsilon", "accuracy", alt, (0, 1.05 * top), (0, 1.02), width=WIDTH)
    key = "worst_case/accuracy"
    rows = [
        Bar(p.label, p.metrics[key], "broken", next(iter(_limits([p], key)), None)) for p in points if key in p.metrics
    ]
    return bars(rows, "worst-case accuracy, 95 % intervals", f"Worst-case accuracy of {len(rows)} experiments.")


def _limits(points: Sequence[Point], key: str) -> tuple[tuple[float, float], ...]:
    ends = (f"{key}_ci_low", f"{key}_ci_high")
    limits = [(p.metrics[ends[0]], p.metrics[ends[1]]) for p in points if ends[0] in p.metrics]
    return tuple(limits) if len(limits) == len(points) else ()
