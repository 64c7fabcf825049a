"""The real pipeline where entries fail at run time: what refuses for good is cached, what may pass runs again and is not pushed."""

import json

import pytest

from tests.integration.clone import Clone
from windtunnel.operations.dvc_files import read_lock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PARAMS = """
seed: 0
device: cpu
data: {source: digits, samples: {n: 20, selection: stratified}}
model: {source: train, train: {architecture: mlp, epochs: 5}}
budget: {norm: Linf, epsilon: 0.05}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
  refuses: {library: function, algorithm: "failing:refuses"}
  unreachable: {library: function, algorithm: "failing:unreachable"}
  killed: {library: function, algorithm: "failing:killed"}
  binarisation: {library: foolbox, algorithm: BinarizationRefinementAttack}
sanity: {profile: stored}
tracking: {experiment: test}
gate: {minimum: {clean/accuracy: 0.1}}
"""
ATTACKS = """
import os
import signal
from pathlib import Path


def refuses(model, inputs, labels, budget, seed):
    raise ValueError("this model does not binarise its inputs")


def unreachable(model, inputs, labels, budget, seed):
    if Path(".cache/down").exists():
        raise ConnectionError("the server is down")
    return inputs


def killed(model, inputs, labels, budget, seed):
    if Path(".cache/down").exists():
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory is short
    return inputs
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("clone"))
    made.write_params(PARAMS)
    (made.folder / "failing.py").write_text(ATTACKS)
    (made.folder / ".cache").mkdir(exist_ok=True)
    (made.folder / ".cache" / "down").touch()
    made.ran_first = made.repro()
    return made


def _runs_of(clone, name):
    files = [p for p in (clone.folder / ".dvc/cache/runs").glob("*/*/*") if p.is_file()]
    return [p for p in files if f"reports/robustness/{name}" in p.read_text()]


def _pushed(clone, remote):
    """Texts of the files and directories that `dvc push --run-cache` leaves in `remote`."""
    clone.run("dvc", "remote", "add", "-f", "-d", remote, str(clone.folder / ".cache" / remote))
    clone.run("dvc", "push", "--run-cache")
    files = [p for p in (clone.folder / ".cache" / remote).glob("files/md5/*/*") if p.stat().st_size < 10**5]
    return [p.read_text() for p in files if b"\x00" not in p.read_bytes()]


def test_everything_downstream_runs_and_the_gate_refuses(clone):
    assert {
        "attack@refuses",
        "attack@unreachable",
        "attack@killed",
        "attack@binarisation",
        "sanity",
        "summary",
        "report",
        "gate",
        "track",
    } <= {*clone.ran_first}
    said = " ".join(clone.run("windtunnel", "gate", code=20).split())  # the terminal wraps lines
    assert "attacks.refuses failed" in said
    assert "attacks.unreachable failed" in said
    assert "attacks.killed failed and has no result (its process was ended by SIGKILL" in said
    assert (
        "attacks.binarisation failed and has no result (BinarizationRefinementAttack: the model does not binarise"
        in said
    )
    assert "failed: no result" in clone.run("windtunnel", "show")


def test_what_may_pass_is_an_empty_directory_for_dvc(clone):
    locked = {out.path: out for stage in read_lock(clone.folder / "dvc.lock").values() for out in stage.outs}
    assert locked["reports/robustness/refuses"].nfiles > 1
    assert locked["reports/robustness/binarisation"].nfiles > 1
    for name in ("unreachable", "killed"):
        assert locked[f"reports/robustness/{name}"].nfiles == 0
        assert all(locked[f"reports/robustness/{name}"].md5 in path.read_text() for path in _runs_of(clone, name))
    records = [json.loads(text) for text in _pushed(clone, "here") if text.startswith('{\n  "name"')]
    failed = {record["name"] for record in records if "failure" in record}
    assert failed == {"refuses", "binarisation"}


def test_after_one_stage_alone_nothing_of_a_failure_that_may_pass_is_pushed(clone):
    clone.run("dvc", "repro", "-f", "attack@unreachable")
    metadata = json.loads((clone.folder / "reports/robustness/unreachable/metadata.json").read_text())
    assert metadata["failure"]["is_temporary"]
    assert not any('"failure"' in text and "the server is down" in text for text in _pushed(clone, "alone"))


def test_status_says_why_it_would_run_again(clone):
    assert "it failed the last time: " in clone.run("windtunnel", "status")


def test_the_next_repro_runs_what_may_pass_and_nothing_else_of_the_attacks(clone):
    (clone.folder / ".cache" / "down").unlink()
    ran = clone.repro()
    assert [stage for stage in ran if stage.startswith("attack@")] == ["attack@killed", "attack@unreachable"]
    found = json.loads((clone.folder / "reports/robustness/unreachable/metadata.json").read_text())
    assert "failure" not in found
    assert not (clone.folder / "reports/robustness/unreachable/.dvcignore").exists()
    assert "attacks.unreachable" not in clone.run("windtunnel", "gate", code=20)


def test_then_nothing_runs_again(clone):
    assert [stage for stage in clone.repro() if stage != "track"] == []
