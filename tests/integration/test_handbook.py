"""The handbook builds without a broken link, and its code runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from windtunnel.params.load import validate_schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
REST = {"data": {"source": "digits"}, "model": {"source": "train"}, "budget": {"norm": "Linf", "epsilon": 0.1}}


def blocks(page: str, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall((DOCS / page).read_text()) if kind == language]


@pytest.mark.integration
def test_it_builds_without_a_broken_link(tmp_path):
    """Strict: a link or an anchor that leads nowhere, and a page that no menu shows, are errors."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    params = (tmp_path / "site" / "reference" / "params.html").read_text()
    assert "survivors_of" in params
    commands = (tmp_path / "site" / "reference" / "cli.html").read_text()
    assert "retrain" in commands
    assert "without a pipeline" in (tmp_path / "site" / "library.html").read_text()


@pytest.mark.integration
def test_the_tutorial_is_a_program_that_ends_in_a_finding(tmp_path):
    program = "\n".join(blocks("tutorial.md", "python"))
    (tmp_path / "tutorial.py").write_text(program)
    found = subprocess.run(
        [sys.executable, "tutorial.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    (gain,) = re.findall(r"rose by (-?\d+)%", found.stdout)
    assert int(gain) >= 20


@pytest.mark.parametrize("text", blocks("how-to.md", "yaml"))
def test_every_params_of_the_how_tos_is_valid(text):
    given = YAML(typ="safe", pure=True).load(text)
    validate_schema({**REST, **given}, "how-to.md")


@pytest.mark.parametrize("line", [c for b in blocks("how-to.md", "bash") for c in b.strip().splitlines()])
def test_every_command_of_the_how_tos_exists(line):
    program, command, *words = line.split()
    assert program in {"dvc", "windtunnel"}
    if program == "windtunnel":
        found = subprocess.run(
            [sys.executable, "-m", "windtunnel", command, "--help"], capture_output=True, text=True, check=True
        )
        assert all(word in found.stdout for word in words if word.startswith("--"))
