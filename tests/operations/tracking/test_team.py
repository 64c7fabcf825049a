"""A team's set-up for real: a tracking server process over PostgreSQL, artifacts through its proxy, and its sudden death."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from test_track import parents, write_state

from tests.made import content
from tests.mlflow_server import Server, free_port, wait_until
from windtunnel.boundary.mlflow_server import connect
from windtunnel.boundary.models.architectures import mlp
from windtunnel.boundary.models.from_mlflow import fetch_model
from windtunnel.operations.tracking import store
from windtunnel.operations.tracking.registry import CHAMPION, PREVIOUS, open_registry
from windtunnel.operations.tracking.state import read_state
from windtunnel.operations.tracking.track import track, waiting
from windtunnel.params.results import Tracking
from windtunnel.records.artifacts import save_tensors
from windtunnel.records.files import write_json
from windtunnel.records.gate import Decision, GateResult

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def postgres():
    """The URI of an empty database in a throw-away cluster. PostgreSQL refuses to run as root."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    programs = found[-1].parent if found else Path(shutil.which("initdb") or "/nowhere/initdb").parent
    if not (programs / "initdb").is_file():
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg2")
    who = {}
    folder = Path(tempfile.mkdtemp(prefix="windtunnel-pg-"))
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("root without a user postgres to run the cluster as")
        os.chown(folder, user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid}
    port = free_port()
    data, common = str(folder / "data"), {"cwd": folder, "stdout": subprocess.DEVNULL, **who}
    subprocess.run([programs / "initdb", "-D", data, "-U", "team", "-A", "trust", "--no-sync"], check=True, **common)
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-F"],
        stderr=subprocess.DEVNULL, **common,
    )  # fmt: skip
    where = ["-h", "127.0.0.1", "-p", str(port), "-U", "team"]
    wait_until(lambda: subprocess.run([programs / "pg_isready", *where], check=False, **common).returncode == 0)
    subprocess.run([programs / "createdb", *where, "mlflow"], check=True, **common)
    yield f"postgresql://team@127.0.0.1:{port}/mlflow"
    server.send_signal(signal.SIGINT)
    server.wait(30)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(postgres, tmp_path_factory):
    made = Server(postgres, tmp_path_factory.mktemp("artifacts"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def project(server, tmp_path, monkeypatch):
    for name in ("DVC_ROOT", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    write_state("1/10", 0.4)
    return tmp_path


def test_a_server_killed_in_mid_delivery_loses_nothing_and_the_next_track_delivers(
    server, postgres, project, monkeypatch
):
    whole, seen = store._deliver_child, []

    def dies_at_the_second(client, experiment, parent, child, state):
        seen.append(child.name)
        if len(seen) == 2:
            server.kill()
        whole(client, experiment, parent, child, state)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_deliver_child", dies_at_the_second)
        outcome = track()
    assert outcome.run is None
    assert outcome.reason
    assert len(waiting()) == 1

    server.start()
    write_state("2/10", 0.2)
    outcome = track()
    assert outcome.delivered_from_outbox == 1
    assert not waiting()
    client = connect(server.uri)
    found, runs = parents(client)
    assert {run.data.params["budget.epsilon"] for run in found} == {"1/10", "2/10"}
    assert all(run.data.tags["windtunnel.complete"] == "true" and run.info.status == "FINISHED" for run in found)
    for parent in found:
        mine = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        assert sorted(run.info.run_name for run in mine) == ["clean", "pgd"]
        # The client knows no disk and no bucket: it asks the server, which keeps the files.
        assert parent.info.artifact_uri.startswith("mlflow-artifacts:/")
        assert Path(client.download_artifacts(parent.info.run_id, "params.yaml", str(project))).is_file()
    assert len(list(server.artifacts.rglob("params.yaml"))) == 2
    import psycopg2

    with psycopg2.connect(postgres) as database, database.cursor() as cursor:
        cursor.execute("select count(*) from runs")
        assert cursor.fetchone() == (len(runs),)


def test_champions_change_over_the_server_and_their_weights_come_back_through_it(server, project):
    registry = open_registry(Tracking())
    made = []
    for accuracy in (0.5, 0.6):
        write_state("3/10", accuracy)
        digest = {"model_digest": str(int(10 * accuracy)) * 64}
        summary = content(name="summary", kwargs={"hard_failures": []}, provenance=digest)
        write_json(summary, Path("reports/summary/metadata.json"))
        torch.manual_seed(int(10 * accuracy))
        save_tensors(dict(mlp((1, 8, 8), 10).state_dict()), Path("reports/model/weights.pt"))
        made.append(registry.register(read_state(), Path("reports/model"), GateResult(Decision.PASSED, ()), []))
        registry.promote(made[-1])
    assert [registry.alias(name).number for name in (CHAMPION, PREVIOUS)] == ["2", "1"]
    assert made[1].tags["assessment.link"].startswith(f"{server.uri}/#/experiments/")
    assert registry.rollback()[1].number == "1"
    assert (registry.alias(CHAMPION).number, registry.alias(PREVIOUS)) == ("1", None)
    kept = fetch_model(made[0].uri, project, allow_pickle=False)
    assert (kept["form"], kept["run_id"]) == ("export", made[0].run_id)
    # The model that was ranked is the model that was registered: one row each on the Models page, with its version and numbers.
    client = connect(server.uri)
    (run,) = (client.get_run(version.run_id) for version in made[1:])
    best_first = [{"field_name": "metrics.worst_case/accuracy", "ascending": False}]
    found = client.search_logged_models(
        [run.info.experiment_id], "tags.`mlflow.modelVersions` != ''", order_by=best_first
    )
    assert [json.loads(model.tags["mlflow.modelVersions"]) for model in found] == [
        [{"name": version.model, "version": number}] for version, number in zip(made[::-1], (2, 1), strict=True)
    ]
    assert [m.value for model in found for m in model.metrics if m.key == "worst_case/accuracy"] == [0.6, 0.5]
