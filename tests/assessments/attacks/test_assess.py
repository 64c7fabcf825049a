"""What an attack's numbers mean, on models whose robustness is known or easily checked."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchattacks
from torch import Tensor

import windtunnel.assessments.attacks.assess as pipeline
from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.evaluate import evaluate, project
from windtunnel.assessments.attacks.metrics import attack_metrics, transfer_metrics
from windtunnel.assessments.attacks.state import MISCLASSIFIED_CLEAN, NOT_BROKEN
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Norm, PerturbationBudget, Verdict
from windtunnel.core.distances import distance, within
from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject
from windtunnel.evaluation.summary.evidence import region_evidence
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.records.files import DATA_FILE, file_digest
from windtunnel.records.regions import PerturbationBall

LINF = Budget(norm=Norm.LINF, epsilon=0.06)
FIRST = [
    {"library": "torchattacks", "algorithm": "FGSM"},
    {"library": "torchattacks", "algorithm": "PGD"},
    {"library": "torchattacks", "algorithm": "PGDL2", "budget": {"norm": "L2", "epsilon": 0.5}},
    {"library": "torchattacks", "algorithm": "CW", "budget": {"norm": "L2", "epsilon": 0.5}},
    {"library": "torchattacks", "algorithm": "Square", "params": {"n_queries": 50}},
    {"library": "foolbox", "algorithm": "LinfPGD"},
    {"library": "foolbox", "algorithm": "L2DeepFoolAttack", "budget": {"norm": "L2", "epsilon": 0.5}},
    {"library": "windtunnel", "algorithm": "quick"},
]


def entry_of(**keys: object) -> AttackEntry:
    return AttackEntry(**{"library": "torchattacks", "algorithm": "PGD", **keys})


def tensor(result, key: str) -> Tensor:
    value = result.data[key]
    assert isinstance(value, Tensor)
    return value


@pytest.mark.parametrize("keys", FIRST, ids=lambda keys: keys["algorithm"])
def test_success_is_what_the_stored_tensor_does_within_the_budget(keys, digits_subject: Subject) -> None:
    entry = entry_of(**keys)
    result = assess("it", entry, LINF, digits_subject)
    budget = entry.budget.over(LINF)
    inputs, succeeded = tensor(result, "perturbed_inputs"), tensor(result, "verdicts") == Verdict.ATTACK_SUCCEEDED
    assert torch.equal(digits_subject.classifier.predict(inputs), tensor(result, "perturbed_predictions"))
    wrong = tensor(result, "perturbed_predictions") != digits_subject.dataset.targets
    near = within(distance(budget.norm, inputs, digits_subject.dataset.inputs), budget.epsilon)
    assert torch.equal(succeeded, wrong & near)
    assert inputs.min() >= 0
    assert inputs.max() <= 1


@pytest.mark.parametrize("keys", FIRST, ids=lambda keys: keys["algorithm"])
def test_every_metric_can_be_recomputed_from_disk(keys, digits_subject: Subject, tmp_path: Path) -> None:
    result = assess("it", entry_of(**keys), LINF, digits_subject)
    write_artifacts(result, tmp_path, digits_subject, started=0.0)
    found = read_artifacts(tmp_path)
    region = result.semantics.perturbation
    assert isinstance(region, PerturbationBudget)
    assert attack_metrics(found.data, region.norm, result.semantics.algorithm, 10) == found.metrics


def test_two_runs_write_equal_bytes(digits_subject: Subject, tmp_path: Path) -> None:
    for name in "ab":
        write_artifacts(assess("it", entry_of(), LINF, digits_subject), tmp_path / name, digits_subject, started=0.0)
    for file in ("robustness_data.pt", "metadata.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_misclassified_samples_are_not_attacked_and_count_as_not_robust(digits_subject: Subject) -> None:
    result = assess("it", entry_of(), LINF, digits_subject)
    wrong = ~digits_subject.clean_correct
    assert wrong.any()
    assert not tensor(result, "attacked")[wrong].any()
    assert torch.equal(tensor(result, "perturbed_inputs")[wrong], digits_subject.dataset.inputs[wrong])
    assert (tensor(result, "perturbation_distance")[wrong] == 0).all()
    assert (tensor(result, "broken_by")[wrong] == MISCLASSIFIED_CLEAN).all()
    m = result.metrics
    assert m["n_attacked"] == int((~wrong).sum())
    assert m["attack_success_rate"] == m["n_succeeded"] / m["n_attacked"]
    assert m["adversarial_accuracy"] == pytest.approx((m["n_attacked"] - m["n_succeeded"]) / m["n_samples"])
    assert m["success_rate_all_samples"] == pytest.approx(1 - m["adversarial_accuracy"])


def test_target_is_label_means_not_attacked_and_not_broken(digits_subject: Subject, tmp_path: Path) -> None:
    """One target class for all: the samples of that class are right at distance 0, which is no success of anybody."""
    tiny = Budget(norm=Norm.LINF, epsilon=0.001)
    result = assess("it", entry_of(target_classes=3), tiny, digits_subject)
    same = digits_subject.dataset.targets == 3
    assert (same & digits_subject.clean_correct).any()
    assert "target_is_label" in {caveat.code for caveat in result.caveats}
    assert not tensor(result, "attacked")[same].any()
    assert (tensor(result, "verdicts")[same] == Verdict.ATTACK_FAILED).all()
    m = result.metrics
    assert m["n_succeeded"] == 0
    assert m["adversarial_accuracy"] == m["clean_accuracy"]
    # Only a misclassified sample that is predicted as the target is the adversary's without an attack.
    given = (digits_subject.clean_predictions == 3) & ~same
    assert m["success_rate_all_samples"] == pytest.approx(float(given.double().mean()))
    written = write_artifacts(result, tmp_path / "it", digits_subject, started=0.0)
    found = region_evidence(PerturbationBall(Norm.LINF, 0.001), written, [written])
    assert torch.equal(found.drawn, ~same)
    assert torch.equal(found.misclassified, ~digits_subject.clean_correct)
    assert not found.broken.any()


def test_no_attack_breaks_a_linear_sample_inside_its_exact_radius(linear_subject: Subject) -> None:
    weight = linear_subject.classifier.module[1].weight
    logits, labels = linear_subject.clean_logits, linear_subject.dataset.targets
    margin = logits.gather(1, labels[:, None]) - logits
    for norm, dual, algorithm, library, epsilon in (
        (Norm.LINF, 1, "PGD", "torchattacks", 0.05),
        (Norm.L2, 2, "L2DeepFoolAttack", "foolbox", 0.3),
        (Norm.LINF, 1, "quick", "windtunnel", 0.05),
    ):
        size = (weight[labels][:, None] - weight[None]).norm(p=dual, dim=2)
        radius = (margin / size).nan_to_num(torch.inf).where(size > 0, torch.inf).amin(1)
        entry = entry_of(library=library, algorithm=algorithm)
        result = assess("it", entry, Budget(norm=norm, epsilon=epsilon), linear_subject)
        broken = (tensor(result, "verdicts") == Verdict.ATTACK_SUCCEEDED) & tensor(result, "attacked")
        assert broken.any()
        assert (radius[broken] <= epsilon * 1.0001).all()
        assert (tensor(result, "perturbation_distance")[broken] >= radius[broken] * 0.999).all()


def test_a_batch_does_not_depend_on_the_other_batches(digits_subject: Subject) -> None:
    few = digits_subject.subset(digits_subject.clean_correct.nonzero().flatten()[:30])
    entry = entry_of(batch_size=10)
    whole = assess("it", entry, LINF, few)
    first = assess("it", entry, LINF, few.subset(torch.arange(10)))
    assert torch.equal(tensor(whole, "perturbed_inputs")[:10], tensor(first, "perturbed_inputs"))


def test_a_killed_run_continues_to_the_same_result(digits_subject: Subject, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    entry, whole = entry_of(batch_size=20), assess("it", entry_of(batch_size=20), LINF, digits_subject)
    calls: list[int] = []
    real = pipeline.perturb_by_label

    def dies(request, *rest):
        calls.append(len(request.inputs))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(request, *rest)

    monkeypatch.setattr(pipeline, "perturb_by_label", dies)
    with pytest.raises(KeyboardInterrupt):
        assess("it", entry, LINF, digits_subject)
    again = assess("it", entry, LINF, digits_subject)
    assert len(calls) == 4 + (whole.metrics["n_attacked"] - 1) // 20 + 1 - 3  # three batches were kept
    for key, value in whole.data.items():
        assert torch.equal(value, again.data[key])


def test_restarts_attack_only_what_is_left_and_never_lose(digits_subject: Subject) -> None:
    once, thrice = (assess("it", entry_of(restarts=n), LINF, digits_subject) for n in (1, 3))
    broken = tensor(once, "verdicts") == Verdict.ATTACK_SUCCEEDED
    assert (tensor(thrice, "verdicts")[broken] == Verdict.ATTACK_SUCCEEDED).all()
    attacked = tensor(thrice, "attacked")
    first = attacked & (tensor(thrice, "broken_by") == 0)
    never = attacked & (tensor(thrice, "broken_by") == NOT_BROKEN)
    assert (tensor(thrice, "forward_passes")[first] == 10).all()
    assert (tensor(thrice, "forward_passes")[never] == 30).all()


def test_ensemble_is_the_worst_case_of_its_members(digits_subject: Subject) -> None:
    ensemble = assess("it", entry_of(library="windtunnel", algorithm="quick"), LINF, digits_subject)
    fgsm = assess("it", entry_of(algorithm="FGSM"), LINF, digits_subject)
    broken = tensor(fgsm, "verdicts") == Verdict.ATTACK_SUCCEEDED
    assert (tensor(ensemble, "verdicts")[broken] == Verdict.ATTACK_SUCCEEDED).all()
    assert (tensor(ensemble, "broken_by")[broken & digits_subject.clean_correct] == 0).all()
    assert ensemble.kwargs["runs"] == ["FGSM", "APGD-CE", "APGD-T"]


def test_attack_on_survivors_spares_what_others_broke(digits_subject: Subject, tmp_path: Path) -> None:
    fgsm = write_artifacts(
        assess("fgsm", entry_of(algorithm="FGSM"), LINF, digits_subject), tmp_path, digits_subject, started=0.0
    )
    entry = entry_of(on={"survivors_of": ["fgsm"]})
    with pytest.raises(UserError, match=r"attacks\.pgd\.on\.survivors_of: no result of attacks\.fgsm"):
        assess("pgd", entry, LINF, digits_subject)
    result = assess("pgd", entry, LINF, digits_subject, {"fgsm": fgsm})
    broken = fgsm.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
    assert not tensor(result, "attacked")[broken].any()
    assert (tensor(result, "verdicts")[broken] == Verdict.ATTACK_SUCCEEDED).all()
    assert result.metrics["adversarial_accuracy"] <= fgsm.metrics["adversarial_accuracy"]
    assert "survivors_only" in [caveat.code for caveat in result.caveats]
    assert result.kwargs["survivors_of"] == {"fgsm": file_digest(tmp_path / DATA_FILE)}
    # Broken at a larger epsilon is not broken at this one.
    tight = assess("pgd", entry, Budget(norm=Norm.LINF, epsilon=0.01), digits_subject, {"fgsm": fgsm})
    assert torch.equal(tensor(tight, "attacked"), digits_subject.clean_correct)


@pytest.mark.parametrize("rule", ["next", "least_likely", "random", 3])
def test_targeted_success_is_the_target_and_nothing_else(rule, digits_subject: Subject) -> None:
    budget = Budget(norm=Norm.LINF, epsilon=0.2)
    result = assess("it", entry_of(target_classes=rule, budget={"steps": 60}), budget, digits_subject)
    aims, predictions = tensor(result, "target_classes"), tensor(result, "perturbed_predictions")
    succeeded = tensor(result, "verdicts") == Verdict.ATTACK_SUCCEEDED
    has_aim = aims != digits_subject.dataset.targets
    assert torch.equal(succeeded, (predictions == aims) & has_aim)
    assert (succeeded & tensor(result, "attacked")).any()
    assert not tensor(result, "attacked")[~has_aim].any()
    if rule != 3:
        assert has_aim.all()


def test_budget_is_enforced_whatever_the_library_returns(linear_subject: Subject) -> None:
    clean, labels = linear_subject.dataset.inputs[:4], linear_subject.dataset.targets[:4]
    returned = 1 - clean
    returned[3] = torch.nan
    for norm, epsilon in ((Norm.LINF, 0.1), (Norm.L2, 0.5), (Norm.L1, 2.0), (Norm.L0, 5.0)):
        budget = PerturbationBudget(norm, epsilon)
        held = evaluate(linear_subject.classifier, ROWS["torchattacks", "PGD"], budget, clean, returned, labels, None)
        assert within(held.distances, epsilon).all()
        assert held.beyond.tolist() == [True, True, True, False]
        assert held.repaired.tolist() == [False, False, False, True]
        free = evaluate(linear_subject.classifier, ROWS["torchattacks", "CW"], budget, clean, returned, labels, None)
        assert torch.equal(free.perturbed[:3], returned[:3])
        assert not free.succeeded[:3].any()


@pytest.mark.parametrize(("norm", "epsilon"), [(Norm.LINF, 0.1), (Norm.L2, 0.7), (Norm.L1, 3.0), (Norm.L0, 7.0)])
def test_projection_lands_on_the_ball_and_keeps_what_is_inside(norm: Norm, epsilon: float) -> None:
    clean, distances = torch.rand(2, 5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pulled = project(norm, epsilon, distances, clean)
    assert torch.allclose(distance(norm, pulled, clean), torch.full((5,), epsilon), rtol=1e-4)
    assert torch.equal(project(norm, epsilon, clean, clean), clean)


def test_epsilon_of_nothing_leaves_clean_accuracy(digits_subject: Subject) -> None:
    result = assess("it", entry_of(), Budget(norm=Norm.LINF, epsilon=1e-9), digits_subject)
    assert result.metrics["adversarial_accuracy"] == result.metrics["clean_accuracy"]


def test_transfer_to_the_same_model_is_complete(digits_subject: Subject) -> None:
    others = {"itself": digits_subject.classifier}
    result = assess("it", entry_of(), LINF, digits_subject, None, others)
    assert result.metrics["transfer"]["itself"]["transfer_rate"] == 1
    assert result.metrics["transfer"]["itself"]["n_examples"] == result.metrics["n_succeeded"]


def test_transfer_counts_what_the_other_model_had_right(digits_subject: Subject, mlp_subject: Subject) -> None:
    result = assess(
        "it", entry_of(), Budget(norm=Norm.LINF, epsilon=0.3), digits_subject, None, {"mlp": mlp_subject.classifier}
    )
    wins = (
        (tensor(result, "verdicts") == Verdict.ATTACK_SUCCEEDED)
        & tensor(result, "attacked")
        & mlp_subject.clean_correct
    )
    wrong = mlp_subject.classifier.predict(tensor(result, "perturbed_inputs")) != mlp_subject.dataset.targets
    found = result.metrics["transfer"]["mlp"]
    assert found["n_examples"] == int(wins.sum())
    assert found["transfer_rate"] == pytest.approx(float(wrong[wins].double().mean()))
    assert 0 < found["transfer_rate"] < 1
    assert transfer_metrics(result.data, ["mlp"]) == {"transfer": {"mlp": found}}


def test_nothing_to_attack_is_said_and_not_a_crash(digits_subject: Subject) -> None:
    wrong = digits_subject.subset((~digits_subject.clean_correct).nonzero().flatten())
    result = assess("it", entry_of(), LINF, wrong)
    assert "nothing_attacked" in [caveat.code for caveat in result.caveats]
    assert result.metrics["adversarial_accuracy"] == 0
    assert result.metrics["attack_success_rate"] == 0


def test_libraries_leave_the_model_and_the_global_streams_as_they_were(digits_subject: Subject) -> None:
    before = torch.random.get_rng_state()
    assess("it", entry_of(algorithm="Square", params={"n_queries": 5}), LINF, replace(digits_subject, seed=3))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not digits_subject.classifier.module.training


def test_passes_are_counted(digits_subject: Subject) -> None:
    result = assess("it", entry_of(budget={"steps": 7}), LINF, digits_subject)
    assert result.metrics["mean_forward_passes"] == 7
    assert result.metrics["mean_backward_passes"] == 7
    assert result.semantics.perturbation.steps == 7
    assert result.semantics.perturbation.step_size == pytest.approx(2 / 255)


def test_call_kwargs_are_what_the_library_was_called_with(digits_subject: Subject, monkeypatch) -> None:
    """Epsilon, seed and number of classes included; tensors as shape, dtype and device; of the first batch."""
    n = int(digits_subject.clean_correct.sum())
    batch = {"shape": [min(n, 128), 1, 8, 8], "dtype": "torch.float32", "device": "cpu"}
    labels = {"shape": [min(n, 128)], "dtype": "torch.int64", "device": "cpu"}
    seen = {}
    real = torchattacks.PGD.__init__

    def spied(self, model, **built):
        seen.update(built)
        real(self, model, **built)

    monkeypatch.setattr(torchattacks.PGD, "__init__", functools.wraps(real)(spied))
    call = assess("it", entry_of(budget={"steps": 3}), LINF, digits_subject).call_kwargs
    assert call == {"eps": 0.06, "alpha": 2 / 255, "steps": 3, "random_start": True, "inputs": batch, "labels": labels}
    assert seen.items() <= call.items()
    call = assess("it", entry_of(algorithm="FGSM", target_classes="next"), LINF, digits_subject).call_kwargs
    assert (call["eps"], call["targets"]) == (0.06, labels)
    square = entry_of(algorithm="Square", params={"n_queries": 2}, restarts=2)
    calls = assess("it", square, LINF, digits_subject).call_kwargs
    assert len({call["seed"] for call in calls.values()}) == 2
    assert all(call["norm"] == "Linf" for call in calls.values())
    call = assess(
        "it", entry_of(library="foolbox", algorithm="LinfPGD", params={"steps": 1}), LINF, digits_subject
    ).call_kwargs
    assert call["epsilons"] == 0.06
    assert call["rel_stepsize"] == pytest.approx(0.01 / 0.3)


def test_an_invoker_of_the_users_own_builds_and_calls_the_attack(
    digits_subject: Subject, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_invokers.py").write_text(
        "def twice(call, model):\n"
        "    attack = call.attack(model, **{**call.built, 'steps': 2 * call.built['steps']})\n"
        "    return attack(call.inputs, call.labels)\n"
        "def wrong(call, model):\n"
        "    return call.inputs[:, 0]\n"
    )
    few = digits_subject.subset(torch.arange(20))
    plain = {"params": {"random_start": False}}
    doubled = assess("it", entry_of(**plain, budget={"steps": 6}), LINF, few)
    mine = assess("it", entry_of(**plain, budget={"steps": 3}, invoker="my_invokers:twice"), LINF, few)
    assert torch.equal(tensor(mine, "perturbed_inputs"), tensor(doubled, "perturbed_inputs"))
    assert mine.kwargs["invoker"] == "my_invokers:twice"
    with pytest.raises(
        UserError, match=r"attacks\.it\.invoker: my_invokers:wrong returned \(\d+, 8, 8\), not a tensor"
    ):
        assess("it", entry_of(invoker="my_invokers:wrong"), LINF, few)
    with pytest.raises(UserError, match=r"attacks\.it\.invoker: 'twise' is not a function of my_invokers.*'twice'"):
        assess("it", entry_of(invoker="my_invokers:twise"), LINF, few)


def test_members_of_multi_attack_take_parameters_of_their_own(digits_subject: Subject, monkeypatch) -> None:
    wrapped = []

    class Recorded(torchattacks.MultiAttack):
        def __init__(self, attacks):
            wrapped.extend(attacks)
            super().__init__(attacks)

    monkeypatch.setattr(torchattacks, "MultiAttack", Recorded)
    members = ["FGSM", {"PGD": {"steps": 3, "alpha": "1/255", "random_start": False}}]
    result = assess("it", entry_of(algorithm="MultiAttack", params={"attacks": members}), LINF, digits_subject)
    assert [type(attack).__name__ for attack in wrapped[:2]] == ["FGSM", "PGD"]
    assert (wrapped[1].steps, wrapped[1].alpha, wrapped[1].random_start) == (3, 1 / 255, False)
    assert {attack.eps for attack in wrapped} == {LINF.epsilon}
    assert result.call_kwargs["attacks"] == members
