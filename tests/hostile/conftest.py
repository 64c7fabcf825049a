import pytest


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty folder as a project: no git, no DVC, nothing of this repository in it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return tmp_path
