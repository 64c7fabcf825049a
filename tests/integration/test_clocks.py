"""What DVC knows of a run depends on no clock: equal verdicts are equal bytes, on any machine."""

import json
from pathlib import Path

import pytest
import torch

from tests.hostile.harness import params, stage, windtunnel, write_params
from tests.hostile.random_kills import digests
from windtunnel.operations.tracking import track as outbox
from windtunnel.operations.tracking.state import read_state
from windtunnel.records.artifacts import load_tensors, read_artifacts
from windtunnel.records.layout import Layout
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html

VERIFICATION = {
    "crown": {"library": "auto-LiRPA", "algorithm": "crown"},
    "cascade": {
        "library": "windtunnel",
        "algorithm": "cascade",
        "samples": {"n": 8},
        "timeout": 1000,
        "time_budget": 10_000,
    },
    "smoothed": {
        "library": "windtunnel",
        "algorithm": "smoothing",
        "budget": {"norm": "L2", "epsilon": 0.2},
        "params": {"sigma": 0.25, "n0": 10, "n": 100},
        "samples": {"n": 5},
    },
}
SWEEPS = {"curve": {"epsilons": [0, 0.05, 0.1]}}
CORRUPTIONS = {"blur": {"algorithm": "gaussian_blur", "severities": [1], "upsample": 32}}
STAGES = (
    ("prepare",),
    ("train",),
    ("clean",),
    ("attack", "fgsm"),
    ("sweep", "curve"),
    ("corrupt", "blur"),
    *(("verify", name) for name in VERIFICATION),
    *((stage,) for stage in ("sanity", "summary", "gate", "report")),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """The same run twice, with clocks that run at a fiftieth of their speed the second time: no time limit comes nearer."""
    folders = []
    for clock in (1.0, 0.02):
        folders.append(tmp_path_factory.mktemp("run"))
        content = params(verification=VERIFICATION, sweeps=SWEEPS, corruptions=CORRUPTIONS)
        write_params(folders[-1], content)
        for name in STAGES:
            ended = stage(*name, cwd=folders[-1], seconds=120, clock=clock)
            assert ended.code == 0, ended.err
    return folders


def run_times(folder: Path, name: str) -> torch.Tensor:
    return read_artifacts(folder / "reports" / "robustness" / name).tensor("runtime_per_sample")


@pytest.mark.slow
def test_two_runs_with_other_clocks_are_equal_bytes_for_dvc(runs):
    one, two = (digests(folder) for folder in runs)
    assert {"robustness/crown/metadata.json", "sanity/robustness_data.pt", "report.pdf", "report/metadata.json"} <= set(
        one
    )
    assert {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", VERIFICATION)
def test_the_times_that_were_measured_are_read_beside_the_result(runs, name):
    long, short = (run_times(folder, name) for folder in runs)
    assert long.dtype == torch.float32
    assert (
        long.shape == short.shape == read_artifacts(runs[0] / "reports" / "robustness" / name).tensor("verdicts").shape
    )
    assert long.sum() > 2 * short.sum() > 0


@pytest.mark.slow
def test_times_of_other_tensors_are_not_believed_and_older_results_keep_theirs(runs, tmp_path):
    made = runs[0] / "reports" / "robustness" / "crown"
    for name in ("metadata.json", "robustness_data.pt"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    assert read_artifacts(tmp_path).tensor("runtime_per_sample").isnan().all()  # as after dvc pull
    facts = json.loads((made / "runtime.json").read_text())
    (tmp_path / "runtime.json").write_text(json.dumps({**facts, "data_digest": "of others"}))
    assert read_artifacts(tmp_path).run_time_metrics == {}
    older = load_tensors(made / "robustness_data.pt")
    older["runtime_per_sample"] = torch.linspace(0, 1, len(older["verdicts"]))
    torch.save(older, tmp_path / "robustness_data.pt")
    assert read_artifacts(tmp_path).run_time_metrics == pytest.approx(
        {"mean_runtime": 0.5, "median_runtime": 0.5, "p95_runtime": 0.95}
    )


@pytest.mark.slow
def test_the_times_are_shown_beside_the_results_and_by_no_stage(runs, tmp_path):
    for dated in (True, False):
        render_html(build_report(runs[0] / "reports", dated=dated), tmp_path / "report.html")
        assert ("seconds a sample" in (tmp_path / "report.html").read_text()) == dated
    shown = windtunnel("show", "crown", "--json", cwd=runs[0])
    assert json.loads(shown.out)["metrics"]["mean_runtime"] > 0


@pytest.mark.slow
def test_a_state_is_tracked_with_its_times_from_wherever_it_lies(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "outbox", lambda: tmp_path / "outbox")
    state = read_state(Layout(runs[0]))
    assert {c.name for c in state.children if "mean_runtime" in c.metrics} == {*VERIFICATION}
    outbox.keep(state, {"git.commit": "abc"})
    (folder,) = outbox.waiting()
    assert not list(folder.rglob("*.pt"))
    with outbox.kept(folder) as (later, origin):
        assert (later.digest, dict(origin)) == (state.digest, {"git.commit": "abc"})
        assert [(c.digest, c.metrics) for c in later.children] == [(c.digest, c.metrics) for c in state.children]
    assert outbox.waiting() == []
