"""Tracking: one parent run a pipeline state, one nested run an assessment, and nothing lost to a dead server."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.core.errors import UserError
from windtunnel.core.files import write_json
from windtunnel.tracking import store
from windtunnel.tracking.state import read_state
from windtunnel.tracking.track import outbox, track

DEAD = "http://127.0.0.1:9"  # the discard port: nothing listens, so connections are refused at once


def write_state(epsilon: str, accuracy: float) -> None:
    """A small pipeline state in the current directory: clean, one attack, summary, gate."""
    Path("params.yaml").write_text(
        f"data: {{}}\nmodel: {{}}\nbudget: {{norm: Linf, epsilon: {epsilon}}}\n"
        "attacks:\n  pgd: {library: torchattacks, algorithm: PGD}\n"
    )
    for name, value in (("clean", 0.97), ("pgd", accuracy)):
        folder = Path("reports/robustness") / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "robustness_data.pt").write_bytes(f"{name} {value}".encode())
        caveats = [{"code": "few_samples", "text": "only 20 samples"}] if name == "pgd" else []
        write_json({
            "name": name, "library": "torchattacks", "algorithm": "PGD", "assessment_kind": "empirical_attack",
            "semantics": {"threat_model": "white_box", "perturbation": {"norm": "Linf"}},
            "metrics": {"accuracy": value, "epsilons": [0.0, 0.1], "accuracy_curve": [0.97, value]}, "caveats": caveats,
        }, folder / "metadata.json")  # fmt: skip
    for folder in ("summary", "data", "model"):
        (Path("reports") / folder).mkdir(exist_ok=True)
    summary = {"kwargs": {"hard_failures": []}, "metrics": {}, "caveats": [], "provenance": {"model_digest": "0" * 64}}
    write_json(summary, Path("reports/summary/metadata.json"))
    write_json({"clean": {"accuracy": 0.97}, "worst_case": {"accuracy": accuracy}, "pgd": {"accuracy": accuracy}},
               Path("reports/metrics.json"))  # fmt: skip
    write_json({"decision": "promoted", "exit_code": 0, "conditions": []}, Path("reports/gate.json"))
    write_json({"source": "digits", "digest": "d" * 64, "n": 20}, Path("reports/data/dataset.json"))
    write_json({"source": "train"}, Path("reports/model/model.json"))


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory):
    """An initialised, empty store: MLflow's migrations take seconds, so they run once."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    store.connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    write_state("1/10", 0.4)
    return tmp_path


def parents(client):
    (experiment,) = (e for e in client.search_experiments() if e.name == "windtunnel")
    runs = client.search_runs([experiment.experiment_id])
    return [r for r in runs if r.data.tags["windtunnel.role"] == "parent"], runs


def test_equal_content_gives_equal_digests_and_other_tensors_another(project):
    first = read_state().digest
    assert read_state().digest == first
    Path("reports/robustness/pgd/runtime.json").write_text('{"data_digest": "of other tensors"}')
    assert read_state().digest == first
    Path("reports/robustness/pgd/robustness_data.pt").write_bytes(b"other")
    assert read_state().digest != first


def test_params_are_flat_and_as_written_and_the_description_names_the_caveats(project):
    state = read_state()
    assert state.params["budget.epsilon"] == "1/10"
    assert state.metrics["worst_case/accuracy"] == 0.4
    assert "only 20 samples" in state.description
    assert state.children[1].curves["accuracy_curve"] == [(0, 0.97), (100000, 0.4)]


@pytest.mark.parametrize("nested", [".dvc/tmp/exps/tmpabc"])
def test_a_temporary_experiment_logs_into_the_store_of_the_repository_that_asked(project, monkeypatch, nested):
    folder = project / nested
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.chdir(folder)
    assert store.tracking_uri(None) == f"sqlite:///{project / 'mlflow.db'}"
    assert store.tracking_uri("sqlite:///x.db") == f"sqlite:///{project / 'x.db'}"


def test_the_environment_decides_where_runs_go(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert store.tracking_uri("sqlite:////other.db") == "http://tracking:5000"


@pytest.mark.slow
def test_params_one_two_one_make_two_complete_parents(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    assert track().run
    write_state("2/10", 0.2)
    assert track().run
    write_state("1/10", 0.4)
    assert track().already
    client = store.connect(store.tracking_uri(None))
    found, runs = parents(client)
    assert len(found) == 2
    assert all(r.data.tags["windtunnel.complete"] == "true" and r.info.status == "FINISHED" for r in found)
    assert {r.data.params["budget.epsilon"] for r in found} == {"1/10", "2/10"}
    for parent in found:
        mine = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        assert {r.info.run_name for r in mine} == {"clean", "pgd"}
        assert parent.inputs.dataset_inputs[0].dataset.name == "digits"
    # clean is the same in both states: the second is linked to the first, not computed or invented anew
    assert sum("reused_from" in r.data.tags for r in runs) == 1


@pytest.mark.slow
def test_a_dead_server_loses_nothing_and_the_outbox_delivers(project, fresh_database, monkeypatch):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert track().run is None
    with pytest.raises(UserError, match=r"tracking: http"):
        track(strict=True)
    (outbox() / "killed.partial" / "reports").mkdir(parents=True)  # a kill while keeping
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    write_state("2/10", 0.2)
    outcome = track()
    assert outcome.run
    assert outcome.delivered_from_outbox == 1
    found, _ = parents(store.connect(store.tracking_uri(None)))
    assert {r.data.params["budget.epsilon"] for r in found} == {"1/10", "2/10"}
    assert not list(outbox().glob("*/state.json"))


@pytest.mark.integration
def test_twelve_processes_at_once_on_a_fresh_database_all_succeed_and_make_one_parent(project):
    command = [sys.executable, "-c", "from windtunnel.tracking.track import track; track(strict=True)"]
    processes = [subprocess.Popen(command) for _ in range(12)]
    assert [p.wait(timeout=180) for p in processes] == [0] * 12
    found, runs = parents(store.connect(store.tracking_uri(None)))
    assert (len(found), len(runs)) == (1, 3)
