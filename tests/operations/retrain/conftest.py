"""A small project with data that change, a store of its own, and the real stages run in this process."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.params import load_params
from windtunnel.operations.retrain import retrain
from windtunnel.operations.stages.run import run_stage
from windtunnel.operations.tracking import store
from windtunnel.operations.tracking.registry import open_registry
from windtunnel.params.data import Data

PARAMS = """
device: cpu
data: {source: npz, path: data.npz, train_path: train.npz, samples: {n: 100, selection: stratified}}
model: {train: {architecture: mlp, epochs: 6}}
budget: {norm: Linf, epsilon: 0.03}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM, visualisers: []}
sanity: {before_promotion: standard}
gate:
  minimum: {clean/accuracy: 0.3}
  maximum_regression: {clean/accuracy: 0.1, worst_case/accuracy: 0.15}
"""


class Project:
    """The project in the current directory. `ran` names the stages in the order in which they were asked for."""

    def __init__(self, digits: tuple) -> None:
        self.train, self.ran = digits[1], []
        Path("params.yaml").write_text(PARAMS)
        Path(".gitignore").write_text("*\n!params.yaml\n")
        for command in (
            ["init", "-q"],
            ["add", "-f", "params.yaml"],
            ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start"],
        ):
            subprocess.run(["git", *command], check=True)
        np.savez("data.npz", x=digits[0].inputs.numpy(), y=digits[0].targets.numpy())
        self.data("first")

    def data(self, kind: str) -> None:
        """New training data: `first`; `equal`, the same in another order; `worse`, with half of the labels wrong."""
        x, y = self.train.inputs.numpy(), self.train.targets.numpy()
        rng = np.random.default_rng(0)
        if kind == "equal":
            order = rng.permutation(len(x))
            x, y = x[order], y[order]
        if kind == "worse":
            y = np.where(rng.random(len(y)) < 0.7, (y + 1) % 10, y)
        np.savez("train.npz", x=x, y=y)

    def pipeline(self, names, *, force: bool = False) -> None:
        if names == ["resolve"]:
            run_stage("resolve")
            return
        self.ran += names or ["all"]
        if names == ["prepare"]:
            run_stage("prepare")
        elif names == ["summary"]:
            for stage in ("train", "clean"):
                run_stage(stage)
            run_stage("attack", "fgsm")
            run_stage("summary")
        else:
            run_stage("gate")

    def run_stage(self, folder: Path, stage) -> None:
        self.ran.append(" ".join(["champion", *stage]))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            run_stage(*stage)

    @property
    def registry(self):
        return open_registry(load_params().tracking)

    def retrain(self, **options):
        self.ran.clear()
        return retrain(self.registry, self.pipeline, self.run_stage, **options)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """An initialised, empty store: MLflow's migrations take seconds, so they run once."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    store.connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def digits_1000():
    assessed, train = load_dataset(Data(), 0)
    return assessed, train


@pytest.fixture
def project(tmp_path, monkeypatch, empty_store, digits_1000):
    for name in ("DVC_ROOT", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return Project(digits_1000)
