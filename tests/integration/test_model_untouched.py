"""No stage changes the model under assessment: not a parameter, not a buffer, not a mode, in any family."""

from importlib import import_module

import pytest
import torch
from torch import nn

from tests.conftest import classifier_of
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.core.subject import subject_of
from windtunnel.params.attacks import AttackEntry, QueryEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.params.results import Clean
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry

pytestmark = pytest.mark.slow
BUDGET = Budget(epsilon=0.1)
ENTRIES = [
    ("attacks", AttackEntry(library="torchattacks", algorithm="FGSM")),
    ("attacks", AttackEntry(library="torchattacks", algorithm="PGD", budget={"steps": 3})),
    ("attacks", AttackEntry(library="torchattacks", algorithm="DeepFool", params={"steps": 3}, budget={"norm": "L2"})),
    ("attacks", AttackEntry(library="torchattacks", algorithm="Square", budget={"steps": 20})),
    ("attacks", AttackEntry(library="foolbox", algorithm="LinfPGD", budget={"steps": 3})),
    ("attacks", AttackEntry(library="foolbox", algorithm="BoundaryAttack", params={"steps": 5}, budget={"norm": "L2"})),
    ("attacks", AttackEntry(library="windtunnel", algorithm="quick")),
    ("sweeps", SweepEntry(epsilons=[0, 0.05, 0.2], refine=2)),
    ("sweeps", SweepEntry(library="torchattacks", algorithm="PGD", epsilons=[0, 0.1], budget={"steps": 3})),
    *(("verification", VerificationEntry(library="auto-LiRPA", algorithm=a)) for a in ("ibp", "crown-ibp", "crown")),
    ("verification", VerificationEntry(library="Marabou", algorithm="linf-box", timeout=5)),
    ("verification", VerificationEntry(library="windtunnel", algorithm="cascade", timeout=5)),
]


@pytest.fixture(scope="module")
def subject(digits):
    """Eight digits and a network whose batch norm has seen data: in training mode, any pass would change its buffers."""
    assessed, train = digits
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(train.inputs), train.targets).backward()
        optimiser.step()
    for parameter in module.parameters():
        parameter.grad = None
    module.register_buffer("passes", torch.zeros(3), persistent=False)
    return subject_of(classifier_of(module, 10, (1, 8, 8)), assessed.subset(torch.arange(8)))


def everything(module):
    """Names to bytes of parameters and buffers, non-persistent ones too, and the modes that a careless caller leaves behind."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    content = {name: tensor.detach().clone().numpy().tobytes() for name, tensor in tensors.items()}
    modes = {name: part.training for name, part in module.named_modules()}
    gradients = {name: (p.requires_grad, p.grad is None) for name, p in module.named_parameters()}
    hooks = sum(len(part._forward_hooks) + len(part._backward_hooks) for part in module.modules())
    return content, modes, gradients, hooks


def test_training_mode_would_have_been_noticed(subject):
    before = everything(subject.classifier.module)
    subject.classifier.module.train()
    try:
        assert everything(subject.classifier.module)[1] != before[1]
        state = {k: v.clone() for k, v in subject.classifier.module.state_dict().items()}
        subject.classifier.module(subject.dataset.inputs)
        assert everything(subject.classifier.module)[0] != before[0]
    finally:
        subject.classifier.module.load_state_dict(state)
        subject.classifier.module.eval()
    assert everything(subject.classifier.module) == before


@pytest.mark.parametrize(("family", "entry"), ENTRIES, ids=[f"{f}-{e.library}-{e.algorithm}" for f, e in ENTRIES])
def test_an_assessment_leaves_every_byte_of_the_model(subject, family, entry):
    before = everything(subject.classifier.module)
    result = import_module(f"windtunnel.assessments.{family}.assess").assess(family, entry, BUDGET, subject)
    assert len(result.data["verdicts"]) == 8
    assert everything(subject.classifier.module) == before


def test_the_clean_evaluation_and_a_corruption_suite_leave_every_byte_of_the_model(subject):
    before = everything(subject.classifier.module)
    assess_clean(Clean(), subject_of(subject.classifier, subject.dataset))
    entry = CorruptionEntry(corruptions=["fog", "contrast"], severities=(5,), upsample=32)
    assess_suite("c", entry, subject, lambda _: None)
    assert everything(subject.classifier.module) == before


@pytest.mark.parametrize("algorithm", ["EvoBA", "SimBA"])
def test_a_query_attack_leaves_every_byte_of_the_model(subject, algorithm):
    assess = pytest.importorskip("windtunnel.assessments.queries.assess").assess
    before = everything(subject.classifier.module)
    assess("q", QueryEntry(algorithm=algorithm), BUDGET, subject)
    assert everything(subject.classifier.module) == before
