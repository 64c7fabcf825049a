"""MLflow's SQLite store after a kill, and addresses with passwords."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from windtunnel.boundary import mlflow_server
from windtunnel.boundary.mlflow_server import whole_store
from windtunnel.core.errors import InfrastructureError
from windtunnel.runtime.credentials import without_credentials

MAKE = "import sys; from pathlib import Path; from windtunnel.boundary.mlflow_server import _migrate; _migrate(Path(sys.argv[1]))"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    whole_store(path)
    return path


@pytest.fixture
def copied(made, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(mlflow_server, "_SEEN", set())
    path = tmp_path / "mlflow.db"
    path.write_bytes(made.read_bytes())
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def experiments(path: Path) -> list[str]:
    """What MLflow itself reads."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")
    return [experiment.name for experiment in client.search_experiments()]


RUN = (
    "insert into runs (run_uuid, name, experiment_id, lifecycle_stage, status, start_time) "
    "values ('a', 'mine', 0, 'active', 'FINISHED', 1)"
)


@pytest.mark.slow
def test_a_sound_store_is_left_as_it_is(copied):
    before = copied.read_bytes()
    whole_store(copied)
    assert copied.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [["create table _alembic_tmp_experiments (x int)"], ["update alembic_version set version_num = '75868b020152'"]],
)
def test_a_store_without_runs_that_a_kill_left_half_made_is_made_again(copied, damage, capsys):
    change(copied, *damage)
    whole_store(copied)
    assert experiments(copied) == ["Default"]
    assert Path(f"{copied}.damaged").is_file()
    assert "damaged by a kill" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"x" * 500])
def test_an_empty_store_is_made_and_one_that_is_no_database_is_refused(copied, content):
    copied.write_bytes(content)
    if content:
        with pytest.raises(Exception, match=r"cannot be recovered|not a database"):
            whole_store(copied)
    else:
        whole_store(copied)
        assert experiments(copied) == ["Default"]


@pytest.mark.slow
def test_runs_survive_a_recovery(copied):
    change(copied, RUN, "create table _alembic_tmp_runs (x int)")
    whole_store(copied)
    assert experiments(copied) == ["Default"]
    with closing(sqlite3.connect(copied)) as database:
        assert database.execute("select name from runs").fetchall() == [("mine",)]


@pytest.mark.slow
def test_a_table_that_a_migration_had_dropped_comes_back_from_its_copy(copied):
    change(copied, RUN, "alter table runs rename to _alembic_tmp_runs")
    whole_store(copied)
    with closing(sqlite3.connect(copied)) as database:
        assert database.execute("select name from runs").fetchall() == [("mine",)]


@pytest.mark.slow
def test_a_kill_while_the_store_is_made_leaves_no_store_and_the_next_makes_one(tmp_path):
    """Three of four such kills left a store that no `track` could use."""
    path = tmp_path / "mlflow.db"
    words = MAKE.replace("_migrate", "whole_store")
    for delay in (0.4, 1.5):
        process = subprocess.Popen([sys.executable, "-c", words, str(path)], stderr=subprocess.DEVNULL)
        while not list(tmp_path.glob("*.partial")):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not path.exists()
    whole_store(path)
    assert experiments(path) == ["Default"]
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


@pytest.mark.parametrize("path", ["/proc/nowhere/mlflow.db", "/proc/version", "/dev/null/mlflow.db", "/proc"])
def test_a_store_that_cannot_be_written_is_one_line_at_once(path):
    """MLflow tries to open it again for more than three minutes."""
    started = time.monotonic()
    with pytest.raises(InfrastructureError, match=f"tracking: {path}: cannot be written"):
        whole_store(Path(path))
    assert time.monotonic() - started < 60


def test_a_store_that_another_process_writes_is_no_unwritable_one(copied):
    with closing(sqlite3.connect(copied)) as database:
        database.execute("begin immediate")
        whole_store(copied)


# --- credentials ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:hunter2@host:5000/x", "http://host:5000/x"),
        ("postgresql+psycopg2://me:p@ss@host/db", "postgresql+psycopg2://host/db"),
        ("no answer from https://token@host, twice", "no answer from https://host, twice"),
        ("postgresql://host/db?password=hunter2&sslmode=require", "postgresql://host/db?password=***&sslmode=require"),
        ("s3://bucket/key?X-Amz-Signature=abc", "s3://bucket/key?X-Amz-Signature=***"),
        ("sqlite:////home/me/mlflow.db", "sqlite:////home/me/mlflow.db"),
        ("models:/name@champion", "models:/name@champion"),
        ("mail me@host about 8/255", "mail me@host about 8/255"),
    ],
)
def test_an_address_is_shown_without_its_credentials(text, shown):
    assert without_credentials(text) == shown


def test_a_password_of_the_environment_is_shown_nowhere(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    assert without_credentials("401 for hunter2") == "401 for ***"
