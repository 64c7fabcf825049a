"""Attacks of the user's own, stand-ins for gradients that mislead, and means over draws."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.assessments.attacks.own_attacks import Noisy, Quantised
from tests.conftest import classifier_of
from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.gradients import MeanOverDraws, StraightThrough
from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.core.contracts import Verdict
from windtunnel.core.distances import distance
from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.result import AssessmentResult

HERE = "tests.assessments.attacks.own_attacks"
BUDGET = Budget(norm="Linf", epsilon=0.1)
PGD, SQUARE = ({"library": "torchattacks", "algorithm": name} for name in ("PGD", "Square"))


def run(subject: Subject, **entry: object) -> AssessmentResult:
    """An entry through what a stage does: its preflight, then the attack."""
    made = AttackEntry.model_validate({"library": "function", **entry})
    preflight("attacks.mine", made, BUDGET, subject.classifier, subject.dataset)
    return assess("mine", made, BUDGET, subject)


def behind(defence, subject: Subject) -> Subject:
    """The subject's network behind a defence; targets and samples are the same."""
    module = defence(subject.classifier.module)
    return subject_of(classifier_of(module, 10, (1, 8, 8), defence.__name__), subject.dataset)


def left(result: AssessmentResult) -> float:
    """Adversarial accuracy."""
    return float(result.metrics["adversarial_accuracy"])


def test_an_own_attack_does_what_the_librarys_does(digits_subject):
    """PGD without a random start is the same algorithm, whoever wrote it."""
    mine = run(digits_subject, algorithm=f"{HERE}:signed_steps", budget={"steps": 10, "step_size": 0.025})
    theirs = run(digits_subject, library="torchattacks", algorithm="PGD", params={"random_start": False},
                 budget={"steps": 10, "step_size": 0.025})  # fmt: skip
    assert torch.equal(mine.data["verdicts"], theirs.data["verdicts"])
    assert torch.allclose(mine.data["perturbed_inputs"], theirs.data["perturbed_inputs"], atol=1e-6)
    assert 0 < left(mine) < 0.9


def test_it_is_evaluated_as_any_other(digits_subject):
    """What leaves the budget is projected, passes are counted, the record says what ran, and two runs are equal bytes."""
    distances = run(digits_subject, algorithm=f"{HERE}:too_far")
    moved = distance("Linf", distances.data["perturbed_inputs"], distances.data["clean_inputs"])
    assert float(moved.max()) <= 0.1 + 1e-6
    assert "beyond_budget" in {c.code for c in distances.caveats}
    first, second = (
        run(digits_subject, algorithm=f"{HERE}:signed_steps", params={"start": True, "steps": 4}) for _ in range(2)
    )
    assert torch.equal(first.data["perturbed_inputs"], second.data["perturbed_inputs"])
    attacked = first.data["attacked"]
    assert (first.data["backward_passes"][attacked] == 4).all()
    assert first.semantics.algorithm.name == f"{HERE}:signed_steps"
    assert first.call_kwargs["steps"] == 4
    broken = first.data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert (first.data["perturbed_predictions"] != first.data["targets"])[broken].all()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"algorithm": "signed_steps"}, r"attacks\.mine\.algorithm: 'signed_steps' is not of the form module:function"),
        ({"algorithm": f"{HERE}:signed_step"}, r"attacks\.mine\.algorithm.*signed_step.*signed_steps"),
        ({"algorithm": "no_such_module:attack"}, r"attacks\.mine\.algorithm: cannot import 'no_such_module'"),
        ({"algorithm": f"{HERE}:takes_too_little"}, r"is called with \(model, inputs, labels, budget, seed\)"),
        ({"algorithm": f"{HERE}:signed_steps", "params": {"step": 3}}, r"unexpected keyword argument 'step'"),
        ({"algorithm": f"{HERE}:signed_steps", "params": {"steps": "many"}}, r"params\.steps: 'many' is not a number"),
        ({"algorithm": f"{HERE}:wrong_shape"}, r"returned \(\d+, 1, 8, 8\), not a tensor"),
        ({"algorithm": f"{HERE}:raises"}, r"raises raised ZeroDivisionError: .*own_attacks.py, line 30: no epsilon today"),
        ({**SQUARE, "adapt": f"{HERE}:without_the_staircase"}, r"\.adapt: Square asks for no gradient"),
        ({**SQUARE, "eot": 5}, r"\.eot: Square asks for no gradient"),
        ({**PGD, "adapt": f"{HERE}:nothing_to_call"}, r"\.adapt: returned a int"),
        ({**PGD, "adapt": f"{HERE}:without_the_staircase"}, r"\.adapt raised AttributeError"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_one_line(digits_subject, entry, says):
    with pytest.raises(UserError, match=says) as found:
        run(digits_subject, **entry)
    assert "\n" not in str(found.value)


def test_a_staircase_hides_the_gradient_and_a_stand_in_finds_it(digits_subject):
    """Of what the staircase seems to protect nothing is left, to at most a point above the network without it."""
    defended = behind(Quantised, digits_subject)
    pgd = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": 0.02}}
    masked = run(defended, **pgd)
    adapted = run(defended, **pgd, adapt=f"{HERE}:without_the_staircase")
    undefended = run(digits_subject, **pgd)
    assert left(masked) > left(undefended) + 0.2
    assert left(adapted) <= left(undefended) + 0.01
    answers = defended.classifier.predict(adapted.data["perturbed_inputs"])
    assert torch.equal(answers, adapted.data["perturbed_predictions"])  # evaluated on the model, not on its stand-in
    assert adapted.kwargs["adapt"] == f"{HERE}:without_the_staircase"


def test_a_mean_over_draws_is_nearer_to_the_expectation(digits_subject):
    """The mean of 32 gradients points closer to the mean of 512 than one does, and breaks at least as much on average."""
    noisy = Noisy(digits_subject.classifier.module)
    x, y = digits_subject.dataset.inputs[:16], digits_subject.dataset.targets[:16]

    def gradient(draws: int, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        point = x.clone().requires_grad_()
        torch.nn.functional.cross_entropy(MeanOverDraws(noisy, draws)(point), y).backward()
        return point.grad.flatten()

    true = gradient(512, 0)
    one, many = (torch.cosine_similarity(gradient(draws, 1), true, dim=0) for draws in (1, 32))
    assert many > one + 0.1
    result = run(behind(Noisy, digits_subject), library="torchattacks", algorithm="PGD", eot=4,
                 budget={"steps": 5, "step_size": 0.05})  # fmt: skip
    assert result.kwargs["eot"] == 4
    assert (result.data["backward_passes"][result.data["attacked"]] >= 5 * 4).all()


def test_a_stand_in_that_is_a_module_is_in_eval_mode():
    assert not StraightThrough(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).surrogate.training


def test_straight_through_is_the_model_with_another_derivative():
    """Forward the staircase, backward the identity: d/dx of the sum is 1 everywhere."""
    x = torch.linspace(0, 1, 7).view(1, -1).requires_grad_()
    found = StraightThrough(torch.nn.Sequential(), lambda v: v)
    staircase = StraightThrough(_Round(), lambda v: v)
    assert torch.equal(found(x), x)
    assert torch.equal(staircase(x), x.round())
    staircase(x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


class _Round(torch.nn.Module):
    def forward(self, x):
        return x.round()


def test_the_samples_of_an_own_attack_can_be_those_that_others_left(digits_subject):
    """An own attack composes with restarts as any."""
    result = run(replace(digits_subject), algorithm=f"{HERE}:signed_steps", restarts=2, params={"start": True})
    assert result.kwargs["runs"] == [f"{HERE}:signed_steps"] * 2


def test_the_example_of_the_docs_runs_as_it_stands(digits_subject, tmp_path, monkeypatch):
    """At most 15 lines, beside params.yaml, stronger than one step."""
    page = Path(__file__).parents[3] / "docs" / "how-to" / "own-attack.md"
    (code,) = [block.split("```")[0] for block in page.read_text().split("```python\n") if "def my_attack(" in block]
    assert len(code.strip().splitlines()) <= 15
    (tmp_path / "my_attacks.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = run(digits_subject, algorithm="my_attacks:my_attack", params={"pull": 0.5}, budget={"steps": 10})
    once = run(digits_subject, library="torchattacks", algorithm="FGSM")
    assert left(mine) < left(once)
