"""Tracking: one parent run a pipeline state, one nested run an assessment, and nothing lost to a dead server."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from tests.made import content
from windtunnel.boundary.mlflow_server import connect, tracking_uri
from windtunnel.cli.tracking import track as track_command
from windtunnel.core.errors import UserError
from windtunnel.operations.tracking.state import read_state, state_digest
from windtunnel.operations.tracking.sweep import Point, record_sweep
from windtunnel.operations.tracking.track import outbox, track
from windtunnel.records.files import read_json, write_json
from windtunnel.records.layout import HERE

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
        tensors(folder / "robustness_data.pt", f"{name} {value}")
        caveats = [{"code": "few_samples", "text": "only 20 samples"}] if name == "pgd" else []
        metrics = {"accuracy": value, "epsilons": [0.0, 0.1], "accuracy_curve": [0.97, value]}
        semantics = {"perturbation": {"norm": "Linf"}}
        facts = content(name=name, semantics=semantics, metrics=metrics, caveats=caveats)
        write_json(facts, folder / "metadata.json")
    for folder in ("summary", "data", "model"):
        (Path("reports") / folder).mkdir(exist_ok=True)
    summary = content(name="summary", kwargs={"hard_failures": []}, provenance={"model_digest": "0" * 64})
    write_json(summary, Path("reports/summary/metadata.json"))
    write_json({"clean": {"accuracy": 0.97}, "worst_case": {"accuracy": accuracy}, "pgd": {"accuracy": accuracy}},
               Path("reports/metrics.json"))  # fmt: skip
    write_json({"decision": "passed", "exit_code": 0, "conditions": []}, Path("reports/gate.json"))
    ids, names = [f"digit-{i:04d}" for i in range(20)], [str(i) for i in range(10)]
    data = {"source": "digits", "n": 20, "n_train": 0, "shape": [1, 8, 8], "class_names": names, "labelled": True}
    write_json({**data, "value_range": [0, 1], "digest": "d" * 64, "ids": ids}, Path("reports/data/dataset.json"))
    made = {"architecture": "mlp", "recipe": {"recipe": "standard"}, "input_shape": [1, 8, 8], "num_classes": 10}
    write_json({"source": "train", **made}, Path("reports/model/model.json"))


def tensors(path: Path, content: str) -> None:
    """A whole file as torch.save writes one, as far as `track` looks: equal content gives equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("data"), content)


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory):
    """An initialised, empty store: MLflow's migrations take seconds, so they run once."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{path}").search_experiments()
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
    Path("params.yaml").write_text("# a comment\n" + Path("params.yaml").read_text())
    assert read_state().digest == first
    tensors(Path("reports/robustness/pgd/robustness_data.pt"), "other")
    assert read_state().digest != first


def test_params_are_flat_and_as_written_and_the_description_names_the_caveats(project):
    state = read_state()
    assert state.params["budget.epsilon"] == "1/10"
    assert state.metrics["worst_case/accuracy"] == 0.4
    assert "- pgd: only 20 samples" in state.description
    assert state.description.startswith("Accuracy: worst case **40.0%** ≤ clean **97.0%**")
    assert state.children[1].curves["accuracy_curve"] == [(0, 0.97), (100000, 0.4)]


def test_a_nested_run_logs_every_parameter_of_its_entry(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    keys = "samples: {n: 20}, budget: {steps: 7}, params: {random_start: true}, restarts: 2"
    text = Path("params.yaml").read_text().replace("algorithm: PGD}", f"algorithm: PGD, {keys}}}")
    Path("params.yaml").write_text(text)
    path = Path("reports/robustness/pgd/metadata.json")
    tensor = {"shape": [20], "dtype": "torch.int64", "device": "cpu"}
    recorded = {
        "family": "attacks",
        "kwargs": {"sample_names": ["a"], "batch_size": 64, "restarts": 2},
        "call_kwargs": {"eps": 0.1, "alpha": 0.01, "random_start": True, "labels": tensor},
        "provenance": {"seed": 3, "device": "cpu", "dataset_digest": "d" * 64, "model_digest": "0" * 64},
    }
    semantics = {**read_json(path)["semantics"], "sample_selection": {"of": 60, "n": 20, "selection": "first"}}
    write_json({**read_json(path), **recorded, "semantics": semantics}, path)
    assert track().run
    client = connect(tracking_uri(None))
    (parent,), runs = parents(client)
    run = next(r for r in runs if r.info.run_name == "pgd")
    assert run.data.params == {
        "family": "attacks", "library": "torchattacks", "algorithm": "PGD", "norm": "Linf",
        "samples.n": "20", "samples.of": "60", "samples.selection": "first",
        "budget.steps": "7", "params.random_start": "True", "restarts": "2", "batch_size": "64",
        "call.eps": "0.1", "call.alpha": "0.01", "call.random_start": "True",
        "seed": "3", "device": "cpu", "dataset_digest": "d" * 64, "model_digest": "0" * 64,
    }  # fmt: skip
    inputs = [client.get_run(one.info.run_id).inputs for one in (parent, *runs)]
    assert {tuple(d.dataset.digest for d in one.dataset_inputs) for one in inputs} == {("d" * 36,)}
    models = {tuple(m.model_id for m in one.model_inputs) for one in inputs}
    assert len(models) == 1
    assert len(models.pop()) == 1


def test_the_headline_metric_is_logged_first_since_mlflow_compares_by_the_first(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    path = Path("reports/robustness/pgd/metadata.json")
    metrics = {"clean_accuracy": 0.97, "adversarial_accuracy": 0.4, "success_rate_all_samples": 0.6}
    write_json({**read_json(path), "family": "attacks", "metrics": metrics}, path)
    assert track().run
    run = next(r for r in parents(connect(tracking_uri(None)))[1] if r.info.run_name == "pgd")
    assert next(iter(run.data.metrics)) == "adversarial_accuracy"


def test_a_named_budget_is_spelt_out(project):
    text = Path("params.yaml").read_text().replace("budget: {norm: Linf, epsilon: 1/10}", "budget: tight")
    Path("params.yaml").write_text(text + "budgets: {tight: {norm: L2, epsilon: 3/10}}\n")
    found = read_state().params
    assert (found["budget"], found["budget.norm"], found["budget.epsilon"]) == ("tight", "L2", "0.3")


def test_a_stage_is_known_by_what_dvcs_own_cache_goes_by(project):
    lock = """
schema: '2.0'
stages:
  attack@pgd:
    cmd: python -m stages.attack pgd
    params: {params.yaml: {attacks.pgd: {steps: STEPS}}}
    outs: [{path: reports/robustness/pgd, md5: abc.dir}]
  track: {cmd: python -m stages.track}
"""
    hashes = []
    for steps in ("5", "6", "5"):
        Path("dvc.lock").write_text(lock.replace("STEPS", steps))
        state = read_state()
        tags = state.children[1].dvc_tags
        assert (tags["dvc.stage"], tags["dvc.out_md5"]) == ("attack@pgd", "abc.dir")
        assert state.tags["dvc.stage_hashes"] == f"attack@pgd={tags['dvc.stage_hash'][:12]}"
        hashes.append(tags["dvc.stage_hash"])
    assert hashes[0] == hashes[2] != hashes[1]
    Path("dvc.lock").write_text("{")  # damaged: costs the tags, not the run
    assert not read_state().children[1].dvc_tags


def test_many_caveats_are_counted_not_cut(project):
    caveats = [{"code": f"c{i}", "text": f"caveat number {i} " + "x" * 200} for i in range(40)]
    metadata = read_json(Path("reports/robustness/pgd/metadata.json"))
    write_json({**metadata, "caveats": caveats}, Path("reports/robustness/pgd/metadata.json"))
    (Path("reports/summary") / "SandwichVisualiser_0.png").write_bytes(b"")
    text = read_state().description
    assert len(text) <= 4500
    assert re.search(r"- and \d+ more: see the report\n", text)
    assert text.endswith("![SandwichVisualiser_0](get-artifact?path=summary/SandwichVisualiser_0.png&run_uuid={run})")


@pytest.mark.parametrize("nested", [".dvc/tmp/exps/tmpabc"])
def test_a_temporary_experiment_logs_into_the_store_of_the_repository_that_asked(project, monkeypatch, nested):
    folder = project / nested
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.chdir(folder)
    assert tracking_uri(None) == f"sqlite:///{project / 'mlflow.db'}"
    assert tracking_uri("sqlite:///x.db") == f"sqlite:///{project / 'x.db'}"


def test_the_environment_decides_where_runs_go(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert tracking_uri("sqlite:////other.db") == "http://tracking:5000"


@pytest.mark.slow
def test_params_one_two_one_make_two_complete_parents(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    assert track().run
    write_state("2/10", 0.2)
    assert track().run
    write_state("1/10", 0.4)
    assert track().already
    client = connect(tracking_uri(None))
    found, runs = parents(client)
    assert len(found) == 2
    assert all(r.data.tags["windtunnel.complete"] == "true" and r.info.status == "FINISHED" for r in found)
    assert {r.data.params["budget.epsilon"] for r in found} == {"1/10", "2/10"}
    for parent in found:
        mine = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        assert {r.info.run_name for r in mine} == {"clean", "pgd"}
        assert parent.inputs.dataset_inputs[0].dataset.name == "digits"
    # clean is the same in both states: the second is linked to the first, not computed or invented again
    assert sum("reused_from" in r.data.tags for r in runs) == 1


@pytest.mark.slow
def test_models_are_ranked_by_their_worst_case(project, fresh_database):
    """What a person asks MLflow for: the best model first, by a metric of the assessment, on one data set."""
    shutil.copyfile(fresh_database, project / "mlflow.db")
    for model, accuracy in (("a", 0.2), ("b", 0.6), ("c", 0.4)):
        write_state("1/10", accuracy)
        path = Path("reports/summary/metadata.json")
        write_json({**read_json(path), "provenance": {"model_digest": model * 64}}, path)
        assert track().run
    client = connect(tracking_uri(None))
    (experiment,) = (e.experiment_id for e in client.search_experiments() if e.name == "windtunnel")
    best_first = [{"field_name": "metrics.worst_case/accuracy", "ascending": False}]
    found = client.search_logged_models([experiment], order_by=best_first)
    assert [model.name for model in found] == [f"model-{letter * 12}" for letter in "bca"]
    assert [[m.value for m in model.metrics if m.key == "worst_case/accuracy"] for model in found] == [
        [0.6],
        [0.4],
        [0.2],
    ]
    on_these = [{**best_first[0], "dataset_name": "digits"}]
    assert len(client.search_logged_models([experiment], order_by=on_these)) == 3
    good = client.search_logged_models([experiment], filter_string="metrics.`worst_case/accuracy` > 0.3")
    assert len(good) == 2


@pytest.mark.slow
def test_a_sweep_is_one_run_above_its_states_with_a_figure(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    points = []
    for epsilon, accuracy in (("0.1", 0.4), ("0.2", 0.2)):
        write_state(epsilon, accuracy)
        assert track().run
        assert state_digest(HERE) == read_state().digest
        metrics = {"worst_case/accuracy": accuracy, "clean/accuracy": 0.97, "epsilon": float(epsilon)}
        points.append(Point({"budget.epsilon": epsilon}, state_digest(HERE), metrics))
    points.append(Point({"budget.epsilon": "0.3"}, "never logged", {"clean/accuracy": 0.97, "epsilon": 0.3}))
    uri, axes = tracking_uri(None), {"budget.epsilon": ["0.1", "0.2", "0.3"]}
    run = record_sweep("sweep", axes, points, uri, "windtunnel")
    assert record_sweep("sweep", axes, points, uri, "windtunnel") == run
    client = connect(uri)
    kept, (found, _) = client.get_run(run), parents(client)
    assert kept.info.run_name == "sweep: budget.epsilon 0.1, 0.2, 0.3"
    assert {parent.data.tags["mlflow.parentRunId"] for parent in found} == {run}
    series = {m.step: m.value for m in client.get_metric_history(run, "sweep/worst_case/accuracy")}
    assert series == {0: 0.4, 1: 0.2}
    assert not {"worst_case/accuracy", "clean/accuracy", "epsilon"} & set(kept.data.metrics)
    assert [file.path for file in client.list_artifacts(run)] == ["sweep.png"]
    note = kept.data.tags["mlflow.note.content"]
    assert "| 0.1 | 40.0% | - | 97.0% | [Linf 0.1" in note
    assert "| 0.3 | - | - | 97.0% | not logged |" in note
    # A run has one parent: another sweep that asks for the same states links them.
    other = client.get_run(record_sweep("other", axes, points[:2], uri, "windtunnel"))
    assert "| 0.1 | 40.0% | - | 97.0% | [Linf 0.1" in other.data.tags["mlflow.note.content"]
    assert {parent.data.tags["mlflow.parentRunId"] for parent in parents(client)[0]} == {run}
    # Ranking and tracking go on as before: nothing is delivered twice, and the best of all states is found.
    assert track().already
    (experiment,) = {parent.info.experiment_id for parent in found}
    best = client.search_runs(
        [experiment], "metrics.`worst_case/accuracy` >= 0", order_by=["metrics.`worst_case/accuracy` DESC"]
    )
    assert [state.data.metrics["worst_case/accuracy"] for state in best] == [0.4, 0.2]  # and no sweep among them


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
    found, _ = parents(connect(tracking_uri(None)))
    assert {r.data.params["budget.epsilon"] for r in found} == {"1/10", "2/10"}
    assert not list(outbox().glob("*/state.json"))


@pytest.mark.slow
def test_a_kill_in_the_middle_is_continued_without_a_run_left_over(project, fresh_database, monkeypatch):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    log_artifact, calls = MlflowClient.log_artifact, []

    def dies(self, run, path, **where):
        calls.append(path)
        if path.endswith("pgd/metadata.json"):
            raise KeyboardInterrupt
        log_artifact(self, run, path, **where)

    monkeypatch.setattr(MlflowClient, "log_artifact", dies)
    with pytest.raises(KeyboardInterrupt):
        track()
    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    client = connect(tracking_uri(None))
    _, runs = parents(client)
    assert {r.info.status for r in runs} == {"RUNNING", "FINISHED"}
    track()
    found, runs = parents(client)
    assert len(found) == 1
    assert sorted(r.info.run_name for r in runs) == sorted(["clean", "pgd", found[0].info.run_name])
    assert all(r.info.status == "FINISHED" and r.data.tags["windtunnel.complete"] == "true" for r in runs)
    # Two files called metadata.json, of the summary and of the sanity checks, must not overwrite each other.
    assert "summary/metadata.json" in {f.path for f in client.list_artifacts(found[0].info.run_id, "summary")}
    assert client.get_run(found[0].info.run_id).data.tags["mlflow.note.content"].count(found[0].info.run_id) == 2


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_leaves_a_run_that_the_next_delivery_completes(
    project, fresh_database, monkeypatch
):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    log_artifact = MlflowClient.log_artifact

    def dies(self, run, path, **where):
        if path.endswith("pgd/metadata.json"):
            raise ConnectionError("the server is gone")
        log_artifact(self, run, path, **where)

    monkeypatch.setattr(MlflowClient, "log_artifact", dies)
    assert "the server is gone" in track().reason
    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    write_state("2/10", 0.2)  # the work tree moves on
    assert track().delivered_from_outbox == 1
    found, runs = parents(connect(tracking_uri(None)))
    assert {r.data.params["budget.epsilon"] for r in found} == {"1/10", "2/10"}
    assert len(runs) == 2 * 3
    assert all(r.info.status == "FINISHED" and r.data.tags["windtunnel.complete"] == "true" for r in runs)


@pytest.mark.slow
def test_a_run_id_in_the_environment_is_not_resumed(project, fresh_database, monkeypatch):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    first = track().run
    monkeypatch.setenv("MLFLOW_RUN_ID", first)
    write_state("2/10", 0.2)
    second = track().run
    client = connect(tracking_uri(None))
    assert first != second
    assert [client.get_run(r).data.params["budget.epsilon"] for r in (first, second)] == ["1/10", "2/10"]


@pytest.mark.slow
def test_names_and_values_that_mlflow_refuses_do_not_lose_the_run(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    file = Path("reports/robustness/pgd/metadata.json")
    metadata = read_json(file)
    odd = {"acc@8/255": 0.5, "eps=0.03": 0.25, "infinite": float("inf"), "not_a_number": float("nan"), "big": 1e300}
    write_json({**metadata, "metrics": {**metadata["metrics"], **odd}}, file)
    Path("params.yaml").write_text(Path("params.yaml").read_text() + 'tracking: {tags: {"team@x": a, "size": 3}}\n')
    run = track(strict=True).run
    client = connect(tracking_uri(None))
    assert client.get_run(run).data.tags["team_x"] == "a"
    _, runs = parents(client)
    (pgd,) = (r for r in runs if r.info.run_name == "pgd")
    assert pgd.data.metrics["acc_8/255"] == 0.5
    assert pgd.data.metrics["eps_0.03"] == 0.25
    assert pgd.data.metrics["big"] == 1e300
    assert not {"infinite", "not_a_number"} & set(pgd.data.metrics)  # JSON keeps them as words: absent beats wrong


@pytest.mark.slow
def test_tensors_stay_in_dvc_unless_asked_for(project, fresh_database):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    client = connect(tracking_uri(None))

    def files():
        _, runs = parents(client)
        newest = max((r for r in runs if r.info.run_name == "pgd"), key=lambda r: r.info.start_time)
        assert newest.data.tags["tensors"] == "reports/robustness/pgd/robustness_data.pt (in DVC)"
        return {f.path for f in client.list_artifacts(newest.info.run_id)}

    track()
    assert files() == {"metadata.json"}
    Path("params.yaml").write_text(Path("params.yaml").read_text() + "tracking: {log_tensors: true}\n")
    track()
    assert files() == {"metadata.json", "robustness_data.pt"}


@pytest.mark.slow
def test_a_damaged_entry_of_the_outbox_blocks_no_other_and_is_no_failure_of_this_state(
    project, fresh_database, monkeypatch
):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for epsilon in ("1/10", "2/10", "3/10"):
        write_state(epsilon, 0.4)
        assert track().reason
    first = min(outbox().glob("*/state.json"), key=lambda card: card.stat().st_mtime)
    first.write_text("{")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    write_state("4/10", 0.4)
    outcome = track()
    assert outcome.run
    assert outcome.delivered_from_outbox == 2
    (problem,) = outcome.problems
    assert first.parent.name in problem
    assert "delete it to give it up" in problem
    assert "not logged" not in CliRunner().invoke(track_command).output
    found, _ = parents(connect(tracking_uri(None)))
    assert {r.data.params["budget.epsilon"] for r in found} == {"2/10", "3/10", "4/10"}
    with pytest.raises(UserError, match="stays in the outbox"):
        track(strict=True)


@pytest.mark.slow
def test_a_state_delivered_later_says_where_it_was_made(project, fresh_database, monkeypatch):
    shutil.copyfile(fresh_database, project / "mlflow.db")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    made_at = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    monkeypatch.setenv("DVC_EXP_NAME", "narrow")
    track()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.delenv("DVC_EXP_NAME")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "two"], check=True)
    write_state("2/10", 0.2)
    track()
    found, _ = parents(connect(tracking_uri(None)))
    (late,) = (r for r in found if r.data.params["budget.epsilon"] == "1/10")
    assert late.data.tags["git.commit"] == late.data.tags["mlflow.source.git.commit"] == made_at
    assert late.data.tags["dvc.exp.name"] == "narrow"


@pytest.mark.integration
def test_processes_at_once_on_a_fresh_database_all_succeed_and_make_one_parent(project):
    command = [sys.executable, "-c", "from windtunnel.operations.tracking.track import track; track(strict=True)"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(timeout=900) for process in processes] == [0] * 4
    found, runs = parents(connect(tracking_uri(None)))
    assert (len(found), len(runs)) == (1, 3)


def test_a_cut_tensor_file_costs_its_assessment_alone_and_the_run_says_so(project):
    data = Path("reports/robustness/pgd/robustness_data.pt")
    data.write_bytes(data.read_bytes()[:-10])
    state = read_state()
    assert "pgd" not in [child.name for child in state.children]
    assert state.children
    (problem,) = state.problems
    assert "pgd is not logged: reports/robustness/pgd/robustness_data.pt: is missing or cut" in problem
    assert "pgd is not logged" in state.tags["windtunnel.damaged"]
    assert "pgd is not logged" in state.description
