"""The registry says what was measured: each algorithm is run, twice under one seed and once under another."""

from dataclasses import replace

import pytest
import torch
from cheap import GLOBAL, cheap_entry, cheap_epsilon, is_ensemble, needs_own_model
from foolbox.attacks import brendel_bethge
from torch import Tensor, nn

import windtunnel.assessments.attacks.assess as pipeline
from tests.conftest import classifier_of
from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.assessments.attacks.rows import AttackRow, Invoker, Targeting
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Norm, Randomness, ThreatModel, Verdict
from windtunnel.core.distances import distance, within
from windtunnel.core.seeds import random_runs
from windtunnel.core.subject import Subject, subject_of

RUNNABLE = [row for row in ROWS.values() if not (is_ensemble(row) or needs_own_model(row) or row.transforms)]
AIMING = [row for row in RUNNABLE if row.targeting is not Targeting.NO and "Brendel" not in row.algorithm.name]


def name_of(row: AttackRow) -> str:
    return f"{row.algorithm.library}-{row.algorithm.name}"


class ColourModel(nn.Module):
    """A three-channel classifier: the grey one on a weighted sum of channels."""

    def __init__(self, grey: nn.Module) -> None:
        super().__init__()
        self.grey = grey
        self.register_buffer("weights", torch.tensor([0.5, 0.3, 0.2]).view(1, 3, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.grey((inputs * self.weights).sum(1, keepdim=True))
        return logits


def right_ones(subject: Subject, n: int) -> Subject:
    return subject.subset(subject.clean_correct.nonzero().flatten()[:n])


@pytest.fixture(scope="module")
def grey(digits_subject: Subject) -> Subject:
    return right_ones(digits_subject, 6)


@pytest.fixture(scope="module")
def colour(digits_subject: Subject) -> Subject:
    tint = torch.tensor([1.0, 0.9, 0.8]).view(1, 3, 1, 1)
    data = digits_subject.dataset
    coloured = replace(data, inputs=data.inputs.repeat(1, 3, 1, 1) * tint)
    model = classifier_of(ColourModel(digits_subject.classifier.module), 10, (3, 8, 8))
    return right_ones(subject_of(model, coloured), 6)


def run_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run foolbox's Brendel-Bethge optimisers as the Python that they are written in: numba takes 15 to 35 s to compile each."""
    for name in ("BFGSB", "L0Optimizer", "L1Optimizer", "LinfOptimizer"):
        monkeypatch.setattr(brendel_bethge, name, getattr(brendel_bethge, name).__bases__[0])


@pytest.mark.slow
@pytest.mark.parametrize("row", RUNNABLE, ids=name_of)
def test_algorithm_is_what_the_registry_says(
    row: AttackRow, grey: Subject, colour: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[Tensor] = []

    def spy(classifier, row, budget, clean, raw, *rest):
        returned.append(distance(budget.norm, raw, clean))
        return real(classifier, row, budget, clean, raw, *rest)

    real = pipeline.evaluate
    monkeypatch.setattr(pipeline, "evaluate", spy)
    if "Brendel" in row.algorithm.name and row.algorithm.norm is not Norm.L2:  # L2's runs compiled, as users have it
        run_uncompiled(monkeypatch)
    entry = cheap_entry(row)
    preflight("attacks.it", entry, GLOBAL, grey.classifier, grey.dataset)
    first, again, other = (assess("it", entry, GLOBAL, replace(grey, seed=seed)) for seed in (0, 0, 1))
    for key, tensor in first.data.items():
        assert torch.equal(tensor, again.data[key]), f"{key} differs under one seed"
    changed = not torch.equal(first.data["perturbed_inputs"], other.data["perturbed_inputs"])
    assert changed == (row.algorithm.randomness is not Randomness.DETERMINISTIC)
    if row.epsilon is not None and row.invoker is not Invoker.ANY_DISTANCE:
        assert float(returned[0].max()) <= cheap_epsilon(row) * 1.001, "the library goes beyond its budget"
    backward = first.metrics["mean_backward_passes"]
    assert (backward > 0) == (row.algorithm.threat_model is ThreatModel.WHITE_BOX)
    assess("it", entry, GLOBAL, colour)


TINY = {Norm.LINF: 1e-4, Norm.L2: 1e-3, Norm.L1: 5e-3}
BOUNDED = [row for row in RUNNABLE if row.epsilon and not row.algorithm.minimum_norm]


@pytest.mark.slow
@pytest.mark.parametrize("row", BOUNDED, ids=name_of)
def test_what_an_attack_returns_where_it_failed_is_what_the_registry_says(row: AttackRow, grey: Subject) -> None:
    entry = cheap_entry(row)
    budget = entry.budget.model_copy(update={"epsilon": TINY[row.algorithm.norm or Norm.LINF]})
    two = grey.subset(torch.arange(2))
    data = assess("it", entry.model_copy(update={"budget": budget}), GLOBAL, two).data
    assert (data["verdicts"] == Verdict.ATTACK_FAILED).all()
    kept = torch.equal(data["perturbed_inputs"], data["clean_inputs"])
    assert kept == row.keeps_clean


FIXABLE = [row for row in RUNNABLE if row.fixed_by]


@pytest.mark.parametrize("row", FIXABLE, ids=name_of)
def test_semantics_follow_the_parameters_that_switch_randomness_off(row: AttackRow, grey: Subject) -> None:
    two = grey.subset(torch.arange(2))
    entry = cheap_entry(row)
    fixed = entry.model_copy(update={"params": {**entry.params, **dict(row.fixed_by)}})
    first, other = (assess("it", fixed, GLOBAL, replace(two, seed=seed)) for seed in (0, 1))
    assert torch.equal(first.data["perturbed_inputs"], other.data["perturbed_inputs"])
    assert random_runs(first.semantics.algorithm, first.draws) == ()
    drawn, again = (assess("it", entry.model_copy(update={"restarts": n}), GLOBAL, two) for n in (1, 10))
    for result, code in ((drawn, "one_random_run"), (again, "random_runs")):
        assert result.semantics.algorithm.randomness is row.algorithm.randomness
        assert [c.code for c in random_runs(result.semantics.algorithm, result.draws)] == [code]


SEARCHING = [row for row in RUNNABLE if row.algorithm.minimum_norm and "Brendel" not in row.algorithm.name]


@pytest.mark.slow
@pytest.mark.parametrize("row", SEARCHING, ids=name_of)
def test_distance_an_attack_finds_does_not_depend_on_the_budget(row: AttackRow, grey: Subject) -> None:
    """A minimum-norm attack knows no epsilon; what lies beyond it must not be lost."""
    norm = row.algorithm.norm or Norm.LINF
    two = grey.subset(torch.arange(2))
    found = []
    for epsilon in (TINY.get(norm, 1.0), 0.9 if norm is Norm.LINF else 60.0):
        entry = cheap_entry(row)
        budget = entry.budget.model_copy(update={"epsilon": epsilon})
        found.append(assess("it", entry.model_copy(update={"budget": budget}), GLOBAL, two))
    assert torch.equal(*(f.data["perturbed_inputs"] for f in found))
    assert len({f.metrics["success_rate_any_distance"] for f in found}) == 1


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_fab_breaks_within_epsilon_what_the_library_breaks(norm: str, grey: Subject) -> None:
    import torchattacks

    from windtunnel.assessments.attacks.torchattacks.adapter import NearestFAB

    epsilon = {"Linf": 0.12, "L2": 0.7}[norm]
    inputs, targets = grey.dataset.inputs, grey.dataset.targets
    settings = {"norm": norm, "eps": epsilon, "steps": 5, "n_restarts": 2, "multi_targeted": True}
    theirs, ours = (
        attack(grey.classifier.module, **settings)(inputs, targets) for attack in (torchattacks.FAB, NearestFAB)
    )
    broken = (theirs != inputs).flatten(1).any(1)
    assert 0 < int(broken.sum()) < len(broken)
    assert torch.equal(ours[broken], theirs[broken])
    assert (distance(Norm(norm), ours[~broken], inputs[~broken]) > epsilon).all()


def test_an_ensemble_keeps_the_clean_input_as_its_members_do() -> None:
    assert all(row.keeps_clean for row in ROWS.values() if is_ensemble(row))


@pytest.mark.slow
@pytest.mark.parametrize("row", AIMING, ids=name_of)
def test_targeted_attack_moves_towards_its_target(row: AttackRow, grey: Subject) -> None:
    """Over six samples the mean logit margin of the target grows, or the target is reached."""
    aimed = cheap_entry(row, target_classes="next")
    result = assess("it", aimed, GLOBAL, grey)
    aims = result.data["target_classes"]
    won = result.data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert torch.equal(result.data["perturbed_predictions"][won], aims[won])
    assert within(result.data["perturbation_distance"][won], cheap_epsilon(row)).all()
    margin = [
        float((x.gather(1, aims[:, None]).squeeze(1) - x.gather(1, grey.dataset.targets[:, None]).squeeze(1)).mean())
        for x in (grey.clean_logits, result.data["perturbed_logits"])
    ]
    unmoved = torch.equal(result.data["perturbed_inputs"], grey.dataset.inputs)
    assert unmoved or margin[1] > margin[0]


@pytest.mark.slow
def test_binarization_refinement_runs_on_a_model_that_binarises(digits_subject: Subject) -> None:
    class Binarised(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            hard = (x >= 0.5).float()
            logits: Tensor = self.inner(hard + (x - x.detach()))
            return logits

    model = classifier_of(Binarised(digits_subject.classifier.module), 10, (1, 8, 8))
    subject = right_ones(subject_of(model, digits_subject.dataset), 6)
    result = assess("it", cheap_entry(ROWS["foolbox", "BinarizationRefinementAttack"]), GLOBAL, subject)
    assert result.metrics["success_rate_any_distance"] > 0


def test_every_algorithm_of_the_peer_is_offered(shared) -> None:
    text = (shared / "docs" / "algorithms.md").read_text()
    for library, section in (("torchattacks", 0), ("foolbox", 1)):
        body = text.split("\n## ")[section + 1]
        names = [line.split("|")[1].strip() for line in body.splitlines() if line.startswith("| ")][2:]
        missing = [name for name in names if (library, name) not in ROWS]
        assert not missing
    for key in (("torchattacks", "LGV"), ("torchattacks", "MultiAttack"), ("foolbox", "SpatialAttack")):
        assert key in ROWS
