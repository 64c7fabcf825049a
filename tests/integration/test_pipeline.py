"""The real pipeline in a clone of this repository: what runs, what is cached, and what MLflow holds afterwards."""

import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.integration.clone import Clone
from windtunnel.operations.dvc_files import read_lock
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.files import file_digest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PARAMS = """
seed: 0
device: cpu
data: {source: digits, samples: {n: 40, selection: stratified}}
model: {source: train, train: {architecture: mlp, epochs: 15}}
budget: {norm: Linf, epsilon: EPSILON}
attacks:
  pgd: {library: torchattacks, algorithm: PGD, budget: {step_size: 0.02, steps: PGD_STEPS}}
  fgsm: {library: torchattacks, algorithm: FGSM}
sweeps:
  curve: {epsilons: [0, 0.05, 0.1]}
verification:
  crown: {library: auto-LiRPA, algorithm: crown}
corruptions:
  blur: {algorithm: gaussian_blur, severities: [1], upsample: 32}
tracking: {experiment: test}
gate: {minimum: {clean/accuracy: 0.5}}
"""


class Small(Clone):
    """With one entry of several families, and two knobs."""

    def params(self, epsilon: str = "0.05", pgd_steps: int = 5) -> None:
        self.write_params(PARAMS.replace("EPSILON", epsilon).replace("PGD_STEPS", str(pgd_steps)))


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Small(tmp_path_factory.mktemp("clone"))
    made.params()
    made.ran_first = made.repro()
    made.locked_first = read_lock(made.folder / "dvc.lock")
    return made


DOWNSTREAM = ["gate", "report", "sanity", "summary", "track"]


def test_everything_runs_once_and_nothing_twice(clone):
    assert clone.ran_first == sorted(
        [
            "prepare",
            "train",
            "clean",
            "attack@pgd",
            "attack@fgsm",
            "sweep@curve",
            "verify@crown",
            "corrupt@blur",
            "generators",
            *DOWNSTREAM,
        ]
    )
    assert clone.repro() == ["track"]
    _, parents, children = clone.parents()
    assert len(parents) == 1
    assert len(children) == 6


def test_stages_at_once_give_equal_bytes_even_after_a_kill(clone, tmp_path):
    other = Small(tmp_path)
    other.params()
    asked = ("generators", "gate", "report")  # what all stages but track are needed for
    killed = other.start("windtunnel", "repro", "--jobs", "2", *asked)
    wait_until(lambda: "clean" in read_lock(tmp_path / "dvc.lock"))
    killed.kill()
    killed.communicate()
    wait_until(lambda: not processes_in(tmp_path))
    other.run("windtunnel", "repair")
    other.run("windtunnel", "repro", "--jobs", "2", *asked)
    found = read_lock(tmp_path / "dvc.lock")
    first = {label: stage for label, stage in clone.locked_first.items() if label != "track"}
    assert found == first  # a kill may leave the entries of dvc.lock in the order in which stages ended
    assert other.repro() == ["track"]
    (tmp_path / "reports" / "gate.json").unlink()
    assert "gate: restored from the cache" in other.run("windtunnel", "repro", "gate")


def wait_until(holds, seconds=300):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def processes_in(folder):
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()) == folder:
                found.append(process)
    return found


def test_the_run_in_mlflow_holds_every_number(clone):
    client, (parent, *_), children = clone.parents()
    summary = read_artifacts(clone.folder / "reports" / "summary")
    for group, key in (
        ("certified", "certified_accuracy"),
        ("worst_case", "worst_case_accuracy"),
        ("clean", "clean_accuracy"),
    ):
        assert parent.data.metrics[f"{group}/accuracy"] == pytest.approx(summary.metrics[key])
    assert parent.data.params["attacks.pgd.algorithm"] == "PGD"
    assert parent.data.tags["windtunnel.complete"] == "true"
    assert "certified **" in parent.data.tags["mlflow.note.content"]
    assert {f.path for f in client.list_artifacts(parent.info.run_id)} >= {
        "report.pdf",
        "report.html",
        "params.yaml",
        "dvc.lock",
    }
    pgd = next(c for c in children if c.info.run_name == "pgd")
    assert pgd.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert pgd.data.metrics["adversarial_accuracy"] == pytest.approx(
        read_artifacts(clone.folder / "reports" / "robustness" / "pgd").metrics["adversarial_accuracy"]
    )
    assert parent.inputs.dataset_inputs[0].dataset.name == "digits"
    # A search leaves the model inputs out; a run asked for by its id has them.
    (model_input,) = client.get_run(parent.info.run_id).inputs.model_inputs
    model = client.get_logged_model(model_input.model_id)
    assert (
        model.tags["windtunnel.model_digest"] == summary.metadata.model_dump(mode="json")["provenance"]["model_digest"]
    )


def test_a_changed_attack_reruns_itself_and_what_is_downstream(clone):
    clone.params(pgd_steps=6)
    assert clone.repro() == ["attack@pgd", *DOWNSTREAM]


def test_a_changed_budget_reruns_what_uses_it_and_going_back_computes_nothing(clone):
    clone.params(pgd_steps=6)
    clone.repro()
    before = file_digest(clone.folder / "reports" / "robustness" / "pgd" / "robustness_data.pt")
    clone.params(pgd_steps=6, epsilon="0.07")
    ran = clone.repro()
    assert set(ran) >= {"attack@pgd", "attack@fgsm", "verify@crown", *DOWNSTREAM}
    assert not set(ran) & {"prepare", "train", "clean", "corrupt@blur"}
    clone.params(pgd_steps=6)
    assert set(clone.repro()) <= {"track"}
    assert file_digest(clone.folder / "reports" / "robustness" / "pgd" / "robustness_data.pt") == before
    _, parents, _ = clone.parents()
    assert all(p.data.tags["windtunnel.complete"] == "true" for p in parents)
    # The first params, another attack, another budget, and back: the way back makes no run.
    assert len({p.data.tags["windtunnel.state"] for p in parents}) == len(parents) == 3


def test_a_dead_server_costs_a_warning_and_the_next_track_delivers(clone, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    clone.params()
    clone.repro()
    path = clone.folder / "params.yaml"
    alive = path.read_text().replace("experiment: test", "experiment: outage")  # which holds nothing yet
    path.write_text(alive.replace("outage", "outage, uri: 'http://127.0.0.1:9'"))
    assert "WARNING: not logged, kept in the outbox" in clone.run("windtunnel", "track")
    clone.run("windtunnel", "track", "--strict", code=2)
    path.write_text(alive)
    assert "1 states delivered from the outbox" in clone.run("windtunnel", "track")


def test_bad_params_end_in_one_line_with_nothing_lost(clone):
    clone.params()
    before = sorted((clone.folder / "reports").rglob("*"))
    text = (clone.folder / "params.yaml").read_text()
    (clone.folder / "params.yaml").write_text(text.replace("algorithm: PGD", "algorithm: PDG"))
    line = clone.run("windtunnel", "check", code=2)
    assert "Did you mean 'PGD'?" in line
    assert "Traceback" not in line
    assert sorted((clone.folder / "reports").rglob("*")) == before
    clone.params()


def test_metrics_plots_and_params_are_dvcs_from_the_first_day(clone):
    clone.params()
    clone.repro()
    assert "worst_case.accuracy" in clone.run("dvc", "metrics", "show")
    clone.run("dvc", "plots", "show", "--out", "plots")
    assert (clone.folder / "plots" / "index.html").is_file()
    clone.params(epsilon="8/255")
    assert "8/255" in clone.run("dvc", "params", "diff")
    clone.params()
