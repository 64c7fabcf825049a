"""A package of somebody else is installed, and its attack, check and figure run like ours, without a change to windtunnel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.clone import Clone

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
tracking: {experiment: test}
gate: {}
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


def test_without_the_package_its_name_is_unknown(clone):
    environment = {**os.environ, "PYTHONPATH": str(clone.folder / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "check"], cwd=clone.folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "attacks.signs.library: 'signs' is not a library of attacks" in done.stderr
