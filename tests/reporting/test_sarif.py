"""SARIF of a run: valid by the schema, at the lines of the entries, with fingerprints that stay."""

import json
from pathlib import Path

import pytest

from tests.made import content
from windtunnel.records.files import write_json
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.records.gate import Condition, Decision, GateResult
from windtunnel.records.layout import Layout
from windtunnel.reporting.ci_reports import cases_of_gate, write_junit, write_sarif

SCHEMA = json.loads((Path(__file__).parent / "sarif" / "sarif-2.1.0.json").read_text())
PARAMS = """\
budget: {norm: Linf, epsilon: 0.1}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
  pgd: {library: torchattacks, algorithm: PGD}
gate:
  minimum:
    worst_case/accuracy: 0.3
  maximum_regression: {worst_case/accuracy: 0.05}
"""
RATE = "worst_case/accuracy"
GATE = GateResult(
    Decision.FAILED,
    (
        Condition("hard failures", 1.0, 0.0, None, False, "at most"),
        Condition("samples", 9.0, 100.0, None, True),
        Condition(RATE, 0.1, 0.3, (0.0, 0.2), False, reason="0.2 below the floor"),
        Condition(f"{RATE} vs champion", -0.2, -0.05, (-0.3, -0.1), False, "lower end above"),
    ),
)
CHECKS = (
    FindingRecord(
        id="C3",
        title="More steps",
        severity=Severity.WARN,
        status=Status.WARN,
        assessments=("fgsm", "pgd"),
        reason="12 more",
        each={"pgd": "3 more"},
    ),
    FindingRecord(id="A1", title="Logits", severity=Severity.HARD, status=Status.FAIL, reason="not finite"),
    FindingRecord(id="A2", title="Range", severity=Severity.HARD, status=Status.PASS),
)


def layer(epsilon: float, *attacked_by: str) -> dict:
    return {
        "norm": "Linf",
        "epsilon": epsilon,
        "n": 20,
        "n_attacked": 20,
        "n_examined": 0,
        "states": {"broken": 4},
        "attacked_by": attacked_by,
        "draws": [{"name": attacked_by[-1], "n": 20, "selection": "all"}] if attacked_by else [],
    }


@pytest.fixture
def written(tmp_path):
    """A function that writes the SARIF of a run whose params.yaml begins with `head`, and reads it: results by rule and line."""
    layout = Layout(tmp_path)
    metrics = {"clean_accuracy": 1.0, "sandwich": [layer(0.1, "pgd"), layer(0.2, "pgd", "fgsm"), layer(0.3)]}
    layout.summary.mkdir(parents=True)
    write_json(content(name="summary", metrics=metrics), layout.summary / "metadata.json")

    def write(head: str = "", gate: GateResult = GATE, checks: tuple[FindingRecord, ...] = CHECKS) -> dict:
        layout.params.write_text(head + PARAMS)
        write_sarif(gate, checks, layout, tmp_path / "out.sarif")
        return json.loads((tmp_path / "out.sarif").read_text())

    return write


@pytest.mark.parametrize("decision", Decision)
def test_the_log_fits_the_schema(written, decision):
    validator = pytest.importorskip("jsonschema").validators.validator_for(SCHEMA)(SCHEMA)
    is_failed, is_unsound = decision is Decision.FAILED, decision is Decision.UNSOUND
    gate = GateResult(decision, GATE.conditions if is_failed else (), ("A1 Logits: not finite",) if is_unsound else ())
    log = written(gate=gate, checks=CHECKS if is_unsound else CHECKS[:1])
    validator.validate(log)
    (run,) = log["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {row["ruleId"] for row in run["results"]}
    run["results"][0]["level"] = "fatal"
    assert not validator.is_valid(log)


def test_reports_for_ci_make_the_folder_they_are_written_to(written, tmp_path):
    written()  # params.yaml and a summary
    write_sarif(GATE, CHECKS, Layout(tmp_path), tmp_path / "new" / "sarif" / "out.sarif")
    write_junit("gate", cases_of_gate(GATE), tmp_path / "new" / "junit" / "out.xml")
    assert {path.suffix for path in (tmp_path / "new").rglob("*.*")} == {".sarif", ".xml"}


def test_each_finding_stands_at_its_line_of_params(written):
    lines = PARAMS.splitlines()
    found = [
        (row["ruleId"], lines[row["locations"][0]["physicalLocation"]["region"]["startLine"] - 1].split(":")[0].strip())
        for row in written()["runs"][0]["results"]
    ]
    assert found == [
        ("gate/hard_failures", "gate"),
        (f"gate/{RATE}", RATE),
        (f"gate/{RATE}_vs_champion", "maximum_regression"),
        ("C3", "fgsm"),
        ("C3", "pgd"),
        ("A1", "budget"),
        ("broken/Linf", "pgd"),
        ("broken/Linf", "fgsm"),  # pgd of a smaller budget broke some of its samples too
        ("broken/Linf", "budget"),
    ]


def test_fingerprints_are_unique_and_stay_when_lines_move(written):
    marks = [[row["partialFingerprints"] for row in written(head)["runs"][0]["results"]] for head in ("", "seed: 0\n")]
    assert marks[0] == marks[1]
    assert len({str(mark) for mark in marks[0]}) == len(marks[0])


def test_a_check_says_of_each_entry_what_it_found_there(written):
    rows = [row["message"]["text"] for row in written()["runs"][0]["results"] if row["ruleId"] == "C3"]
    assert rows == ["More steps: 12 more.", "More steps: 3 more."]
