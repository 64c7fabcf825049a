"""DVC's files after a kill."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.harness import windtunnel
from windtunnel.operations.dvc_files import LOCK, RUNNING, RWLOCK, damaged_files, repair

GOOD = "schema: '2.0'\nstages:\n  a:\n    cmd: echo\n"


@pytest.fixture
def here(tmp_path) -> Path:
    """The files of a DVC project that nothing has damaged, with dvc.lock committed."""
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / RWLOCK).write_text("{}")
    (tmp_path / RUNNING).write_text(" 12\n")
    (tmp_path / LOCK).write_text(GOOD)
    for words in (
        ["init", "-q"],
        ["add", "dvc.lock"],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_whole_files_are_left_alone(here):
    assert damaged_files(here) == []
    assert repair(here) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": '])
def test_a_damaged_list_of_readers_is_taken_away(here, content):
    (here / RWLOCK).write_text(content)
    (found,) = repair(here)
    assert "rm .dvc/tmp/rwlock" in str(found)
    assert not (here / RWLOCK).exists()


@pytest.mark.parametrize("content", ["", "schema: '2.0'\nstages:\n  a: {cmd", "[]", "\0\0"])
def test_a_damaged_lock_file_comes_back_as_it_was_committed(here, content):
    (here / LOCK).write_text(content)
    (found,) = repair(here)
    assert found.command == "git checkout -- dvc.lock"
    assert (here / LOCK).read_text() == GOOD
    assert (here / "dvc.lock.damaged").read_text() == content


def test_one_that_was_never_committed_goes_away(tmp_path):
    (tmp_path / LOCK).write_text("")
    assert [damage.command for damage in repair(tmp_path)] == ["rm dvc.lock"]
    assert not (tmp_path / LOCK).exists()


def test_nothing_is_touched_while_dvc_runs(here):
    (here / RWLOCK).write_text("")
    with (here / RUNNING).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert repair(here) == []
    assert [damage.path for damage in repair(here)] == [RWLOCK]


def test_the_command_says_what_it_did(here):
    (here / RWLOCK).write_text("")
    assert "repaired as by rm .dvc/tmp/rwlock" in windtunnel("repair", cwd=here).out
    assert windtunnel("repair", cwd=here).out == "repair: nothing is damaged\n"


@pytest.mark.parametrize(
    ("path", "command"),
    [(RWLOCK, "rm .dvc/tmp/rwlock"), (LOCK, "git checkout -- dvc.lock")],
    ids=["rwlock", "dvc.lock"],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["", "json"])
def test_status_names_what_is_damaged_and_the_command_that_repairs_it(here, path, command, options):
    (here / path).write_text("")
    ended = windtunnel("status", *options, cwd=here)
    assert ended.code == 2
    assert f"{path}: is empty or cut, left by a kill; repair it by: windtunnel repair (or: {command})" in ended.line
    assert ended.out == ""


@pytest.mark.integration
@pytest.mark.parametrize("path", [RWLOCK, LOCK])
def test_dvc_itself_goes_on_after_the_repair(tmp_path, path):
    """And it does not before: that is what the repair is for."""

    def dvc(*words: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "dvc", *words], cwd=tmp_path, capture_output=True, check=False
        ).returncode

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert dvc("init", "-q") == 0
    (tmp_path / "dvc.yaml").write_text("stages:\n  a:\n    cmd: echo 1 > a\n    outs: [a]\n")
    assert dvc("repro") == 0
    (tmp_path / path).write_text("")
    broken = dvc("repro", "-f") if path == RWLOCK else dvc("status")
    assert broken != 0
    assert [damage.path for damage in repair(tmp_path)] == [path]
    assert dvc("repro") == 0


@pytest.mark.parametrize("path", [RWLOCK, LOCK])
@pytest.mark.parametrize(
    "words", ["check", "check --json", "status", "sweep --budget epsilon=0.1", "retrain", "evidence"]
)
def test_every_command_that_needs_dvc_names_the_repair_before_anything_else(here, path, words):
    (here / "params.yaml").write_text("seed: 0\n")  # whatever else is wrong, DVC comes first
    (here / path).write_text("")
    ended = windtunnel(*words.split(), cwd=here)
    assert ended.code == 2
    assert f"{path.name}: is empty or cut, left by a kill; repair it by: windtunnel repair" in ended.out + ended.err
    assert "Traceback" not in ended.err


def test_stages_that_no_longer_exist_leave_dvc_lock_and_the_others_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(words, check=True)
    Path("params.yaml").write_text("attacks: {pgd: 1}\n")
    Path("dvc.yaml").write_text(
        "stages:\n  attack:\n    foreach: ${attacks}\n    do: {cmd: 'true', outs: ['${key}.txt']}\n"
    )
    stages = "".join(f"  attack@{name}:\n    cmd: 'true'\n" for name in ("cw", "pgd"))
    Path("dvc.lock").write_text(f"schema: '2.0'\nstages:\n{stages}")
    ended = windtunnel("repair", cwd=tmp_path, seconds=60)
    assert ended.out.strip() == "repair: dvc.lock: stages that dvc.yaml no longer has are dropped: attack@cw"
    assert Path("dvc.lock").read_text() == "schema: '2.0'\nstages:\n  attack@pgd:\n    cmd: 'true'\n"
    assert "nothing is damaged" in windtunnel("repair", cwd=tmp_path, seconds=60).out
