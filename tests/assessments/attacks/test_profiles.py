"""The profiles against the library's own ensemble."""

import pytest
import torch

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.profiles import PROFILES
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget


def test_every_member_is_in_the_registry_and_works_under_its_norm() -> None:
    for by_norm in PROFILES.values():
        for norm, members in by_norm.items():
            for member in members:
                assert norm in ROWS[member.library, member.algorithm].allowed_norms


@pytest.mark.slow
def test_standard_is_at_least_as_strong_as_autoattack(digits_subject: Subject) -> None:
    """On the same 200 samples, at most one point above the worst case of torchattacks.AutoAttack called directly."""
    import torchattacks

    budget = Budget(norm=Norm.LINF, epsilon=0.1)
    ours = assess("it", AttackEntry(library="windtunnel", algorithm="standard"), budget, digits_subject)
    data = digits_subject.dataset
    attack = torchattacks.AutoAttack(digits_subject.classifier.module, eps=0.1, n_classes=10, seed=0)
    with torch.random.fork_rng():
        perturbed = attack(data.inputs, data.targets)
    theirs = float((digits_subject.classifier.predict(perturbed) == data.targets).double().mean())
    assert ours.metrics["adversarial_accuracy"] <= theirs + 0.01
