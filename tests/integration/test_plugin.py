"""A package of somebody else is installed: its attack, step, check, figure and family run like ours, without a change to windtunnel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.clone import Clone
from windtunnel.core.contracts import Verdict

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PLUGIN = Path(__file__).parents[1] / "plugin"
PARAMS = """
seed: 0
device: cpu
data: {source: digits, samples: {n: 20, selection: stratified}}
model: {source: train, train: {architecture: mlp, epochs: 8}}
budget: {norm: Linf, epsilon: 0.1}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
  signs: {library: signs, algorithm: RandomSigns, params: {tries: 7}, visualisers: [SignVisualiser]}
verification:
  stepwise: {library: windtunnel, algorithm: cascade, steps: [corners, ibp], budget: {epsilon: 0.4}}
flips:
  sideways: {}
  upside: {axis: 2, samples: {n: 5}}
tracking: {experiment: test}
gate: {minimum: {sideways/mirrored_accuracy: 0.0}}
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    copy = tmp_path_factory.mktemp("plugin") / "signs"  # pip builds inside the source folder
    subprocess.run(["cp", "-r", str(PLUGIN), str(copy)], check=True)
    subprocess.run([*install, str(copy)], check=True)
    made = Clone(tmp_path_factory.mktemp("clone"), site)
    made.write_params(PARAMS)
    # What `windtunnel init` writes where the package is installed: a stage for its family too.
    graph = "from windtunnel.operations.project.graph import graph_text; print(graph_text({}), end='')"
    (made.folder / "dvc.yaml").write_text(made.run(sys.executable, "-c", graph, both=False))
    made.repro()
    return made


def test_its_attack_is_in_the_catalogue_and_its_slips_are_answered_as_ours_are(clone):
    assert "RandomSigns" in clone.run("env", "COLUMNS=200", "windtunnel", "algorithms", "--library", "signs")
    clone.write_params(PARAMS.replace("tries: 7", "trys: 7"))
    assert "Did you mean 'tries'?" in clone.run("windtunnel", "check", code=2)
    clone.write_params(PARAMS)


def test_its_attack_is_evaluated_and_drawn_by_its_figure(clone):
    directory = clone.folder / "reports" / "robustness" / "signs"
    metadata = json.loads((directory / "metadata.json").read_text())
    assert metadata["library"] == "signs"
    assert metadata["library_version"] == "1.2.3"
    assert metadata["call_kwargs"]["tries"] == 7
    assert metadata["semantics"]["threat_model"] == "black_box_score"
    assert (directory / "SignVisualiser_0.png").is_file()


def test_its_check_is_asked_and_the_report_names_its_library(clone):
    rows = json.loads((clone.folder / "reports" / "sanity" / "metadata.json").read_text())["kwargs"]["checks"]
    (mine,) = [row for row in rows if row["id"] == "X1"]
    assert mine["status"] == "pass"
    html = (clone.folder / "reports" / "report.html").read_text()
    assert "RandomSigns" in html
    assert "windtunnel-signs" in html or "signs 1.2.3" in html
    assert "X1" in clone.run("windtunnel", "sanity", "--explain", "X1")


def test_its_step_decides_samples_of_a_cascade_of_ours_and_the_rest_go_on(clone):
    directory = clone.folder / "reports" / "robustness" / "stepwise"
    metadata = json.loads((directory / "metadata.json").read_text())
    decided = metadata["metrics"]["decided_by"]
    assert decided["corners"] >= 1
    assert metadata["metrics"]["falsified_rate"] > 0
    assert metadata["call_kwargs"]["corners"] == {"tries": 5, "epsilon": 0.4}
    assert "corners" in metadata["kwargs"]["decided_by_names"]
    data = torch.load(directory / "robustness_data.pt", weights_only=True)
    mine = data["decided_by"] == metadata["kwargs"]["decided_by_names"].index("corners")
    assert (data["verdicts"][mine] == Verdict.FALSIFIED).all()
    assert (data["perturbed_predictions"][mine] != data["targets"][mine]).all()
    resolved = json.loads((clone.folder / "reports" / "resolved" / "verify" / "stepwise.json").read_text())["work"]
    assert "signs.steps" in resolved["code"]
    assert "corners" in (clone.folder / "reports" / "report.html").read_text()


def test_its_family_is_a_key_of_params_with_a_schema_of_its_own(clone):
    assert "mirror" in clone.run("env", "COLUMNS=200", "windtunnel", "algorithms", "--family", "flips")
    clone.write_params(PARAMS.replace("axis: 2", "axes: 2"))
    assert "Did you mean 'axis'?" in clone.run("windtunnel", "check", code=2)
    clone.write_params(PARAMS.replace("sideways/mirrored_accuracy", "sideways/mirored_accuracy"))
    assert "Did you mean 'sideways/mirrored_accuracy'?" in clone.run("windtunnel", "check", code=2)
    clone.write_params(PARAMS)


def test_an_entry_of_its_family_is_assessed_summed_up_reported_and_tracked(clone):
    reports = clone.folder / "reports"
    metadata = json.loads((reports / "robustness" / "sideways" / "metadata.json").read_text())
    assert (metadata["family"], metadata["library_version"]) == ("flips", "1.2.3")
    assert (
        len(json.loads((reports / "robustness" / "upside" / "metadata.json").read_text())["kwargs"]["sample_names"])
        == 5
    )
    found = metadata["metrics"]["mirrored_accuracy"]
    assert json.loads((reports / "metrics.json").read_text())["sideways"] == {"mirrored_accuracy": found}
    summary = json.loads((reports / "summary" / "metadata.json").read_text())
    assert summary["kwargs"]["assessments"][-2:] == ["sideways", "upside"]
    assert json.loads((reports / "gate.json").read_text())["decision"] == "passed"
    html = (reports / "report.html").read_text()
    assert "What if it is mirrored?" in html
    assert "right when mirrored" in html
    shown = clone.run("env", "COLUMNS=200", "windtunnel", "show")
    assert f"{found:.1%}" in shown
    assert "mirrored_accuracy" in clone.run("env", "COLUMNS=200", "windtunnel", "show", "sideways")
    _, _, children = clone.parents()
    (tracked,) = [run for run in children if run.info.run_name == "sideways"]
    assert tracked.data.metrics["mirrored_accuracy"] == found


def test_a_change_of_one_entry_of_its_family_runs_that_entry_and_what_reads_it(clone):
    clone.write_params(PARAMS.replace("axis: 2", "axis: 3"))
    ran = clone.repro()
    assert "flip@upside" in ran
    assert not {"flip@sideways", "attack@fgsm", "attack@signs", "clean", "train"} & set(ran)


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("", "flips: 'flips' is not a key here"),
        ("flips:", "attacks.signs.library: 'signs' is not a library of attacks"),
    ],
)
def test_without_the_package_its_names_are_unknown(clone, left_out, said):
    clone.write_params(PARAMS.partition("flips:\n")[0] + "tracking: {}\ngate: {}\n" if left_out else PARAMS)
    environment = {**os.environ, "PYTHONPATH": str(clone.folder / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "check"], cwd=clone.folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert said in done.stderr
