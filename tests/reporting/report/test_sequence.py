"""The report with the decision of `windtunnel gate --sequential`."""

import pytest

from tests.reporting.report.conftest import html_of
from windtunnel.params.resolved import Resolved, Work
from windtunnel.records.files import write_json
from windtunnel.records.gate import Decision
from windtunnel.records.sequential_gate import SequentialDecision, SequentialStep
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.sequential_gate import SEQUENCE_FILE, digests_of

SENTENCE = "gate: decided after 100 samples: passed. No sanity check was run."


def resolved(stage, name="", **entry):
    return Resolved(stage=stage, name=name, work=Work(entry=entry))


def sections(reports, *, dated):
    return {section.title: section for section in build_report(reports, dated=dated).sections}


@pytest.fixture
def decided(reports):
    """Reports with a decision of the entries that are resolved there."""
    stages = [resolved("attack", "pgd", steps=10), resolved("gate", minimum=0.5), resolved("report", title="a")]
    for stage in stages:
        stage.write(reports / "resolved")
    steps = [
        [
            SequentialStep(
                name="worst_case/accuracy", n=n, value=0.8, threshold=0.5, interval=(low, 0.95), holds=low > 0.5 or None
            )
        ]
        for n, low in ((50, 0.4), (100, 0.6))
    ]
    answer = SequentialDecision(
        decision=Decision.PASSED, exit_code=0, n=100, is_early=True, run=digests_of(stages), steps=steps
    )
    write_json(answer.model_dump(mode="json"), reports / SEQUENCE_FILE)
    return reports


def test_a_dated_report_shows_the_decision_and_its_sequence(decided):
    text, chart = sections(decided, dated=True)["The sequential gate"].blocks
    assert text.text == SENTENCE
    assert chart.caption == "worst_case/accuracy after 100 samples: 0.800 [0.600, 0.950], at least 0.5."
    assert chart.scene.marks


def test_the_report_of_the_pipeline_does_not_depend_on_it(decided):
    assert "The sequential gate" not in sections(decided, dated=False)
    shown = html_of(decided)
    (decided / SEQUENCE_FILE).unlink()
    assert html_of(decided) == shown


@pytest.mark.parametrize(
    ("change", "is_shown"),
    [
        (resolved("attack", "pgd", steps=20), False),
        (resolved("attack", "fgsm"), False),
        (resolved("gate", minimum=0.6), False),
        (resolved("report", title="b"), True),
    ],
)
def test_a_decision_is_shown_until_an_entry_or_the_gate_changes(decided, change, is_shown):
    change.write(decided / "resolved")
    assert ("The sequential gate" in sections(decided, dated=True)) is is_shown


def test_a_damaged_decision_costs_its_part_of_the_report(decided):
    (decided / SEQUENCE_FILE).write_text("{}")
    report = build_report(decided, dated=True)
    assert "The sequential gate" not in {section.title for section in report.sections}
    assert any("gate_sequential.json is missing" in caveat.text for caveat in report.front.caveats)
