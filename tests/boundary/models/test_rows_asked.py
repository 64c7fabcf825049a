"""A Python `predict` is asked exactly the rows that artifacts and `check` say, counted by the function itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from windtunnel.assessments.catalogue import algorithms
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
attacks:
  few: {library: torchattacks, algorithm: Square, params: {n_queries: 20}}
  repeated: {library: foolbox, algorithm: LinfRepeatedAdditiveUniformNoiseAttack, params: {repeats: 7}}
  harder:
    {library: foolbox, algorithm: HopSkipJumpAttack, params: {max_gradient_eval_steps: 40}, budget: {norm: L2, epsilon: 1, steps: 2},
     on: {survivors_of: [few, repeated]}}
sweeps: {curve: {library: foolbox, algorithm: LinfAdditiveUniformNoiseAttack, epsilons: [0, 0.1, 0.3]}}
verification:
  smoothing:
    {library: windtunnel, algorithm: smoothing, params: {sigma: 0.25, n0: 10, n: 100}, budget: {norm: L2, epsilon: 0.1}, samples: {n: 5}}
generators: {}
latent: {}
report: {}
tracking: {}
gate: {}
queries:
  evoba: {algorithm: EvoBA, params: {generation_size: 5, generations: 6}}
  greedy: {algorithm: EpsGreedy, params: {steps: 9, patch_size: [2, 4], epsilon: 0.2}, max_queries: 7}
  simba: {algorithm: SimBA, params: {steps: 9}, total_queries: 60}
  square: {library: torchattacks, algorithm: Square, params: {n_queries: 20}}
  spsa: {library: torchattacks, algorithm: SPSA, params: {nb_iter: 2, nb_sample: 16}}
  pixel: {library: torchattacks, algorithm: OnePixel, params: {steps: 2, popsize: 3}, budget: {norm: L0, epsilon: 3}}
  pixle:
    {library: torchattacks, algorithm: Pixle, budget: {norm: L0, epsilon: 12}, total_queries: 200,
     params: {restarts: 2, max_iterations: 5, x_dimensions: [2, 4], y_dimensions: [2, 4]}}
  boundary: {library: foolbox, algorithm: BoundaryAttack, params: {steps: 20}, budget: {norm: L2, epsilon: 1.5}}
  hopskip:
    {library: foolbox, algorithm: HopSkipJumpAttack, params: {steps: 2, max_gradient_eval_steps: 40}, budget: {norm: L2, epsilon: 1.5}}
  genetic: {library: foolbox, algorithm: GenAttack, params: {steps: 5}, target_classes: next}
corruptions: {noise: {algorithm: gaussian_noise, severities: [1, 3], upsample: 32}}
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


def stages_of(family: str) -> list[tuple[str, str]]:
    """(stage, name) of the entries of a family in PARAMS."""
    stage = {"queries": "query", "attacks": "attack", "sweeps": "sweep", "verification": "verify"}[family]
    return [(stage, name) for name in YAML(typ="safe").load(PARAMS)[family]]


def test_every_query_algorithm_is_among_the_entries() -> None:
    entries = YAML(typ="safe").load(PARAMS)["queries"].values()
    assert {entry["algorithm"] for entry in entries} == {row.name for row in algorithms("queries")}


def test_every_stage_asks_what_its_artifacts_say(project: Path) -> None:
    for stage in ("resolve", "prepare", "train"):
        assert calls_of(lambda stage=stage: run_stage(stage)) == []
    assert sum(calls_of(lambda: run_stage("clean"))) == said("robustness", "clean") == 30
    for stage, name in stages_of("queries"):
        rows = sum(calls_of(lambda stage=stage, name=name: run_stage(stage, name)))
        metrics = json.loads(Path("reports", "robustness", name, "metadata.json").read_text())["metrics"]
        assert rows == said("robustness", name) == metrics["queries_total"] - metrics["n_samples"], name
        assert rows > 0
    for stage, name in (*stages_of("attacks"), *stages_of("sweeps"), *stages_of("verification"), ("corrupt", "noise")):
        rows = sum(calls_of(lambda stage=stage, name=name: run_stage(stage, name)))
        assert rows == said("robustness", name) > 0, name
    assert sum(calls_of(lambda: run_stage("sanity"))) == said("sanity") <= 150
    assert calls_of(lambda: run_stage("summary")) == []


@pytest.mark.parametrize("limit", [0, 20, 60, 200, 100_000])
def test_check_says_beforehand_how_many_rows_it_asks(
    project: Path, limit: int, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = calls_of(lambda: cli.main(["check", "--queries", str(limit)], standalone_mode=False))
    text = " ".join(capfd.readouterr().out.split())
    assert "every assessment fits" in text
    assert "classes have no sample" not in text
    assert not re.search(r"\b1 samples|\b(0|\d\d+) sample\b", text)
    assert sum(calls) == int(re.search(r"at most (\d+) queries", text)[1]) <= limit
    if calls:
        assert f"got {sum(calls)} queries in {len(calls)} calls" in text


def test_check_asks_no_row_where_an_entry_cannot_run(project: Path) -> None:
    text = PARAMS.replace("  few: {library", "  pgd: {library: torchattacks, algorithm: PGD}\n  few: {library")
    (project / "params.yaml").write_text(text)
    with pytest.raises(SystemExit):
        cli.main(["check"], standalone_mode=False)
    assert not Path("calls.txt").exists()


def test_how_a_function_is_called_decides_no_result(project: Path) -> None:
    run_stage("resolve")
    resolved = {path: path.read_bytes() for path in Path("reports/resolved").rglob("*.json") if path.stem != "train"}
    (project / "params.yaml").write_text(
        PARAMS.replace('predict"}', 'predict", interface: {batch_size: 4, retries: 9}}')
    )
    run_stage("resolve")
    assert {path: path.read_bytes() for path in resolved} == resolved
    run_stage("prepare")
    run_stage("train")
    assert max(calls_of(lambda: run_stage("clean"))) == 4
