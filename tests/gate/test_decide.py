"""The gate: which numbers let a model through, and what is said of one that does not pass."""

import pytest
from click.testing import CliRunner

from windtunnel.cli.gate import gate as gate_command
from windtunnel.core.errors import UserError
from windtunnel.core.files import write_json
from windtunnel.gate.decide import Decision, decide, flatten, gate_json
from windtunnel.params.outcome import Gate
from windtunnel.workspace import GATE

METRICS = {
    "clean": {"accuracy": 0.97},
    "worst_case": {"accuracy": 0.4, "accuracy_ci_low": 0.33, "accuracy_ci_high": 0.47},
}


def test_flat_names_join_group_and_metric():
    assert flatten({"a": {"b": 1, "c": {"d": 2.5}}, "text": "x", "flag": True}) == {"a/b": 1.0, "a/c/d": 2.5}


@pytest.mark.parametrize(
    ("threshold", "decision"), [(0.39, Decision.PROMOTED), (0.4, Decision.PROMOTED), (0.41, Decision.NOT_PROMOTED)]
)
def test_a_minimum_is_the_smallest_value_allowed(threshold, decision):
    found, rows = decide(Gate(minimum={"worst_case/accuracy": threshold}), METRICS, 200, [])
    assert found is decision
    assert rows[-1].interval == (0.33, 0.47)
    assert rows[-1].holds is (decision is Decision.PROMOTED)


def test_too_few_samples_are_not_promoted():
    assert decide(Gate(minimum_samples=201), METRICS, 200, [])[0] is Decision.NOT_PROMOTED


def test_a_hard_failure_outweighs_every_good_number():
    decision, _ = decide(Gate(minimum={"clean/accuracy": 0.5}), METRICS, 200, ["digits-7 verified and broken"])
    assert decision is Decision.NOT_SOUND


def test_an_unknown_metric_is_answered_with_the_nearest_one():
    with pytest.raises(UserError, match="worst_case/accuracy") as caught:
        decide(Gate(minimum={"worst_case/acuracy": 0.3}), METRICS, 200, [])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("minimum", "failures", "code"), [(0.3, [], 0), (0.5, [], 10), (0.3, ["verified and broken"], 20)]
)
def test_the_command_turns_the_decision_into_an_exit_code(tmp_path, monkeypatch, minimum, failures, code):
    monkeypatch.chdir(tmp_path)
    write_json(gate_json(*decide(Gate(minimum={"worst_case/accuracy": minimum}), METRICS, 9, failures), failures), GATE)
    done = CliRunner().invoke(gate_command)
    assert done.exit_code == code, done.output
    assert all(line in done.output for line in failures)


@pytest.mark.parametrize("content", [None, "{", '{"conditions": []}'])
def test_a_missing_or_damaged_verdict_is_infrastructure(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        GATE.parent.mkdir()
        GATE.write_text(content)
    assert CliRunner().invoke(gate_command).exit_code == 30
