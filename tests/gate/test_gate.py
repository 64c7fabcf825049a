import json

import pytest
from click.testing import CliRunner

from windtunnel.cli.gate import gate as gate_command
from windtunnel.core.errors import UserError
from windtunnel.core.files import write_json
from windtunnel.gate.decide import Decision, decide, flatten, gate_json
from windtunnel.params.outcome import Gate

METRICS = {
    "worst_case": {"accuracy": 0.6, "accuracy_ci_low": 0.5, "accuracy_ci_high": 0.7},
    "clean": {"accuracy": 0.97},
}


def test_nested_metrics_have_one_flat_name():
    assert flatten(METRICS)["worst_case/accuracy"] == 0.6


@pytest.mark.parametrize(("floor", "decision"), [(0.6, Decision.PROMOTED), (0.61, Decision.NOT_PROMOTED)])
def test_a_floor_decides(floor, decision):
    assert decide(Gate(minimum={"worst_case/accuracy": floor}), METRICS, 200, [])[0] is decision


def test_a_hard_failure_comes_before_every_floor():
    decision, conditions = decide(
        Gate(minimum={"clean/accuracy": 0.99}), METRICS, 200, ["sample 3 is verified and broken"]
    )
    assert decision is Decision.NOT_SOUND
    assert [c.holds for c in conditions] == [True, False, False]


def test_too_few_samples_are_not_promoted():
    assert decide(Gate(minimum_samples=500), METRICS, 200, [])[0] is Decision.NOT_PROMOTED


def test_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'worst_case/accuracy'"):
        decide(Gate(minimum={"worst_case/acuracy": 0.5}), METRICS, 200, [])


@pytest.mark.parametrize(("failures", "floor", "code"), [([], 0.5, 0), ([], 0.9, 10), (["x"], 0.5, 20)])
def test_the_command_turns_the_verdict_into_an_exit_code(tmp_path, monkeypatch, failures, floor, code):
    monkeypatch.chdir(tmp_path)
    found = decide(Gate(minimum={"worst_case/accuracy": floor}), METRICS, 200, failures)
    write_json(gate_json(*found, failures), tmp_path / "reports" / "gate.json")
    result = CliRunner().invoke(gate_command)
    assert result.exit_code == code
    assert json.loads((tmp_path / "reports" / "gate.json").read_text())["decision"] in result.output


def test_no_run_is_no_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(gate_command).exit_code == 30
