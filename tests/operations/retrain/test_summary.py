"""What a retraining says at its end: who is in service now, what became of the model, and why."""

import pytest

from windtunnel.operations.retrain import Retrained, RetrainStatus, headline, summary_markdown
from windtunnel.operations.tracking.registry import Version
from windtunnel.records.gate import Decision, GateResult, Origin

ONE, TWO, THREE = (Version("net", number, f"run{number}", {}) for number in "123")
OF_ONE = Origin(model="net", version="1", run_id="run1")


def gate(champion=None, decision="passed"):
    return GateResult(Decision(decision), (), (), champion)


@pytest.mark.parametrize(("result", "said"), [
    (Retrained(RetrainStatus.PROMOTED, ONE, ONE, gate()), "net version 1 is the champion now: the first one"),
    (Retrained(RetrainStatus.PROMOTED, TWO, TWO, gate(OF_ONE)), "net version 2 is the champion now, in place of version 1"),
    (Retrained(RetrainStatus.KEPT, TWO, ONE, gate(OF_ONE, "failed")),
     "net version 1 stays the champion: net version 2 was not promoted"),
    (Retrained(RetrainStatus.KEPT, ONE, None, gate(None, "failed")), "there is still no champion: net version 1 was not promoted"),
    (Retrained(RetrainStatus.UNSOUND, TWO, ONE, gate(None, "unsound")),
     "net version 1 stays the champion: the evaluation of net version 2 is unsound"),
    (Retrained(RetrainStatus.SAME_MODEL, ONE, ONE, gate(OF_ONE)),
     "net version 1 stays the champion: the retraining gave the same weights"),
    (Retrained(RetrainStatus.PROMOTED, ONE, ONE, remembered=True),
     "nothing changed since net version 1 was assessed; it was promoted, and still is the champion"),
    (Retrained(RetrainStatus.PROMOTED, ONE, THREE, remembered=True),
     "nothing changed since net version 1 was assessed; it was promoted, and net version 3 is the champion now"),
    (Retrained(RetrainStatus.PROMOTED, ONE, None, remembered=True),
     "nothing changed since net version 1 was assessed; it was promoted, and nobody is the champion now"),
    (Retrained(RetrainStatus.KEPT, TWO, ONE, remembered=True),
     "nothing changed since net version 2 was assessed; net version 1 stays the champion: net version 2 was not promoted"),
])  # fmt: skip
def test_every_end_is_one_sentence_that_names_who_is_in_service(result, said):
    assert headline(result) == said
    assert summary_markdown(result).startswith(f"## Retraining: {said}\n")


def test_the_champion_that_the_gate_compared_with_is_told_from_the_one_of_now():
    text = summary_markdown(Retrained(RetrainStatus.PROMOTED, TWO, TWO, gate(OF_ONE)))
    assert "Champion when the gate ran: net version 1\n" in text
    assert "Assessment of net version 2: MLflow run run2" in text
    again = summary_markdown(
        Retrained(RetrainStatus.PROMOTED, TWO, TWO, gate(OF_ONE.model_copy(update={"reassessed": True})))
    )
    assert "Champion when the gate ran: net version 1, reassessed for this comparison\n" in again
    assert "Champion" not in summary_markdown(Retrained(RetrainStatus.PROMOTED, ONE, ONE, gate()))


def test_reasons_and_notes_stand_between_the_sentence_and_the_table():
    reasons = ("clean/accuracy vs champion: 0 gained, 9 lost of 100",)
    result = Retrained(RetrainStatus.KEPT, TWO, ONE, gate(OF_ONE, "failed"), "net version 1 was reassessed.", reasons)
    text = summary_markdown(result)
    order = ["## Retraining", f"- {reasons[0]}", "net version 1 was reassessed.", "**no condition", "Assessment of"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
