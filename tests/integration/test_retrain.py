"""`windtunnel retrain` as a schedule runs it: real DVC, real processes, in a clone of this repository."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.clone import Clone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARAMS = """
device: cpu
data: {source: digits, samples: {n: 60, selection: stratified}}
model: {source: train, train: {architecture: mlp, epochs: 8}}
budget: {norm: Linf, epsilon: 0.03}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
seed: 0
tracking: {experiment: test}
gate: {minimum: {clean/accuracy: 0.5}, maximum_regression: {worst_case/accuracy: 0.1}}
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("clone"))
    made.write_params(PARAMS)
    made.commit("params")
    return made


def test_of_two_retrainings_at_once_one_runs_and_one_says_why_not(clone):
    retrain = ("windtunnel", "retrain", "--summary", "reports/retrain.md")
    both = [clone.start(*retrain, preloaded=True) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda process: "".join(process.communicate()), both))
    (promoted, first), (refused, second) = sorted(zip((p.returncode for p in both), said, strict=True))
    assert (promoted, refused) == (0, 30), first + second
    assert "windtunnel version 1 is the champion now" in first
    assert "retrain: not started, since another retraining is running (process " in second
    assert "no champion to compare with" in (clone.folder / "reports" / "retrain.md").read_text()


def test_the_next_one_has_nothing_to_do_and_leaves_dvc_with_nothing_to_do(clone):
    said = clone.run("windtunnel", "retrain")
    assert "nothing changed since windtunnel version 1 was assessed; it was promoted, and still is the champion" in said
    assert clone.repro() == ["gate", "report", "track"]  # the champion is there now, and is this very model
    assert "0 gained, 0 lost of 60" in clone.run("windtunnel", "gate", "--markdown")


def test_a_dirty_work_tree_is_refused_by_name(clone):
    path = clone.folder / "stages" / "gate.py"
    text = path.read_text()
    path.write_text(text + "# a change\n")
    for command in ("retrain", "promote"):
        assert f"{command}: the work tree has changes that are not committed (stages/gate.py)" in clone.run(
            "windtunnel", command, code=2
        )
    path.write_text(text)


def test_the_prefect_flow_runs_it_on_prefects_own_server(clone, monkeypatch):
    pytest.importorskip("prefect", reason="the extra `schedule` is not installed")
    from prefect.client.orchestration import get_client
    from prefect.testing.utilities import prefect_test_harness

    from pipeline.prefect_flow import retrain

    monkeypatch.setenv("PYTHONPATH", f"{clone.folder / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with prefect_test_harness(server_startup_timeout=120):
        done = retrain(str(clone.folder), return_state=True)
        failed = retrain(str(clone.folder / "pipeline"), return_state=True)
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs()
            artifacts = client.read_artifacts()
    assert (done.name, done.message) == ("Completed", "Up to date")
    assert failed.is_failed()
    assert "exit code 2: windtunnel: params.yaml: no such file" in failed.message
    assert len(runs) == 2
    assert "windtunnel version 1" in artifacts[0].data
