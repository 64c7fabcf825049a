"""A project that was moved or copied keeps its runs, and writes into its own place."""

import shutil
from pathlib import Path

import pytest

from tests.operations.tracking.test_track import fresh_database, project, write_state  # noqa: F401  fixtures
from windtunnel.boundary.mlflow_server import connect, tracking_uri
from windtunnel.core.errors import UserError
from windtunnel.operations.tracking.track import track

pytestmark = pytest.mark.slow


def enter(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it, for processes that it starts


def test_a_copied_project_writes_into_its_own_place_and_finds_what_it_had(project, tmp_path_factory, monkeypatch):  # noqa: F811
    write_state("0.1", 0.5)
    run = track().run
    old, new = Path.cwd(), tmp_path_factory.mktemp("other") / "the copy"
    shutil.copytree(old, new)
    before = sorted(p for p in old.rglob("*") if p.is_file())
    enter(new, monkeypatch)
    write_state("0.2", 0.4)
    second = track().run
    client = connect(tracking_uri(None))
    assert sorted(p for p in old.rglob("*") if p.is_file()) == before
    for name in (run, second):
        assert client.get_run(name).info.artifact_uri.startswith((new / "mlartifacts").as_uri())
        assert Path(client.download_artifacts(name, "metrics.json")).is_file()
    # The project that was copied is as it was.
    enter(old, monkeypatch)
    assert connect(tracking_uri(None)).get_run(run).info.artifact_uri.startswith((old / "mlartifacts").as_uri())


def test_a_database_copied_without_its_files_is_refused(project, tmp_path_factory, monkeypatch):  # noqa: F811
    write_state("0.1", 0.5)
    track()
    new = tmp_path_factory.mktemp("other") / "the copy"
    shutil.copytree(Path.cwd(), new, ignore=shutil.ignore_patterns("mlartifacts"))
    enter(new, monkeypatch)
    write_state("0.2", 0.4)
    with pytest.raises(UserError, match="was copied without its files"):
        track(strict=True)
