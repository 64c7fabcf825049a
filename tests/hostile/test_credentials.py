"""A password in the address of the tracking server is shown, logged and kept nowhere but where the user wrote it."""

import sqlite3
from pathlib import Path

import pytest

from tests.hostile.harness import Ended, params, stage, windtunnel, write_params
from tests.mlflow_server import Server, free_port
from windtunnel.core.errors import UserError
from windtunnel.operations.experiments import grid
from windtunnel.runtime.credentials import reason_of

USER, PASSWORD = "alice", "hunter2-of-alice"
STAGES = ("prepare", "train", "clean", "attack fgsm", "sanity", "summary", "gate", "report")
COMMANDS = (
    "track", "track --strict", "check", "check --json", "params", "params --json", "params --schema", "show",
    "show --json", "gate", "sanity",
    "champion", "promote --allow-dirty", "rollback", "retrain --allow-dirty", "report", "ui --no-open",
    "evidence --output pack.zip",
)  # fmt: skip


def address(port: int) -> str:
    return f"http://{USER}:{PASSWORD}@127.0.0.1:{port}"


def has_password(content: bytes) -> bool:
    return PASSWORD.encode() in content


def files_with_it(folder: Path) -> list[str]:
    """Those that hold the password, params.yaml apart."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "params.yaml")
    return [path.relative_to(folder).as_posix() for path in found if has_password(path.read_bytes())]


def whole_run(project: Path, **tracking: object) -> None:
    write_params(project, params(tracking=tracking))
    ended = [stage(*words.split(), cwd=project, seconds=60) for words in STAGES]
    assert [one.code for one in ended] == [0] * len(STAGES), [one.err[-500:] for one in ended if one.code]


def hides_it(ended: Ended) -> bool:
    return PASSWORD not in ended.out + ended.err


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["params.yaml", "the environment"])
def test_no_command_shows_it_where_the_server_is_dead(project, where, monkeypatch, impatient):
    uri = address(free_port())
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    if where == "the environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    whole_run(project, **({"uri": uri} if where == "params.yaml" else {}))
    ended = {words: windtunnel(*words.split(), cwd=project, seconds=60) for words in COMMANDS}
    ended["stage track"] = stage("track", cwd=project, seconds=60)
    assert [words for words, one in ended.items() if not hides_it(one)] == []
    assert "127.0.0.1" in ended["track"].err  # the address itself is said
    assert ended["track --strict"].code != 0
    assert "tracking: http://127.0.0.1" in ended["track --strict"].line
    assert [words for words, one in ended.items() if "Traceback" in one.err] == []
    assert files_with_it(project) == []


@pytest.mark.integration
def test_nothing_that_mlflow_keeps_holds_it(project, tmp_path, store, monkeypatch, impatient):
    database, artifacts = tmp_path / "server.db", tmp_path / "artifacts"
    artifacts.mkdir()
    database.write_bytes(store.read_bytes())
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    server = Server(f"sqlite:///{database}", artifacts)
    server.start()
    try:
        whole_run(project, uri=address(server.port))
        ended = [
            stage("track", cwd=project, seconds=120),
            windtunnel("promote", "--allow-dirty", cwd=project, seconds=120),
            windtunnel("champion", cwd=project, seconds=60),
        ]
    finally:
        server.kill()
    assert [one.code for one in ended] == [0, 0, 0], [one.err[-1000:] for one in ended]
    with sqlite3.connect(database) as connection:
        (runs,), (versions,) = (
            connection.execute(f"select count(*) from {t}").fetchone() for t in ("runs", "model_versions")
        )
        kept = "\n".join(connection.iterdump()).encode()
    assert (runs >= 3, versions) == (True, 1)
    assert not has_password(kept)
    assert list(artifacts.rglob("params.yaml"))  # it is there, without the password
    log = {path.name for path in artifacts.rglob("*") if path.is_file() and has_password(path.read_bytes())}
    assert log == set()
    assert [one.out + one.err for one in ended if not hides_it(one)] == []
    assert files_with_it(project) == []


def test_a_reason_is_cut_when_its_credentials_are_out():
    """Cut before, the address might end in the middle of the password, and be no address any more."""
    error = OSError(f"{'x' * 150} http://{USER}:{PASSWORD * 3}@host/path is down")
    assert PASSWORD[:6] not in reason_of(error)
    assert "http://host/path is down" in reason_of(error)


def test_a_sweep_over_tracking_servers_is_refused_before_their_passwords_become_names():
    with pytest.raises(UserError, match=r"sweep: tracking\.uri is where results go") as caught:
        grid("s", {"tracking.uri": ["postgresql://me:s3cret@db/a", "sqlite:///b.db"]})
    assert "s3cret" not in str(caught.value)
