"""--json and --junit: what programs read is complete, documented, and says what the terminal says."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from pydantic import BaseModel
from sklearn.datasets import load_digits

from tests.made import content
from windtunnel.assessments.figures.scene import Dot
from windtunnel.cli.check import check
from windtunnel.cli.gate import gate
from windtunnel.cli.sanity import sanity
from windtunnel.cli.show import show
from windtunnel.evaluation.gate.sequential import SequentialGate
from windtunnel.operations import live_checks, sequential
from windtunnel.params.resolved import Resolved, Work
from windtunnel.params.results import Gate
from windtunnel.records.files import write_json
from windtunnel.records.findings import FindingRecord, Status
from windtunnel.records.gate import Decision, OutcomeRecord, Outcomes
from windtunnel.records.sequential_gate import SequentialDecision
from windtunnel.reporting.answers import ANSWERS, ShowAnswer, compare_answer
from windtunnel.reporting.ci_reports import cases_of_checks, write_junit
from windtunnel.reporting.compare.comparison import compare_runs
from windtunnel.reporting.compare.runs import Run
from windtunnel.reporting.sequential_gate import SEQUENCE_FILE, read_sequence, sequence_chart

ROW = {
    "id": "B1",
    "title": "Budget respected",
    "severity": "HARD",
    "status": "fail",
    "reason": "beyond",
    "remedy": "Project.",
}
CHECKS = [
    ROW,
    {**ROW, "id": "B2", "status": "not_run", "reason": "no tensors"},
    {**ROW, "id": "B3", "status": "pass", "reason": ""},
    {**ROW, "id": "C1", "severity": "WARN", "status": "warn"},
    {**ROW, "id": "G6", "severity": "INFO", "status": "not_run", "reason": ""},
]
VERDICT = {
    "decision": "failed", "exit_code": 10, "hard_failures": [], "champion": None,
    "conditions": [
        {"name": "clean/accuracy", "value": 0.9,
         "threshold": 0.8, "interval": [0.8, 0.95], "holds": True, "bound": "at least", "reason": ""},
        {"name": "worst_case/accuracy", "value": 0.1, "threshold": 0.3, "interval": None, "holds": False, "bound": "at least",
         "reason": "0.2 below the floor"},
    ],
}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The files of a run that the commands read."""
    monkeypatch.chdir(tmp_path)
    clean = {"name": "clean", "library": "windtunnel", "algorithm": "identity", "assessment_kind": "statistical_sampling",
             "metrics": {"clean_accuracy": 0.9}, "caveats": []}  # fmt: skip
    write_json(content("statistical_sampling", **clean), Path("reports/robustness/clean/metadata.json"))
    summary = content(
        name="summary", kwargs={"hard_failures": [], "assessments": []}, metrics={"sandwich": [], "clean_accuracy": 0.9}
    )
    write_json(summary, Path("reports/summary/metadata.json"))
    write_json({"kwargs": {"checks": CHECKS}}, Path("reports/sanity/metadata.json"))
    write_json(VERDICT, Path("reports/gate.json"))
    monkeypatch.setattr(
        "windtunnel.operations.live_checks.ASKED_NOW",
        {"G6": lambda: live_checks.LiveOutcome(Status.WARN, "not committed: x")},
    )
    return tmp_path


def answer(command, *arguments, code=0):
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_each_command_answers_with_its_format(run):
    decision, checks, shown = answer(gate, code=10), answer(sanity), answer(show)
    assert [a["format"] for a in (decision, checks, shown)] == [
        "windtunnel.gate/1", "windtunnel.sanity/1", "windtunnel.show/1"
    ]  # fmt: skip
    assert ShowAnswer.model_validate(shown).assessments.keys() >= {"clean"}
    assert decision["decision"] == "failed"
    assert decision["conditions"][1]["reason"] == "0.2 below the floor"
    assert checks["asked_now"][0]["reason"] == "not committed: x"


@pytest.mark.parametrize(("held", "early", "code"), [(1, True, 0), (0, True, 10), (0.5, False, 10)])
def test_a_sequential_gate_answers_with_its_confidence_sequences(run, monkeypatch, held, early, code):
    def batches(_):
        state = SequentialGate(Gate(minimum={"clean/accuracy": 0.5}), None)
        for first in (0, 50):
            names = tuple(str(first + i) for i in range(50))
            row = Outcomes("p", ("01" if held == 0.5 else str(held) * 2) * 25)
            decision = state.add(OutcomeRecord("m", names, {"clean/accuracy": row}))
            yield state, decision or (None if early or not first else Decision.FAILED), not early and first > 0
            if decision:
                return

    monkeypatch.setattr(sequential, "run_sequential_gate", batches)
    resolved = Resolved(stage="gate", work=Work(entry={}))
    monkeypatch.setattr("windtunnel.operations.resolve.build.resolve_all", lambda: [resolved])
    resolved.write()
    said = answer(gate, "--sequential", code=code)
    assert (said["is_early"], said["exit_code"]) == (early, code)
    assert read_sequence(Path("reports") / SEQUENCE_FILE) == SequentialDecision.model_validate(said)
    assert said["n"] == said["steps"][-1][0]["n"] == 50 * len(said["steps"])
    widths = [step[0]["interval"][1] - step[0]["interval"][0] for step in said["steps"]]
    assert widths == sorted(widths, reverse=True)
    lines = CliRunner().invoke(gate, ["--sequential"]).output.splitlines()
    assert len(lines) == len(said["steps"]) + 1
    for line, (condition,) in zip(lines, said["steps"], strict=False):
        low, high = condition["interval"]
        assert f"n {condition['n']:5d}  clean/accuracy  {condition['value']:.3f} [{low:.3f}, {high:.3f}]" in line
    drawn = CliRunner().invoke(gate, ["--sequential", "--markdown", "--picture", "out/sequence.png"]).output
    assert "![confidence sequences](out/sequence.png)" in drawn
    width, height = Image.open("out/sequence.png").size
    assert min(width, height) > 200
    (steps,) = zip(*SequentialDecision.model_validate(said).steps, strict=True)
    chart = sequence_chart([*steps])
    tips = [mark.tip for mark in chart.marks if isinstance(mark, Dot) and mark.tip]
    assert len(tips) == len(steps)
    assert (
        chart.alt
        == f"clean/accuracy after {said['n']} samples: {condition['value']:.3f} [{low:.3f}, {high:.3f}], at least 0.5."
    )
    assert CliRunner().invoke(gate, ["--picture", "out/sequence.png"]).exit_code == 2
    told, _, _, _, *rows = CliRunner().invoke(gate, ["--sequential", "--markdown"]).output.splitlines()
    assert told == f"**{lines[-1]}**"
    assert len(rows) == len(said["steps"])
    assert rows[-1].startswith(
        f"| {said['n']} | clean/accuracy | {condition['value']:.3f} | [{low:.3f}, {high:.3f}] | 0.5 |"
    )


def test_one_record_has_one_count_wherever_it_is_shown(run):
    from windtunnel.reporting.report.sections.sanity import sanity_section

    line = "1 pass, 1 warn, 1 fail, 2 not run"
    assert line in CliRunner().invoke(sanity, []).output.replace("\n", " ")
    assert line in CliRunner().invoke(show, []).output.replace("\n", " ")
    (text, *_) = sanity_section(tuple(FindingRecord(**row) for row in CHECKS), None).blocks
    assert line in text.text


def test_check_answers_with_its_mistakes_and_exit_code_2(run):
    Path("params.yaml").write_text(
        "data: {}\nmodel: {}\nbudget: {epsilon: 0.1}\nattacks:\n  pgd: {library: torchattacks, algorithm: PDG}\n"
    )
    said = answer(check, code=2)
    assert not said["ok"]
    assert "Did you mean 'PGD'" in said["mistakes"][0]


def test_check_answers_with_what_the_model_sees_and_what_is_suspected_of_it(run):
    """A model that was trained on the classes in another order: no assessment is refused, and it is said."""
    digits = load_digits()
    np.savez("x.npz", x=digits.images[:300, None] / 16, y=(digits.target[:300] + 1) % 10)
    Path("mine.py").write_text(NEAREST)
    keys = ("budgets", "clean", "attacks", "queries", "sweeps", "verification", "corruptions", "generators", "latent", "sanity",
            "report", "gate")  # fmt: skip
    params = {**{key: {} for key in keys}, "seed": 0, "device": "auto", "budget": {"epsilon": 0.1},
              "data": {"source": "npz", "path": "x.npz"}, "model": {"source": "function", "function": "mine:predict"}}  # fmt: skip
    Path("params.yaml").write_text(json.dumps(params))
    said = answer(check)
    assert said["ok"]
    seen = said["seen"]
    assert len(seen["samples"]) == 5
    assert set(seen["samples"][0]) == {"name", "label", "prediction", "confidence", "low", "high"}
    assert Path(seen["picture"]).is_file()
    assert seen["clean_accuracy"] < 0.1
    assert said["needs"]["disk_bytes"] > 300 * 64 * 4
    assert said["needs"]["seconds"] is None
    assert said["needs"]["entries"] == []
    (suspicion,) = seen["suspicions"]
    assert "labels were one higher" in suspicion


# The class whose mean is nearest.
NEAREST = """
import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
means = np.stack([digits.images[digits.target == k].reshape(-1, 64).mean(0) for k in range(10)]) / 16

def predict(batch):
    distances = ((batch.reshape(len(batch), 1, 64) - means) ** 2).sum(2)
    weights = np.exp(-distances)
    return weights / weights.sum(1, keepdims=True)
"""


def test_a_comparison_answers_without_tensors():
    runs = [
        Run("a", "directory", {"seed": "0"}, {"clean/accuracy": 0.9}, None),
        Run("b", "directory", {"seed": "1"}, {}, None),
    ]
    said = json.loads(compare_answer(compare_runs(runs)).text())
    assert said["params"] == {"seed": ["0", "1"]}
    assert said["metrics"] == {"clean/accuracy": [0.9, None]}
    assert said["against"][0]["run"] == "b"


def test_every_field_is_documented():
    words = set(re.findall(r"`(\w+)`", (Path(__file__).parents[2] / "docs" / "json.md").read_text()))

    def fields(model: type[BaseModel]) -> set[str]:
        nested = [f for f in BaseModel.__subclasses__() if f.__name__ in str(model.model_fields)]
        return set(model.model_fields) | {name for inner in nested for name in inner.model_fields}

    assert set().union(*(fields(model) for model in ANSWERS)) - {"format"} <= words


def test_junit_has_a_case_per_condition_and_per_hard_check(run):
    assert CliRunner().invoke(gate, ["--junit", "gate.xml"]).exit_code == 10
    cases = ElementTree.parse("gate.xml").getroot().findall(".//testcase")
    assert [(c.get("name"), c.find("failure") is not None) for c in cases] == [
        ("clean/accuracy", False), ("worst_case/accuracy", True),
    ]  # fmt: skip
    assert "0.2 below the floor" in cases[1].find("failure").get("message")
    assert CliRunner().invoke(sanity, ["--junit", "out/sanity.xml"]).exit_code == 0
    root = ElementTree.parse("out/sanity.xml").getroot()
    assert {key: root.get(key) for key in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    assert "Project." in root.find(".//failure").get("message")


def test_a_reason_with_markup_stays_whole_and_one_with_control_characters_readable(tmp_path):
    rows = [FindingRecord(**{**ROW, "reason": 'a < b & "c" ]]> \n é \x1b[31mred\x1b[0m \0'})]
    write_junit("x", cases_of_checks(rows), tmp_path / "x.xml")
    said = ElementTree.parse(tmp_path / "x.xml").getroot().find(".//failure").text
    assert 'a < b & "c" ]]>' in said
    assert "red" in said
