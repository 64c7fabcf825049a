"""Soundness first: what is verified must hold, against analytic radii, random points and a complete solver."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import subject_of
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.verification import VerificationEntry
from windtunnel.verification.assess import assess, verification_metrics
from windtunnel.verification.lirpa import bound_batch, margin_matrix
from windtunnel.verification.preflight import preflight

LINF = Budget(norm=Norm.LINF, epsilon=0.05)
CROWN = VerificationEntry(library="auto-LiRPA", algorithm="crown")
DUAL = {Norm.LINF: 1, Norm.L2: 2, Norm.L1: float("inf")}


def entry(algorithm, **more):
    library = {"linf-box": "Marabou", "cascade": "windtunnel"}.get(algorithm, "auto-LiRPA")
    return VerificationEntry(library=library, algorithm=algorithm, **more)


def budget(epsilon, norm=Norm.LINF):
    return Budget(norm=norm, epsilon=epsilon)


def first(subject, n):
    return subject.subset(torch.arange(n))


@pytest.fixture(scope="module")
def free_linear():
    """A linear classifier whose samples lie in the middle of [0, 1], so that the image's edge cuts nothing off."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 4)).eval()
    inputs = 0.5 + 0.1 * (torch.rand(40, 1, 3, 3) - 0.5)
    classifier = Classifier(module, 4, (1, 3, 3), frozenset(Capability), "digest", "linear")
    targets = classifier.predict(inputs)
    return subject_of(classifier, Dataset(inputs, targets, tuple(map(str, range(40))), tuple("abcd")))


def analytic_radius(subject, norm):
    """min over rivals of margin / ||w_target - w_rival||_dual."""
    weight, bias = subject.classifier.module[1].weight.detach(), subject.classifier.module[1].bias.detach()
    x, y = subject.dataset.inputs.flatten(1), subject.dataset.targets
    logits = x @ weight.T + bias
    margin = logits.gather(1, y[:, None]) - logits
    size = torch.linalg.vector_norm(weight[y][:, None] - weight[None], ord=DUAL[norm], dim=2)
    return (margin / size).nan_to_num(torch.inf).scatter(1, y[:, None], torch.inf).amin(1)


@pytest.mark.parametrize("norm", list(DUAL))
def test_the_margin_bound_of_a_linear_model_vanishes_at_its_analytic_radius(free_linear, norm):
    radius = analytic_radius(free_linear, norm)
    for i in range(0, 40, 8):
        if radius[i] < 0.4:
            bounds = bound_batch(
                free_linear.classifier, free_linear.dataset.inputs[i : i + 1], free_linear.dataset.targets[i : i + 1],
                norm, float(radius[i]), "crown", logits=False,
            )  # fmt: skip
            assert abs(float(bounds.worst_margin)) < 1e-5


@pytest.mark.parametrize(("norm", "name"), [(Norm.LINF, "crown"), (Norm.L2, "crown-l2"), (Norm.L1, "crown-l1")])
def test_crown_certifies_a_linear_sample_if_and_only_if_its_radius_allows(free_linear, norm, name):
    radius = analytic_radius(free_linear, norm)
    epsilon = float(radius.median())
    verdicts = assess("v", entry(name), budget(epsilon, norm), free_linear).data["verdicts"]
    clear = (radius - epsilon).abs() > 1e-5
    assert torch.equal((verdicts == Verdict.VERIFIED)[clear], (radius > epsilon)[clear])


def test_no_attack_breaks_a_certified_sample(digits_subject):
    from windtunnel.verification.falsifier import falsify

    subject = first(digits_subject, 60)
    verified = assess("v", CROWN, LINF, subject).data["verdicts"] == Verdict.VERIFIED
    found, _ = falsify(subject.classifier, subject.dataset.inputs, subject.dataset.targets, 0.05, seed=1)
    assert verified.sum() > 10
    assert not (verified & found).any()


def test_random_points_of_a_certified_ball_keep_the_label_and_lie_within_the_bounds(digits_subject):
    subject = first(digits_subject, 20)
    result = assess("v", CROWN, LINF, subject)
    bounds, generator = result.data["output_bounds"], torch.Generator().manual_seed(0)
    for i in (result.data["verdicts"] == Verdict.VERIFIED).nonzero().flatten().tolist():
        noise = (2 * torch.rand(1000, 1, 8, 8, generator=generator) - 1) * 0.05
        logits = subject.classifier.logits((subject.dataset.inputs[i] + noise).clamp(0, 1))
        assert (logits.argmax(1) == subject.dataset.targets[i]).all()
        assert (logits >= bounds["lower"][i] - 1e-4).all()
        assert (logits <= bounds["upper"][i] + 1e-4).all()


def test_the_methods_are_ordered_and_verdicts_are_monotone_in_epsilon(digits_subject):
    subject = first(digits_subject, 40)

    def proved(method, epsilon):
        return assess("v", entry(method), budget(epsilon), subject).data["verdicts"] == Verdict.VERIFIED

    ibp, crown_ibp, crown = (proved(m, 0.01) for m in ("ibp", "crown-ibp", "crown"))
    assert (ibp <= crown_ibp).all()
    assert (crown_ibp <= crown).all()
    assert (proved("crown", 0.05) <= crown).all()


def test_margins_are_tighter_than_the_difference_of_two_bounds(digits_subject):
    subject = first(digits_subject, 20)
    targets = subject.dataset.targets
    bounds = bound_batch(subject.classifier, subject.dataset.inputs, targets, Norm.LINF, 0.05, "crown")
    rivals = bounds.upper.scatter(1, targets[:, None], -torch.inf).amax(1)
    loose = bounds.lower.gather(1, targets[:, None]).squeeze(1) - rivals
    assert (bounds.worst_margin >= loose - 1e-4).all()
    assert (bounds.worst_margin > loose + 0.1).any()


def test_a_misclassified_sample_is_falsified_by_itself_and_never_certified(digits_subject):
    wrong = ~digits_subject.clean_correct
    result = assess("v", CROWN, LINF, digits_subject)
    assert wrong.any()
    assert (result.data["verdicts"][wrong] == Verdict.FALSIFIED).all()
    assert (result.data["perturbation_distance"][wrong] == 0).all()


def test_metrics_are_recomputed_from_the_tensors_alone(digits_subject):
    result = assess("v", CROWN, LINF, first(digits_subject, 30))
    assert verification_metrics(result.data, ["clean", "crown"]) == result.metrics


def test_the_margin_matrix_subtracts_every_rival_from_the_target():
    logits = torch.tensor([[1.0, 5.0, 2.0]])
    margins = margin_matrix(torch.tensor([1]), 3) @ logits[..., None]
    assert margins.flatten().tolist() == [4.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.1])
def test_marabou_and_the_cascade_agree_and_crown_never_certifies_what_marabou_falsifies(mlp_subject, epsilon):
    subject = first(mlp_subject, 17)
    complete = assess("m", entry("linf-box", timeout=20), budget(epsilon), subject).data
    cascade = assess("c", entry("cascade", timeout=20), budget(epsilon), subject).data["verdicts"]
    crown = assess("v", CROWN, budget(epsilon), subject).data["verdicts"]
    decided = {int(Verdict.VERIFIED), int(Verdict.FALSIFIED)}
    both = [i for i in range(17) if int(complete["verdicts"][i]) in decided and int(cascade[i]) in decided]
    assert len(both) >= 15
    assert all(complete["verdicts"][i] == cascade[i] for i in both)
    assert not ((crown == Verdict.VERIFIED) & (complete["verdicts"] == Verdict.FALSIFIED)).any()
    broken = complete["verdicts"] == Verdict.FALSIFIED
    examples = complete["perturbed_inputs"][broken]
    assert (subject.classifier.predict(examples) != subject.dataset.targets[broken]).all()
    assert (complete["perturbation_distance"][broken] <= epsilon + 1e-5).all()


@pytest.mark.slow
def test_a_time_budget_leaves_unknowns_with_a_reason(mlp_subject):
    result = assess("m", entry("linf-box", time_budget=0.01), budget(0.1), first(mlp_subject, 6))
    assert (result.data["verdicts"] == Verdict.UNKNOWN).sum() >= 3
    assert "time_out" in [c.code for c in result.caveats]


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        (entry("crown"), {"epsilon": 1.5}, "covers every image"),
        (entry("crown-l2"), {}, "works under L2"),
        (entry("crown", params={"x": 1}), {}, "parameter of a verifier"),
        (entry("crwon"), {}, "Did you mean 'crown'"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(digits_subject, given, options, says):
    chosen = replace(digits_subject)
    given = given.model_copy(update={"budget": BudgetOverride(**options)})
    with pytest.raises(UserError, match=says) as caught:
        preflight("verification.v", given, LINF, chosen.classifier, chosen.dataset)
    assert "\n" not in str(caught.value)


def test_a_recurrent_model_is_refused(digits_subject):
    classifier = replace(digits_subject.classifier, module=nn.Sequential(nn.LSTM(4, 4)))
    with pytest.raises(IncompatibleError, match="recurrent"):
        preflight("verification.v", CROWN, LINF, classifier, digits_subject.dataset)


def test_an_onnx_graph_of_another_model_is_refused(mlp_subject, tmp_path):
    from windtunnel.models.load import export_onnx
    from windtunnel.verification.marabou import check_equivalence

    path = export_onnx(mlp_subject.classifier, tmp_path / "model.onnx")
    check_equivalence(mlp_subject.classifier, path, mlp_subject.dataset.inputs[:5])
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with pytest.raises(IncompatibleError, match="differs from the model"):
        check_equivalence(replace(mlp_subject.classifier, module=other), path, mlp_subject.dataset.inputs[:5])
