"""Retraining on real stages: what is promoted, what is not and why, and the way back."""

from pathlib import Path

import pytest

from windtunnel.core.errors import UserError
from windtunnel.operations.retrain import (
    STATUS,
    RetrainStatus,
    fetch_champion,
    promote_last_run,
    promote_version,
    summary_markdown,
)
from windtunnel.operations.tracking.registry import CHALLENGER, CHAMPION, PREVIOUS, RegistryError
from windtunnel.records.gate import read_record
from windtunnel.records.layout import CHAMPION as CHAMPION_FILE

pytestmark = pytest.mark.slow


def number(registry, alias):
    version = registry.alias(alias)
    return version.number if version else None


def test_a_worse_model_is_kept_out_an_equal_one_let_in_and_a_rollback_restores(project):
    registry = project.registry
    first = project.retrain()
    assert first.status is RetrainStatus.PROMOTED
    assert "## Retraining: windtunnel version 1 is the champion now: the first one\n" in summary_markdown(first)
    assert "Champion when the gate ran" not in summary_markdown(first)
    assert (number(registry, CHAMPION), number(registry, PREVIOUS)) == ("1", None)

    # Nothing changed: nothing is computed but the samples, which only `prepare` can tell.
    again = project.retrain()
    assert (again.status, again.exit_code, again.remembered, project.ran) == (
        RetrainStatus.PROMOTED,
        0,
        True,
        ["prepare"],
    )
    said = "nothing changed since windtunnel version 1 was assessed; it was promoted, and still is the champion\n"
    assert said in summary_markdown(again)

    project.data("worse")
    worse = project.retrain()
    assert (worse.status, worse.exit_code) == (RetrainStatus.KEPT, 10)
    assert (number(registry, CHAMPION), number(registry, CHALLENGER)) == ("1", "2")
    reasons = registry.version("2").tags["gate.reasons"]
    assert "clean/accuracy vs champion" in reasons
    assert "cannot be ruled out, 0.1 is allowed" in reasons
    text = summary_markdown(worse)
    assert "windtunnel version 1 stays the champion: windtunnel version 2 was not promoted" in text
    assert "**failed: a condition does not hold**" in text
    again = project.retrain()
    assert (again.status, again.exit_code, again.remembered) == (RetrainStatus.KEPT, 10, True)
    assert "clean/accuracy vs champion" in summary_markdown(again)
    assert "Champion when the gate ran: windtunnel version 1\n" in text
    with pytest.raises(UserError, match="it did not pass the gate"):
        promote_version(registry, "2")

    project.data("equal")
    equal = project.retrain()
    assert equal.status is RetrainStatus.PROMOTED, summary_markdown(equal)
    assert "windtunnel version 3 is the champion now, in place of version 1\n" in summary_markdown(equal)
    assert equal.gate.conditions[-1].interval[0] > -0.15
    assert (number(registry, CHAMPION), number(registry, PREVIOUS), number(registry, CHALLENGER)) == ("3", "1", None)
    assert registry.version("3").run_id == registry.version("3").tags["assessment.run_id"]

    removed, restored = registry.rollback()
    assert (removed.number, restored.number) == ("3", "1")
    assert (number(registry, CHAMPION), number(registry, PREVIOUS)) == ("1", None)
    # The schedule does not bring back what somebody took out.
    again = project.retrain()
    assert (again.remembered, again.exit_code, again.reasons[0][:18]) == (True, 10, "it was rolled back")
    assert project.retrain(force=True).status is RetrainStatus.KEPT
    assert number(registry, CHAMPION) == "1"
    with pytest.raises(UserError, match="version 3 was rolled back"):
        promote_version(registry, "3")
    with pytest.raises(UserError, match="there is none before it"):
        registry.rollback()
    assert promote_version(registry, "3", force=True).number == "3"
    assert (number(registry, CHAMPION), number(registry, PREVIOUS)) == ("3", "1")
    overruled = project.retrain()
    assert (overruled.exit_code, overruled.reasons) == (0, ())  # and remembered so


def test_a_champion_of_another_protocol_is_assessed_anew_and_then_compared(project):
    project.retrain()
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("epsilon: 0.03", "epsilon: 0.02"))
    project.data("equal")
    with pytest.raises(UserError, match=r"not committed \(params.yaml\)"):
        project.retrain()
    result = project.retrain(allow_dirty=True)
    assert project.ran == [
        "prepare", "summary", "champion train", "champion clean", "champion attack fgsm", "champion summary", "all",
    ]  # fmt: skip
    assert result.status is RetrainStatus.PROMOTED, summary_markdown(result)
    assert "version 1 was reassessed" in result.note
    champion, mine = read_record(CHAMPION_FILE), read_record(Path("reports/summary/outcomes.json"))
    assert champion.origin.version == "1"
    assert champion.outcomes["worst_case/accuracy"].protocol == mine.outcomes["worst_case/accuracy"].protocol
    # The registry's copy of the weights gives what the weights themselves gave.
    own = project.registry.record(project.registry.version("1"))
    assert champion.outcomes["clean/accuracy"].held == own.outcomes["clean/accuracy"].held


def test_a_retraining_that_was_killed_before_the_end_is_finished_by_the_next(project, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("windtunnel.operations.retrain._settle", killed)
        with pytest.raises(KeyboardInterrupt):
            project.retrain()
    assert project.registry.alias(CHAMPION) is None
    assert project.retrain().status is RetrainStatus.PROMOTED
    assert [version.number for version in project.registry.versions()] == ["1"]


def test_promote_registers_the_last_run_once_and_compares_with_the_champion_of_now(project):
    for stage in [["resolve"], ["prepare"], ["summary"], []]:
        project.pipeline(stage)
    registry = project.registry
    assert promote_last_run(registry).number == "1"
    project.data("equal")
    for stage in [["resolve"], ["prepare"], ["summary"], []]:
        project.pipeline(stage)
    with pytest.raises(UserError, match="did not compare with windtunnel version 1"):
        promote_last_run(registry)
    assert [version.number for version in registry.versions()] == ["1"]


def test_a_champions_record_that_is_damaged_or_lost_is_fetched_or_made_again(project):
    registry = project.registry
    assert project.retrain().status is RetrainStatus.PROMOTED
    project.data("equal")
    CHAMPION_FILE.parent.mkdir(exist_ok=True)
    CHAMPION_FILE.write_text('{"model_digest": ')
    fetch_champion(registry)
    whole = read_record(CHAMPION_FILE)
    assert whole.origin.version == "1"
    # Its run lost the outcomes too: the gate says what to do, and a retraining does it by itself.
    CHAMPION_FILE.unlink()
    (kept,) = Path("mlartifacts").rglob("outcomes.json")
    kept.unlink()
    fetch_champion(registry)
    assert read_record(CHAMPION_FILE).outcomes == {}
    result = project.retrain()
    assert result.note == "windtunnel version 1 was reassessed under the protocol of today."
    assert result.status is RetrainStatus.PROMOTED, summary_markdown(result)
    assert "Champion when the gate ran: windtunnel version 1, reassessed for this comparison" in summary_markdown(
        result
    )
    # What somebody wrote into a tag by hand is no end of a retraining: it runs again.
    registry.tag(result.version, STATUS, "great")
    assert not project.retrain().remembered


def test_an_unreachable_registry_ends_before_anything_is_computed(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://name:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError) as caught:
        project.retrain()
    assert project.ran == []
    assert str(caught.value).startswith("registry: http://127.0.0.1:9: ")
    assert "secret" not in str(caught.value).split("MlflowException")[0]


def test_an_empty_registry_is_said_to_be_empty(project):
    with pytest.raises(UserError, match="windtunnel has no champion"):
        project.registry.rollback()
    with pytest.raises(UserError, match="no version 3"):
        project.registry.version("3")


def test_a_check_that_runs_attacks_anew_stops_a_promotion(project, monkeypatch):
    """The run's own checks passed; what is made before a promotion does not."""
    from windtunnel.operations import retrain as flow

    monkeypatch.setattr(flow, "failures_before_promotion", lambda _: ["sanity check C8 failed: 3 of 50 survive"])
    found = project.retrain()
    assert (found.status, found.exit_code) == (RetrainStatus.UNSOUND, 20)
    assert (number(project.registry, CHAMPION), number(project.registry, CHALLENGER)) == (None, None)
    version = project.registry.version("1")
    assert version.decision == "unsound"
    assert "C8" in version.tags["gate.reasons"]
    assert "there is still no champion: the evaluation of windtunnel version 1 is unsound" in summary_markdown(found)
    assert "C8" in summary_markdown(found)
    for _ in range(2):  # a schedule that calls it again sees the same, and why
        again = project.retrain()
        assert (again.status, again.exit_code, again.remembered, project.ran) == (
            RetrainStatus.UNSOUND,
            20,
            True,
            ["prepare"],
        )
        assert "C8" in summary_markdown(again)
    with pytest.raises(UserError, match=r"the evaluation is unsound.*C8"):
        promote_version(project.registry, "1", force=True)
    with pytest.raises(UserError, match="promote: sanity check C8 failed"):
        promote_last_run(project.registry)


def test_an_evaluation_that_became_unsound_is_not_green_because_the_weights_are_the_champions(project, monkeypatch):
    """Params that do not touch training give the champion's weights again; the evaluation of today decides all the same."""
    from windtunnel.operations.stages import gate
    from windtunnel.records.files import read_json, write_json
    from windtunnel.records.layout import GATE

    sound = gate.main

    def unsound():
        sound()
        hard = ["fgsm: the examples are not in the tensors"]
        write_json({**read_json(GATE), "decision": "unsound", "exit_code": 20, "hard_failures": hard}, GATE)

    assert project.retrain().status is RetrainStatus.PROMOTED
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("epsilon: 0.03", "epsilon: 0.02"))
    monkeypatch.setattr(gate, "main", unsound)
    for remembered in (False, True):
        found = project.retrain(allow_dirty=True)
        assert (found.status, found.exit_code, found.remembered) == (RetrainStatus.UNSOUND, 20, remembered)
        assert "the examples are not in the tensors" in summary_markdown(found)
    monkeypatch.setattr(gate, "main", sound)
    Path("params.yaml").write_text(text)
    assert project.retrain().exit_code == 0
    assert number(project.registry, CHAMPION) == "1"
