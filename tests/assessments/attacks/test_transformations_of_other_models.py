"""Transformations one step beside the usual: channels last, 0..255, a binary head, gray, one sample, one row, none correct."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.verification.transformations.certify import assess_transformation
from windtunnel.boundary.models.heads import Headed, head_of
from windtunnel.boundary.models.preprocess import Preprocessed, steps_of
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.criterion import Criterion
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.core.transformations import transformation_of
from windtunnel.core.transformed import transform
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model, Preprocess
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.result import plain_tensors, tensors_in

OURS = {"library": "transformations"}
LINF = Budget(norm=Norm.LINF, epsilon=0.1)
BUDGETS: tuple[dict[str, object], ...] = ({"rotation": 25}, {"patch": 2}, {"translation": 1, "border": "edge"})


class _ChannelsLast(nn.Module):
    def __init__(self, network: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.permute(0, 3, 1, 2) / self.scale)


def _network(channels: int, outputs: int, height: int, width: int) -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * height * width, outputs)
    return nn.Sequential(*layers).eval()


def _subject(case: str) -> Subject:
    """Return six samples of one of the cases, which the model classifies correctly except for `none correct`."""
    channels, height, width = {"gray": (1, 7, 5), "one row": (3, 1, 6)}.get(case, (3, 7, 5))
    x = torch.rand(
        1 if case == "one sample" else 6, channels, height, width, generator=torch.Generator().manual_seed(2)
    )
    module, criterion = _network(channels, 1 if case == "binary" else 3, height, width), Criterion()
    if case == "binary":
        record = head_of(
            Model.model_validate({"source": "state_dict", "path": "w", "factory": "a:b", "head": {"kind": "binary"}})
        )
        assert record is not None
        module, criterion = Headed(module, record), Criterion("binary")
    if case == "channels last in 0..255":
        block = Preprocess(layout="NHWC", range=(0, 255))
        module = Preprocessed(_ChannelsLast(module, 255.0), steps_of(block, x.shape[1:])).eval()
    classes = 2 if case == "binary" else 3
    classifier = Classifier(
        module.requires_grad_(False),
        classes,
        tuple(x.shape[1:]),
        frozenset(Capability),
        module_digest(module),
        case,
        criterion=criterion,
    )
    targets = classifier.predict(x, torch.zeros(len(x), dtype=torch.int64))
    targets = (targets + 1) % classes if case == "none correct" else targets
    ids = tuple(str(i) for i in range(len(x)))
    return subject_of(classifier, Dataset(x, targets, ids, tuple("abc"[:classes])))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("case", ["channels last in 0..255", "binary", "gray", "one sample", "one row", "none correct"])
def test_attack_and_certificate_agree(case: str, budget: dict[str, object]) -> None:
    subject = _subject(case)
    if case == "one row" and "patch" in budget:
        budget = {"patch": 1}
    region = transformation_of(Budget.model_validate(budget).norm)
    assert region is not None
    attack = AttackEntry.model_validate(
        {**OURS, "algorithm": "gradient", "budget": budget, "params": {"restarts": 2, "steps": 5, "places": 8}}
    )
    data = plain_tensors(assess("it", attack, LINF, subject).data)
    proof = VerificationEntry.model_validate(
        {**OURS, "algorithm": "branch-and-bound", "budget": budget, "params": {"domains": 40}}
    )
    verdicts = plain_tensors(assess_transformation("it", proof, LINF, subject).data)["verdicts"]
    broken = data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert not (broken & (verdicts == Verdict.VERIFIED)).any()
    again = subject.classifier.predict(data["perturbed_inputs"], subject.dataset.targets) != subject.dataset.targets
    assert torch.equal(again, broken)
    if case == "none correct":
        assert not data["attacked"].any()
        assert (verdicts == Verdict.FALSIFIED).all()
    elif not region.is_patch:
        table = tensors_in(assess("it", attack, LINF, subject).data, "transformation_parameters")
        parameters = torch.stack(list(table.values()), 1).double()
        assert torch.equal(transform(region, subject.dataset.inputs, parameters), data["perturbed_inputs"])


def test_a_universal_patch_is_not_fitted_for_a_draw_without_a_correct_sample() -> None:
    subject = _subject("none correct")
    entry = AttackEntry.model_validate({**OURS, "algorithm": "universal", "budget": {"patch": 2}})
    data = assess("it", entry, LINF, subject.subset(torch.arange(3)), rest=lambda: subject).data
    assert not plain_tensors(data)["attacked"].any()
    assert "universal_patch" not in data
