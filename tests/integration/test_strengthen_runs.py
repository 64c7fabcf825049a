"""`windtunnel strengthen` as its user sees it: a model that masks its gradients, stages of the real pipeline, DVC."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.integration.clone import Clone
from windtunnel.boundary.data.load import load_dataset
from windtunnel.cli.main import cli
from windtunnel.operations.stages.run import run_stage
from windtunnel.params.data import Data

pytestmark = pytest.mark.integration

NET = """
from torch import nn

class Rounding(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.net((x * 7).round() / 7)  # no gradient passes the rounding
"""
PARAMS = """
seed: 0
data: {source: digits, samples: {n: 40, selection: stratified}}
model: {source: state_dict, path: net.pt, factory: "rounding_net:Rounding"}
device: auto
budget: {norm: Linf, epsilon: 0.1}  # of digits
attacks:
  pgd: {library: torchattacks, algorithm: PGD, budget: {steps: 20, step_size: 0.0125}}  # finds nothing
tracking: {experiment: test}
gate: {}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A clone in which the stages before `strengthen` were run, in this process."""
    clone = Clone(tmp_path)
    (tmp_path / "rounding_net.py").write_text(NET)
    clone.write_params(PARAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from rounding_net import Rounding  # written above

    _, train = load_dataset(Data(samples={"n": 40, "selection": "stratified"}), 0)
    torch.manual_seed(0)
    net = Rounding()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(train.inputs), train.targets).backward()
        optimiser.step()
    torch.save(net.state_dict(), "net.pt")
    clone.commit("a model that rounds")
    for stage in (["resolve"], ["prepare"], ["train"], ["clean"], ["attack", "pgd"], ["sanity"]):
        run_stage(*stage)
    return clone


def test_what_was_flagged_is_answered_by_attacks_that_break_what_the_others_left(project):
    said = project.run("windtunnel", "strengthen", "--only", "D15", both=False)
    added = {"adaptive_linf_0_1", "black_box_linf_0_1", "bpda_linf_0_1", "transfer_linf_0_1"}
    text = Path("params.yaml").read_text()
    assert "# of digits" in text
    assert "# finds nothing" in text
    assert "    budget: {steps: 2000}\n" in text  # short maps on a line, as they were shown
    assert "attacks.black_box" not in said  # nothing failed
    for name in added:
        found = json.loads(Path("reports", "robustness", name, "metadata.json").read_text())["metrics"]
        rate, attacked = found["attack_success_rate"], found["n_attacked"]
        assert f"{name}: broke {round(rate * attacked)} of {attacked} surviving samples" in said
        assert rate >= 0.1, name
    run_stage("resolve")
    run_stage("sanity")
    run_stage("summary")
    shown = CliRunner().invoke(cli, ["show"]).output
    assert all(any(line.startswith(name) for line in shown.splitlines()) for name in added)
    metrics = json.loads(Path("reports", "summary", "metadata.json").read_text())["metrics"]
    assert metrics["worst_case_accuracy"] < 0.6
    assert "nothing to add" in project.run("windtunnel", "strengthen", "--only", "D15")


def test_an_entry_that_fails_says_why_and_the_others_run(project):
    failing = "def fit(*_):\n    raise RuntimeError('no lessons today')\n"
    standins = Path("src/windtunnel/assessments/attacks/standins.py")
    text = standins.read_text()
    standins.write_text(
        text.replace("def student_of", f"{failing}\n\ndef student_of").replace("train_classifier(recipe", "fit(recipe")
    )
    said = project.run("windtunnel", "strengthen", "--only", "D15", code=2)
    assert "attacks.bpda_linf_0_1: " in said
    assert "no lessons today" in said
    assert "black_box_linf_0_1: broke" in said
    assert "attacks.bpda_linf_0_1, attacks.transfer_linf_0_1 failed" in said
