import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from windtunnel.cli.main import COMMANDS, MODULES, LazyGroup, cli


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_list_is_found(name):
    command = LazyGroup("windtunnel").get_command(click.Context(click.Command("windtunnel")), name)
    assert isinstance(command, click.Command)
    assert command.help


def test_the_help_of_a_command_waits_for_nothing_slow():
    modules = sorted({MODULES.get(name, name) for name in COMMANDS})
    slow = "torch mlflow dvc scipy pandas matplotlib onnx".split()
    code = (
        f"import sys, {', '.join(f'windtunnel.cli.{name}' for name in modules)}; print(*set(sys.modules) & set({slow}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_question_that_nobody_answers_ends_in_a_line_that_names_the_option(tmp_path):
    """As where a scheduler runs `windtunnel init`."""
    (tmp_path / ".git").mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "windtunnel", "init"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "windtunnel: nobody answered the question; --yes answers it"


def test_called_by_its_path_the_command_runs_stages_by_its_own_python():
    """Run it with a PATH without its virtual environment, as cron has it, and with one where that comes last."""
    code = "import shutil\nfrom windtunnel.cli.main import main\ntry: main(['--version'])\nfinally: print(shutil.which('python'))"
    for path in ("/usr/bin:/bin", f"/usr/bin:{Path(sys.executable).parent}"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
        )
        assert Path(done.stdout.splitlines()[-1]).parent == Path(sys.executable).parent


@pytest.mark.parametrize("command", [("compare",), ("view", "--no-open")])
def test_view_and_compare_refuse_an_unknown_run_alike(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(
        "data: {source: digits}\nmodel: {source: train}\nbudget: {norm: Linf, epsilon: 0.1}\n"
    )
    with pytest.raises(SystemExit):
        cli.main([*command, "nosuch"], standalone_mode=False)
    assert capsys.readouterr().err.startswith("windtunnel: 'nosuch' is no directory of results")
