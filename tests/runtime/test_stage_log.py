"""A stage says a line at its start and one at its end, with what was found."""

import pytest

from tests.made import content
from windtunnel.core.errors import UserError
from windtunnel.records.files import write_json
from windtunnel.records.layout import GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.runtime.shutdown import user_errors
from windtunnel.runtime.stage_log import log_stage


@pytest.fixture
def stage(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*stage, work=lambda: None):
        with user_errors(), log_stage(*stage):
            work()
        return capsys.readouterr().out.splitlines()

    return run


def attack(**metrics):
    region = {"norm": "Linf", "epsilon": 8 / 255}
    written = content(
        name="pgd", metrics=metrics, kwargs={"sample_names": ["a", "b"]}, semantics={"perturbation": region}
    )
    write_json({**written, "family": "attacks"}, ROBUSTNESS / "pgd" / "metadata.json")


METRICS = {"adversarial_accuracy": 0.67, "adversarial_accuracy_ci_low": 0.6, "adversarial_accuracy_ci_high": 0.73}


def test_an_assessment_says_what_it_found(stage):
    first, last = stage("attack", "pgd", work=lambda: attack(**METRICS))
    assert first == "attack@pgd: started"
    assert last.startswith("attack@pgd: 67.0% [60.0%, 73.0%] robust accuracy (Linf 8/255, n 2) (")
    assert last.endswith(" s)")


def test_sanity_the_summary_and_the_gate_say_theirs_and_others_that_they_are_done(stage):
    row = {"id": "A1", "title": "x", "severity": "WARN"}
    checks = [{**row, "status": status} for status in ("pass", "warn", "pass")]
    checks.append({**row, "severity": "INFO", "status": "warn"})  # counted as `windtunnel show` counts it
    write_json({"kwargs": {"checks": checks}}, SANITY / "metadata.json")
    metrics = {"worst_case_accuracy": 0.66, "certified_accuracy": 0.4}
    write_json(content(name="summary", metrics=metrics), SUMMARY / "metadata.json")
    write_json({"decision": "passed", "conditions": [], "hard_failures": []}, GATE)
    said = {name: stage(name)[1].split(" (")[0] for name in ("sanity", "summary", "gate", "train")}
    assert said == {
        "sanity": "sanity: 2 pass, 1 warn, 1 info", "summary": "summary: 66.0% in the worst case, 40.0% certified",
        "gate": "gate: no condition is set",
        "train": "train: done",
    }  # fmt: skip


def test_a_refusal_is_its_own_line(stage, capsys):
    def refuse():
        raise UserError("attacks.pgd: no")

    with pytest.raises(SystemExit):
        stage("attack", "pgd", work=refuse)
    out = capsys.readouterr()
    assert out.out.splitlines() == ["attack@pgd: started"]
    assert "attacks.pgd: no" in out.err
