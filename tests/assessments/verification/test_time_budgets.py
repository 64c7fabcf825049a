"""What a time budget pays for, counted: which work begins when its time is over, or nearly over."""

import time

import pytest
import torch
from balls import budget, entry, first

from windtunnel.assessments.verification import assess as pipeline
from windtunnel.assessments.verification import falsifier
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.branch_and_bound import session as search_session
from windtunnel.assessments.verification.cascade import attack_step, solver_step, steps
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.boundary.models.load import export_onnx
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.errors import OutOfTimeError


@pytest.fixture
def counted(monkeypatch):
    """Let calls of a function be counted: counted(where, name) gives the list of them."""

    def count(where, name):
        calls, function = [], getattr(where, name)

        def watched(*args, **kwargs):
            calls.append(args)
            return function(*args, **kwargs)

        monkeypatch.setattr(where, name, watched)
        return calls

    return count


def test_radii_are_not_searched_when_time_is_over(digits_subject, counted):
    bounded, broken = counted(steps, "bound_all"), counted(attack_step, "run_batches")
    given = entry("crown", time_budget=1e-6, radius={"max": 0.3, "tolerance": 1e-4})
    assess("v", given, budget(0.05), first(digits_subject, 10))
    assert not bounded
    assert not broken


def test_the_falsifier_of_radii_ends_at_the_deadline(digits_subject, counted):
    descents = counted(falsifier, "_descend")
    radii = torch.full((len(digits_subject.dataset),), 0.1)
    for left, expected in ((-1.0, 0), (600.0, falsifier.RESTARTS)):
        work = attack_step.Falsification(digits_subject, Norm.LINF, radii, Deadline(time.monotonic() + left))
        work(Batch(0, torch.arange(4), 0))
        assert len(descents) == expected


def test_a_search_ends_before_a_piece_of_work_that_would_end_too_late(monkeypatch):
    """Interrupted in the middle of one, it would lose what it has counted since it was asked last."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    after, answers = search_session._After(110.0), []
    for at in (101.0, 109.0, 109.4, 109.9, 109.95):  # of a long piece of work half a second is counted
        now[0] = at
        answers.append(after())
    assert answers == [False, False, False, True, True]


def test_the_solver_does_not_begin_with_less_time_than_a_query_has(digits_subject, counted):
    exports = counted(solver_step, "graph_for_marabou")
    result = assess("m", entry("linf-box", time_budget=0.9), budget(0.3), first(digits_subject, 4))
    assert not exports
    undecided = result.data["verdicts"] == Verdict.UNKNOWN
    assert torch.equal(undecided, result.data["timed_out"])
    assert undecided.any()


def test_an_export_that_is_interrupted_is_no_model_that_cannot_be_exported(digits_subject, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise OutOfTimeError

    monkeypatch.setattr(torch.onnx, "export", interrupted)
    with pytest.raises(OutOfTimeError):
        export_onnx(digits_subject.classifier, tmp_path / "model.onnx")


def test_imports_are_not_the_budgets(digits_subject, monkeypatch):
    """A clock that imports move on by more than the budget has."""
    clock, moved = time.monotonic, [0.0]

    def imported(_):
        moved[0] += 1e6

    monkeypatch.setattr(pipeline, "load_steps", imported)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + moved[0])
    result = assess("v", entry("crown", time_budget=5e5), budget(1e-4), first(digits_subject, 4))
    assert moved == [1e6]
    assert not result.data["timed_out"].any()
    assert (result.data["verdicts"] == Verdict.VERIFIED).any()
