"""Numbers are made by the code that is recorded: a project with a source of its own is run by no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.core.errors import UserError
from windtunnel.runtime.own_source import require_own_source

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path):
    """A second clone, as far as the check looks."""
    (tmp_path / "src" / "windtunnel").mkdir(parents=True)
    (tmp_path / "src" / "windtunnel" / "__init__.py").write_text("")
    return tmp_path


def test_the_source_of_another_clone_is_refused_by_both_paths(clone):
    with pytest.raises(UserError, match="is what runs; install this one") as caught:
        require_own_source(clone)
    assert str(clone / "src" / "windtunnel") in str(caught.value)
    require_own_source(ROOT)


def test_a_project_without_a_source_of_its_own_runs_what_is_installed(tmp_path):
    require_own_source(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["windtunnel", "show"], ["stages.clean"]])
def test_commands_and_stages_stop_with_one_line(clone, command):
    # The working folder comes first in sys.path of `python -m`, and its src/ is no part of it.
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    run = [sys.executable, "-m", *command]
    done = subprocess.run(run, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is this project's source, but" in done.stderr
    assert "Traceback" not in done.stderr
