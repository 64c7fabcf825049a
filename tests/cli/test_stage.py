"""`windtunnel stage --executor`."""

import os

import pytest
from click.testing import CliRunner

from windtunnel.cli import pipeline as module
from windtunnel.core.errors import UserError
from windtunnel.runtime.placement import VARIABLE


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, "here")


def test_the_option_stands_before_the_variable(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "stage_of", lambda *words: words)
    monkeypatch.setattr(module, "run_stage", lambda stage, name: seen.append((stage, name, os.environ[VARIABLE])))
    done = CliRunner().invoke(module.stage, ["attack", "pgd", "--executor", "processes:3"], catch_exceptions=False)
    assert done.exit_code == 0
    assert seen == [("attack", "pgd", "processes:3")]


def test_a_wrong_word_is_refused_before_anything_is_read():
    with pytest.raises(UserError, match=r"'proceses' is not an executor.*'processes'"):
        CliRunner().invoke(module.stage, ["attack", "pgd", "--executor", "proceses:2"], catch_exceptions=False)
