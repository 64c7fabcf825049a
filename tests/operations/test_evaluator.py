"""`mlflow.models.evaluate(evaluators="windtunnel")` in a process of its own gives what the pipeline gives."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import mlflow
import numpy as np
import pytest

from windtunnel.evaluation.gate.decide import flatten
from windtunnel.operations.stages.run import run_stage
from windtunnel.records.artifacts import load_tensors
from windtunnel.records.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]

CONFIG = """
seed: 3
budget: {norm: Linf, epsilon: 0.06}
attacks:
  pgd: {library: torchattacks, algorithm: PGD, budget: {steps: 10, step_size: 0.02}}
  fgsm: {library: torchattacks, algorithm: FGSM}
  rest: {library: torchattacks, algorithm: PGD, on: {survivors_of: [fgsm]}}
corruptions: {fog: {algorithm: fog, upsample: 32}}
"""
SCRIPT = """
import json, mlflow, numpy as np, os
from ruamel.yaml import YAML
from pathlib import Path
content = np.load("data.npz")
os.chdir = None  # nobody's current directory is another's to change
with mlflow.start_run() as run:
    found = mlflow.models.evaluate(
        URI, content["x"].reshape(len(content["x"]), -1), targets=content["y"], model_type="classifier",
        evaluators="windtunnel", evaluator_config=YAML(typ="safe", pure=True).load(Path("config.yaml").read_text()),
    )
found.save("result")
Path("found.json").write_text(json.dumps([run.info.run_id, found.metrics, sorted(found.artifacts)]))
"""


@pytest.fixture
def registered(tmp_path):
    """A folder for sys.path with the entry points of pyproject.toml: an editable install may be older than they are."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "site" / "windtunnel_here-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: windtunnel-here\nVersion: 0\n")
    lines = [
        line for group, rows in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in rows.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info.parent


def test_it_gives_the_numbers_and_files_of_the_pipeline(tmp_path, monkeypatch, mlp_subject, registered):
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mlflow.set_tracking_uri(address)
    few, labels = mlp_subject.dataset.inputs[:60].numpy(), mlp_subject.dataset.targets[:60].numpy()
    np.savez("data.npz", x=few, y=labels)
    with mlflow.start_run(experiment_id="0"):  # of this store, whatever other tests have set
        logged = mlflow.pytorch.log_model(
            mlp_subject.classifier.module, name="model", input_example=few[:2], serialization_format="pt2",
            pip_requirements=["torch"],
        )  # fmt: skip
    Path("config.yaml").write_text(CONFIG)
    model = f"data: {{source: npz, path: data.npz}}\nmodel: {{source: mlflow, uri: '{logged.model_uri}'}}\n"
    Path("params.yaml").write_text(model + CONFIG)
    for stage in ("resolve", "prepare", "train", "clean"):
        run_stage(stage)
    for name in ("pgd", "fgsm", "rest"):
        run_stage("attack", name)
    run_stage("corrupt", "fog")
    run_stage("sanity")
    run_stage("summary")

    path = os.pathsep.join([str(registered), str(ROOT / "src"), str(ROOT)])
    script = SCRIPT.replace("URI", repr(logged.model_uri))
    environment = {**os.environ, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": address}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run, metrics, artifacts = json.loads(Path("found.json").read_text())
    expected = flatten(read_json(Path("reports/metrics.json")))
    assert metrics == expected
    assert mlflow.MlflowClient().get_run(run).data.metrics["worst_case/accuracy"] == expected["worst_case/accuracy"]
    # Its files are the pipeline's: every tensor, and a figure wherever the pipeline has one.
    ours = {f"windtunnel/{p.relative_to('reports')}" for p in Path("reports").rglob("*.png")}
    assert {name for name in artifacts if name.endswith(".png")} == ours
    kept = mlflow.artifacts.download_artifacts(f"runs:/{run}/windtunnel/robustness")
    for name in ("pgd", "rest", "fog"):
        mine = load_tensors(Path(f"reports/robustness/{name}/robustness_data.pt"))
        theirs = load_tensors(Path(kept) / name / "robustness_data.pt")
        assert all(
            (mine[key] == theirs[key]).all() for key in ("perturbed_inputs", "verdicts", "perturbed_predictions")
        )


def test_the_block_of_team_runs_as_it_stands(tmp_path, monkeypatch, mlp_subject, registered):
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.set_tracking_uri(address)
    few, labels = mlp_subject.dataset.inputs[:20].numpy(), mlp_subject.dataset.targets[:20].numpy()
    np.savez("data.npz", x=few.reshape(20, -1), y=labels)
    with mlflow.start_run(experiment_id="0"):  # of this store, whatever other tests have set
        mlflow.pytorch.log_model(
            mlp_subject.classifier.module, name="model", input_example=few[:2], serialization_format="pt2",
            pip_requirements=["torch"], registered_model_name="windtunnel",
        )  # fmt: skip
    mlflow.MlflowClient().set_registered_model_alias("windtunnel", "champion", 1)
    page = (ROOT / "docs" / "how-to" / "mlflow-evaluate.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    before, after = "import numpy\nx, y = numpy.load('data.npz').values()\n", "\nprint(sorted(evaluated.metrics))"
    path = os.pathsep.join([str(registered), str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": address}
    command = [sys.executable, "-c", before + block + after]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'worst_case/accuracy'" in done.stdout


@pytest.mark.parametrize(("config", "words"), [
    ({"model": {"source": "train"}}, "model: mlflow.models.evaluate brings the model and the data"),
    ({"shape": [3, 8, 8]}, "does not hold the 64 numbers of a row"),
    ({"shape": "flat"}, "^evaluator_config: shape: 'flat' is not a list"),
    ({"data": 3}, "^evaluator_config: data: 3 is not a map of keys"),
    ({"attacks": {"pgd": {"library": "torchattacks", "algorithm": "PDG"}}, "budget": {"epsilon": 0.1}}, "Did you mean 'PGD'"),
])  # fmt: skip
def test_a_config_that_cannot_be_is_one_line(tmp_path, monkeypatch, config, words):
    from types import SimpleNamespace

    from windtunnel.core.errors import UserError
    from windtunnel.operations.evaluator import WindtunnelEvaluator

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    data = SimpleNamespace(labels_data=np.arange(4) % 2, features_data=np.zeros((4, 64)))
    model = SimpleNamespace(model_id="m-1", metadata=SimpleNamespace(signature=None))
    with pytest.raises(UserError, match=words):
        WindtunnelEvaluator().evaluate(
            model_type="classifier", dataset=data, run_id="r", evaluator_config=config, model=model
        )
    assert Path.cwd() == tmp_path
