"""Findings where people look: the command, the caveats of each assessment, what is asked of git and MLflow now."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.made import metadata
from windtunnel.cli.main import cli
from windtunnel.evaluation.sanity.findings import caveats_of, with_caveats
from windtunnel.operations import live_checks
from windtunnel.records.files import write_json
from windtunnel.records.findings import FindingRecord, counts, overall, read_findings
from windtunnel.records.layout import SANITY

ROW = {"id": "B4", "title": "The attack changed its inputs", "tier": "T1", "severity": "HARD", "status": "fail", "value": 0.9,
       "threshold": 0.05, "assessments": ["pgd"], "samples": ["digit-1"], "reason": "unchanged inputs from pgd",
       "remedy": "Check its parameters.", "source": "ART#2256"}  # fmt: skip
QUIET = {**ROW, "id": "B5", "status": "pass", "assessments": []}
LEFT = {**ROW, "id": "D1", "status": "not_run", "reason": "a T2 check", "severity": "WARN", "assessments": []}
INFO = {**ROW, "id": "E7", "status": "warn", "severity": "INFO", "assessments": ["crown"]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_json(
        {"kwargs": {"checks": [ROW, QUIET, LEFT, INFO], "meaning": "necessary, not sufficient"}},
        SANITY / "metadata.json",
    )
    return tmp_path


def asked(*words: str) -> str:
    found = CliRunner().invoke(cli, ["sanity", *words], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_the_table_shows_every_check_and_what_was_not_run(run: Path) -> None:
    text = asked()
    for row in (ROW, QUIET, LEFT, INFO):
        assert row["id"] in text
    assert "fail (HARD)" in text
    assert "not run" in text
    assert "Check its parameters." in text
    assert "1 pass, 1 fail, 1 not run, 1 info" in text
    assert "necessary, not sufficient" in text


def test_flagged_and_group_narrow_the_table(run: Path) -> None:
    assert "B5" not in asked("--flagged")
    assert "B4" not in asked("--group", "D")


def test_a_check_is_explained_and_a_wrong_name_gets_the_nearest(run: Path) -> None:
    text = asked("--explain", "c3")
    assert "exact McNemar" in text
    assert "Source: Athalye" in text
    found = CliRunner().invoke(cli, ["sanity", "--explain", "C33"])
    assert found.exit_code == 2
    assert "Did you mean 'C3'" in found.output


def test_without_a_run_the_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(cli, ["sanity"])
    assert found.exit_code == 2
    assert "Run dvc repro first" in found.output


def test_a_flagged_check_is_a_caveat_of_the_assessment_it_concerns(run: Path) -> None:
    rows = read_findings(SANITY)
    (caveat,) = caveats_of(rows, "pgd")
    assert (caveat.code, caveat.samples) == ("B4", ("digit-1",))
    shown = with_caveats(metadata(name="pgd", caveats=[{"code": "old", "text": "kept"}]), rows)
    assert [c.code for c in shown.caveats] == ["old", "B4"]
    assert with_caveats(metadata(name="fgsm"), rows).caveats == ()


def test_info_is_no_warning_and_nothing_is_no_pass() -> None:
    found = counts(FindingRecord(**row) for row in (QUIET, LEFT, INFO))
    assert (found["warn"], found["info"], found["not_run"]) == (0, 1, 1)
    assert overall(found) == "pass"
    assert overall(counts([FindingRecord(**ROW)])) == "fail"
    assert overall(counts([FindingRecord(**{**ROW, "status": "warn", "severity": "WARN"})])) == "warn"


def test_git_is_asked_now(run: Path) -> None:
    assert live_checks.committed().status == "not_run"
    subprocess.run(["git", "init", "-q"], check=True)
    assert live_checks.committed().status == "warn"
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "all"], check=True)
    assert live_checks.committed().status == "pass"


def test_mlflow_is_asked_now(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    found = SimpleNamespace(digest="d", experiment="e", metrics={"clean/accuracy": 0.9})
    monkeypatch.setattr(live_checks, "read_state", lambda: found)
    monkeypatch.setattr(live_checks, "load_params", lambda: SimpleNamespace(tracking=SimpleNamespace(uri=None)))
    for logged, status in (
        ({"clean/accuracy": 0.9}, "pass"),
        ({"clean/accuracy": 0.8}, "fail"),
        ({}, "fail"),
        (None, "not_run"),
    ):
        monkeypatch.setattr(live_checks, "logged_metrics", lambda *_, logged=logged: logged)
        assert live_checks.tracked().status == status


def test_the_champion_is_compared_on_its_own_samples_or_not_at_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3: a champion of other samples cannot be paired, and the sanity checks say so."""
    from types import SimpleNamespace

    from windtunnel.params.results import Gate
    from windtunnel.records.gate import OUTCOMES_FILE, OutcomeRecord, Outcomes, write_record
    from windtunnel.records.layout import CHAMPION, SUMMARY

    gate = Gate(maximum_regression={"worst_case/accuracy": 0.05})
    monkeypatch.setattr(live_checks, "load_params", lambda: SimpleNamespace(gate=gate))
    assert live_checks.paired().status == "not_applicable"
    mine = OutcomeRecord("a", ("one", "two"), {"worst_case/accuracy": Outcomes("p", "11")})
    write_record(mine, SUMMARY / OUTCOMES_FILE)
    for theirs, status in ((mine, "pass"), (replace(mine, samples=("one", "three")), "warn")):
        write_record(theirs, CHAMPION)
        assert live_checks.paired().status == status


def test_each_assessment_gets_its_own_reason_and_the_table_that_of_all() -> None:
    row = FindingRecord(**{**ROW, "id": "F2", "status": "warn", "assessments": ["pgd", "marabou"],
                           "reason": "up to ±17.7 points (marabou)",
                           "each": {"pgd": "±6.5 points", "marabou": "±17.7 points"}})  # fmt: skip
    (of_pgd,) = caveats_of([row], "pgd")
    assert "±6.5 points" in of_pgd.text
    assert "17.7" not in of_pgd.text
    (of_marabou,) = caveats_of([row], "marabou")
    assert "±17.7 points" in of_marabou.text
