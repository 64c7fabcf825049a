"""A Python `predict` is asked exactly the rows that artifacts and `check` say, counted by the function itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from windtunnel.cli.main import cli
from windtunnel.operations.stages.run import run_stage

pytestmark = pytest.mark.slow

MODEL = """
import numpy as np

def predict(batch):
    with open("calls.txt", "a") as file:  # `check` asks in a process of its own
        file.write(f"{len(batch)} ")
    centres = np.linspace(0.1, 0.9, 10)
    logits = -40 * (batch.mean((1, 2, 3))[:, None] * 2 - centres) ** 2
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)
"""
PARAMS = """
seed: 0
data: {source: digits, samples: {n: 30, selection: stratified}}
model: {source: function, function: "asked_model:predict"}
device: auto
budget: {norm: Linf, epsilon: 0.1}
budgets: {}
clean: {}
attacks: {}
sweeps: {}
verification: {}
generators: {}
latent: {}
report: {}
tracking: {}
gate: {}
queries:
  evoba: {algorithm: EvoBA, params: {generation_size: 5, generations: 6}}
  simba: {algorithm: SimBA, params: {steps: 9}, total_queries: 60}
  square: {library: torchattacks, algorithm: Square, params: {n_queries: 20}}
corruptions: {noise: {algorithm: gaussian_noise, severities: [1, 3], upsample: 32, workers: 1}}
sanity: {queries: 150}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "asked_model.py").write_text(MODEL)
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def calls_of(run: Callable[[], object]) -> list[int]:
    """How many rows each call of the model had while `run` ran."""
    Path("calls.txt").write_text("")
    run()
    return [int(rows) for rows in Path("calls.txt").read_text().split()]


def said(*folder: str) -> int:
    return int(json.loads(Path("reports", *folder, "runtime.json").read_text())["rows_asked"])


def test_every_stage_asks_what_its_artifacts_say(project: Path) -> None:
    for stage in ("resolve", "prepare", "train"):
        assert calls_of(lambda stage=stage: run_stage(stage)) == []
    assert sum(calls_of(lambda: run_stage("clean"))) == said("robustness", "clean") == 30
    for name in ("evoba", "simba", "square"):
        rows = sum(calls_of(lambda name=name: run_stage("query", name)))
        metrics = json.loads(Path("reports", "robustness", name, "metadata.json").read_text())["metrics"]
        assert rows == said("robustness", name) == metrics["queries_total"] - metrics["n_samples"]
        assert rows > 0
    assert sum(calls_of(lambda: run_stage("corrupt", "noise"))) == said("robustness", "noise")
    assert sum(calls_of(lambda: run_stage("sanity"))) == said("sanity") <= 150
    assert calls_of(lambda: run_stage("summary")) == []


@pytest.mark.parametrize("limit", [0, 60, 200, 100_000])
def test_check_says_beforehand_how_many_rows_it_asks(
    project: Path, limit: int, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = calls_of(lambda: cli.main(["check", "--queries", str(limit)], standalone_mode=False))
    text = " ".join(capfd.readouterr().out.split())
    assert "every assessment fits" in text
    assert sum(calls) == int(re.search(r"at most (\d+) rows", text)[1]) <= limit
    if calls:
        assert f"was asked about {sum(calls)} rows in {len(calls)} calls" in text
