"""Families under a binary and a top-k head, against a hand-written binary network and plain loops."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.assess import assess as assess_attack
from windtunnel.assessments.attacks.preflight import preflight as attack_preflight
from windtunnel.assessments.attacks.profiles import profile_members
from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.latent.preflight import preflight as latent_preflight
from windtunnel.assessments.queries.assess import assess as assess_queries
from windtunnel.assessments.sweeps.assess import assess as assess_sweep
from windtunnel.assessments.verification.assess import assess as assess_verification
from windtunnel.assessments.verification.falsifier import falsify
from windtunnel.assessments.verification.preflight import preflight as verification_preflight
from windtunnel.boundary.models.heads import Headed, head_of
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.criterion import Criterion
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.subject import subject_of
from windtunnel.params.attacks import AttackEntry, QueryEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.latent import LatentEntry
from windtunnel.params.model import Model
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry

BUDGET = Budget(norm=Norm.LINF, epsilon=0.06)


class OneOutput(nn.Module):
    """z of 'the digit is 5 or more', from the ten logits of a network."""

    def __init__(self, network):
        super().__init__()
        self.network, self.last = network, nn.Linear(10, 1, bias=False)
        self.last.weight.data = torch.tensor([[-1.0] * 5 + [1.0] * 5]) / 5

    def forward(self, x):
        return self.last(self.network(x))


class TwoLogits(nn.Module):
    """[0, z], written by hand as one linear layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.pair = inner, nn.Linear(1, 2, bias=False)
        self.pair.weight.data = torch.tensor([[0.0], [1.0]])

    def forward(self, x):
        return self.pair(self.inner(x))


@pytest.fixture(scope="module")
def pair(mlp_subject):
    """The same binary model under `model.head: binary` and written by hand; 24 samples."""
    few = mlp_subject.dataset.subset(torch.arange(24))
    data = replace(few, targets=(few.targets >= 5).long(), class_names=("low", "high"))
    inner = OneOutput(mlp_subject.classifier.module).eval()
    made = []
    for module, criterion in (
        (Headed(inner, head_of(Model(head="binary"))), Criterion("binary")),
        (TwoLogits(inner), Criterion()),
    ):
        module.eval().requires_grad_(False)
        classifier = replace(mlp_subject.classifier, module=module, num_classes=2, criterion=criterion)
        made.append(subject_of(classifier, data))
    return made


def equal(one, other):
    assert one.data.keys() == other.data.keys()
    for key, value in one.data.items():
        if isinstance(value, Tensor) and key != "runtime_per_sample":
            assert torch.equal(value.nan_to_num(-7.0), other.data[key].nan_to_num(-7.0)), key


@pytest.mark.parametrize(
    ("library", "algorithm", "budget"),
    [
        ("torchattacks", "FGSM", {}),
        ("torchattacks", "PGD", {"steps": 4}),
        ("foolbox", "L2DeepFoolAttack", {"norm": "L2", "epsilon": 0.5}),
    ],
)
def test_attacks_on_a_binary_head_equal_those_on_two_logits(pair, library, algorithm, budget):
    entry = AttackEntry(library=library, algorithm=algorithm, budget=BudgetOverride(**budget))
    results = [assess_attack("a", entry, BUDGET, subject) for subject in pair]
    equal(*results)


def test_other_families_on_a_binary_head_equal_those_on_two_logits(pair):
    sweep = SweepEntry(epsilons=[0, 0.05, 0.2], refine=2)
    equal(*(assess_sweep("s", sweep, BUDGET, subject) for subject in pair))
    verified = VerificationEntry(library="auto-LiRPA", algorithm="crown")
    equal(*(assess_verification("v", verified, Budget(norm=Norm.LINF, epsilon=0.02), subject) for subject in pair))
    asked = QueryEntry(algorithm="EvoBA", params={"generation_size": 5, "generations": 4})
    equal(*(assess_queries("q", asked, BUDGET, subject) for subject in pair))
    suite = CorruptionEntry(corruptions=["gaussian_noise"], severities=[3], upsample=32)
    equal(*(assess_suite("c", suite, subject, lambda result: None) for subject in pair))


def test_profiles_replace_members_that_need_more_classes(pair):
    for profile in ("quick", "standard", "exhaustive"):
        for classes in (2, 3):
            members = profile_members(profile, Norm.LINF, classes)
            assert len(members) == len(profile_members(profile, Norm.LINF, 10))
            assert "APGDT" not in {member.algorithm for member in members}
            assert classes == 3 or "dlr" not in {member.params.get("loss") for member in members}
    entry = AttackEntry(library="windtunnel", algorithm="quick")
    attack_preflight("attacks.a", entry, BUDGET, pair[0].classifier, pair[0].dataset)
    assert assess_attack("a", entry, BUDGET, pair[0]).kwargs["runs"] == ["FGSM", "APGD-CE", "APGD-CE 5 restarts"]


@pytest.mark.parametrize(("algorithm", "params"), [("APGDT", {}), ("APGD", {"loss": "dlr"})])
def test_a_loss_that_needs_more_classes_is_refused_in_one_line(pair, algorithm, params):
    entry = AttackEntry(library="torchattacks", algorithm=algorithm, params=params)
    with pytest.raises(
        IncompatibleError, match=r"needs [34] classes, the data has 2; .* the profile standard"
    ) as error:
        attack_preflight("attacks.a", entry, BUDGET, pair[0].classifier, pair[0].dataset)
    assert "\n" not in str(error.value)


def top_k(subject, k, n=60):
    classifier = replace(subject.classifier, criterion=Criterion("top_k", k))
    return subject_of(classifier, subject.dataset.subset(torch.arange(n)))


def among_largest(subject, inputs, k):
    """Membership in the k largest logits, by sorting each row."""
    rows = subject.classifier.module(inputs).tolist()
    order = [sorted(range(10), key=lambda c, row=row: (-row[c], c))[:k] for row in rows]
    return torch.tensor([int(label) in best for label, best in zip(subject.dataset.targets, order, strict=True)])


@pytest.mark.parametrize("algorithm", ["PGD", "APGD", "Square"])
def test_an_attack_under_a_top_k_head_pushes_the_label_out_of_the_k_largest(mlp_subject, algorithm):
    subject = top_k(mlp_subject, 3)
    entry = AttackEntry(library="torchattacks", algorithm=algorithm, budget=BudgetOverride(steps=20))
    budget = Budget(norm=Norm.LINF, epsilon=0.3)
    attack_preflight("attacks.a", entry, budget, subject.classifier, subject.dataset)
    result = assess_attack("a", entry, budget, subject)
    found = result.data["perturbed_inputs"]
    assert torch.equal(result.data["verdicts"] == 1, ~among_largest(subject, found, 3))
    assert (result.data["verdicts"] == 1).sum() > 5
    assert torch.equal(subject.clean_correct, among_largest(subject, subject.dataset.inputs, 3))


def test_attacks_aim_lower_under_a_top_k_head(mlp_subject):
    entry = AttackEntry(library="torchattacks", algorithm="PGD", budget=BudgetOverride(steps=20))
    budget = Budget(norm=Norm.LINF, epsilon=0.3)
    aimed = assess_attack("a", entry, budget, top_k(mlp_subject, 3))
    plain = assess_attack("a", entry, budget, top_k(mlp_subject, 1))
    by_accident = ~among_largest(top_k(mlp_subject, 3), plain.data["perturbed_inputs"], 3)
    assert (aimed.data["verdicts"] == 1).sum() >= by_accident.sum()


def test_queries_and_sweeps_count_a_sample_as_right_while_it_is_among_the_k_largest(mlp_subject):
    subject = top_k(mlp_subject, 2, 20)
    asked = QueryEntry(algorithm="EvoBA", params={"generation_size": 5, "generations": 20})
    result = assess_queries("q", asked, BUDGET, subject)
    assert torch.equal(result.data["verdicts"] == 1, ~among_largest(subject, result.data["perturbed_inputs"], 2))
    result = assess_sweep("s", SweepEntry(epsilons=[0, 0.3], refine=1), BUDGET, subject)
    right = result.data["sweep_predictions"][1] == subject.dataset.targets
    assert torch.equal(right, among_largest(subject, result.data["perturbed_inputs"], 2) & right)
    assert not right.all()


def test_what_is_not_defined_under_a_top_k_head_is_refused(mlp_subject):
    subject = top_k(mlp_subject, 2, 20)
    refused = [
        (latent_preflight, LatentEntry()),
        (verification_preflight, VerificationEntry(library="Marabou", algorithm="linf-box")),
        (verification_preflight, VerificationEntry(library="windtunnel", algorithm="cascade")),
        (
            verification_preflight,
            VerificationEntry(library="auto-LiRPA", algorithm="crown", radius={"max": 0.1, "tolerance": 0.01}),
        ),
        (attack_preflight, AttackEntry(library="torchattacks", algorithm="PGD", target_classes="next")),
        (
            attack_preflight,
            AttackEntry(library="torchattacks", algorithm="JSMA", budget=BudgetOverride(norm="L0", epsilon=9)),
        ),
    ]
    for preflight, entry in refused:
        with pytest.raises(IncompatibleError, match=r"under model\.head: \{top_k: 2\}"):
            preflight("entries.a", entry, BUDGET, subject.classifier, subject.dataset)


@pytest.mark.parametrize("algorithm", ["ibp", "crown"])
def test_bounds_certify_a_label_that_fewer_than_k_classes_may_exceed(mlp_subject, algorithm):
    """At epsilon 0 the bounds are the logits: certified is what is right. Beyond, no attack under the head breaks a certified sample."""
    entry = VerificationEntry(library="auto-LiRPA", algorithm=algorithm)
    certified = {}
    for k in (1, 3):
        subject = top_k(mlp_subject, k)
        for epsilon in (1e-7, 0.05):
            budget = Budget(norm=Norm.LINF, epsilon=epsilon)
            verification_preflight("verification.v", entry, budget, subject.classifier, subject.dataset)
            verdicts = assess_verification("v", entry, budget, subject).data["verdicts"]
            certified[k, epsilon] = verdicts == Verdict.VERIFIED
        assert (subject.clean_correct & ~certified[k, 1e-7]).sum() <= 1
        attack = AttackEntry(library="torchattacks", algorithm="PGD", budget=BudgetOverride(steps=20))
        attacked = assess_attack("a", attack, Budget(norm=Norm.LINF, epsilon=0.05), subject).data["verdicts"]
        assert not (certified[k, 0.05] & (attacked == Verdict.ATTACK_SUCCEEDED)).any()
        is_broken, examples = falsify(subject.classifier, subject.dataset.inputs, subject.dataset.targets, 0.3, 0)
        assert torch.equal(is_broken, ~among_largest(subject, examples, k))
    assert (certified[1, 0.05] <= certified[3, 0.05]).all()
    assert certified[3, 0.05].sum() > certified[1, 0.05].sum()
