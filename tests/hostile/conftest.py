import shutil
from pathlib import Path

import pytest

from windtunnel.boundary.mlflow_server import whole_store


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Path:
    """MLflow's store with nothing in it, which takes seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    whole_store(path)
    return path


@pytest.fixture
def project(tmp_path, store, monkeypatch) -> Path:
    """An empty folder as a project: no git, no DVC, nothing of this repository in it but a tracking store."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copyfile(store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return folder
