"""APGD, FAB and Square that leave hopeless samples against the library's own."""

import pytest
import torch
import torchattacks
from hypothesis import given
from hypothesis import strategies as st
from test_cycle_pgd import OnBatch
from torch import nn

from windtunnel.assessments.attacks.adapters import CountedModel
from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.torchattacks import early_stopping
from windtunnel.assessments.attacks.torchattacks.early_stopping import (
    OF_APGD,
    OF_FAB,
    OF_SQUARE,
    EarlyAPGD,
    EarlyAPGDT,
    EarlyFAB,
    EarlySquare,
    Watched,
    is_hopeless,
)
from windtunnel.assessments.attacks.torchattacks.nearest_fab import NearestFAB
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

PAIRS = [
    (torchattacks.APGD, EarlyAPGD),
    (torchattacks.APGDT, EarlyAPGDT),
    (NearestFAB, EarlyFAB),
    (torchattacks.Square, EarlySquare),
]
IDS = ["APGD", "APGDT", "FAB", "Square"]


class Noisy(OnBatch):
    def forward(self, x):
        return self.network(x + 0.01 * torch.randn_like(x))


class Shifted(OnBatch):
    """The first class wins by far, whatever the input."""

    def forward(self, x):
        return self.network(x) + torch.tensor([1e3, 0.0, 0.0, 0.0, 0.0])


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 5)).eval()


def attacked(kind, model, norm="Linf", epsilon=0.1, work=60):
    """Return the perturbed inputs, which of the samples are broken, and the passes."""
    torch.manual_seed(1)
    inputs = torch.rand(40, 1, 8, 8)
    with torch.random.fork_rng(), torch.no_grad():
        labels = model(inputs).argmax(1)
    counted = CountedModel(model)
    steps = {"n_queries": work} if issubclass(kind, torchattacks.Square) else {"steps": work}
    classes = {"n_classes": 5} if issubclass(kind, torchattacks.APGDT | torchattacks.FAB) else {}
    if issubclass(kind, torchattacks.FAB):
        classes["multi_targeted"] = True
    attack = kind(counted, norm=norm, eps=epsilon, seed=0, **steps, **classes)
    attack.set_device(inputs.device)
    torch.manual_seed(2)
    perturbed = attack(inputs, labels)
    with torch.random.fork_rng(), torch.no_grad():
        broken = model(perturbed).argmax(1) != labels
    size = (perturbed - inputs).flatten(1)
    is_within = (size.abs().amax(1) if norm == "Linf" else size.norm(dim=1)) <= epsilon * (1 + 1e-5) + 1e-6
    if issubclass(kind, torchattacks.FAB):  # its examples are the nearest, at whatever distance
        return perturbed, broken & is_within, counted.passes.forwards + counted.passes.backwards
    assert is_within.all()
    return perturbed, broken, counted.passes.forwards + counted.passes.backwards


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize(("library", "early"), PAIRS, ids=IDS)
def test_the_library_breaks_no_more_where_nothing_is_left_early(library, early, norm, monkeypatch) -> None:
    monkeypatch.setattr(early_stopping, "is_hopeless", lambda margins, *_: margins.isnan())
    epsilon = 0.03 if norm == "Linf" else 0.6 if library is torchattacks.Square else 0.3
    _, theirs, passes = attacked(library, network(), norm, epsilon)
    _, ours, fewer = attacked(early, network(), norm, epsilon)
    assert 0 < theirs.sum() < len(theirs), "the case tells nothing"
    assert torch.equal(ours, theirs)
    assert fewer <= passes + 1.5 * len(ours)  # what it costs to see whether samples are answered one by one


@pytest.mark.parametrize(("library", "early"), PAIRS, ids=IDS)
def test_hopeless_samples_cost_a_part_of_the_passes(library, early) -> None:
    _, theirs, passes = attacked(library, Shifted(network()))
    _, ours, fewer = attacked(early, Shifted(network()))
    assert not theirs.any()
    assert not ours.any()
    looks, _ = {EarlyFAB: OF_FAB, EarlySquare: OF_SQUARE}.get(early, OF_APGD)
    assert fewer < (looks[0] + 0.1) * passes


class Rounded(OnBatch):
    def forward(self, x):
        return self.network((4 * x).round() / 4)


@pytest.mark.parametrize(("library", "early"), PAIRS[:-1], ids=IDS[:-1])
def test_samples_without_a_gradient_are_left_after_a_few_steps(library, early) -> None:
    _, theirs, passes = attacked(library, Rounded(network()), epsilon=0.02)
    _, ours, fewer = attacked(early, Rounded(network()), epsilon=0.02)
    assert ours.sum() <= theirs.sum() < len(theirs)
    assert fewer < 0.15 * passes


@pytest.mark.parametrize("model", [OnBatch, Noisy])
@pytest.mark.parametrize(("library", "early"), PAIRS, ids=IDS)
def test_a_model_whose_answer_is_not_the_samples_own_is_searched_to_the_end(library, early, model, monkeypatch) -> None:
    """It draws meanwhile, so the library's bytes are those after the same draws of the comparison."""
    shared = model(network())
    seen: list[Watched] = []
    monkeypatch.setattr(early_stopping, "Watched", lambda *given: seen.append(Watched(*given)) or seen[-1])
    perturbed, *_ = attacked(early, shared)
    assert not seen
    if model is OnBatch:
        assert torch.equal(perturbed, attacked(library, shared)[0])
    attacked(early, network())
    assert seen, "the case tells nothing"


@given(margin=st.floats(1e-3, 1e3), gain=st.floats(0, 1e3), done=st.integers(1, 99), doublings=st.floats(0.1, 6))
def test_no_sample_is_left_whose_gains_would_still_reach_zero(margin, gain, done, doublings) -> None:
    """A margin that falls by the last gain at each further doubling of the work reaches what `is_hopeless` says at least."""
    total = done * 2**doublings
    left = bool(is_hopeless(torch.tensor([margin]), torch.tensor([margin + gain]), done, total, 1.0))
    reached = margin - gain * doublings
    assert not (left and reached < -1e-3 * (margin + gain))


def test_the_profile_leaves_what_the_literal_one_leaves_at_half_of_its_passes(mlp_subject: Subject) -> None:
    subject = mlp_subject.subset(torch.arange(20))
    left, passes = {}, {}
    for literal in (True, False):
        entry = AttackEntry(library="windtunnel", algorithm="standard", params={"literal": literal})
        data = assess("it", entry, Budget(norm=Norm.LINF, epsilon=0.08), subject).data
        left[literal] = data["broken_by"] == -1
        passes[literal] = float((data["forward_passes"] + data["backward_passes"]).sum())
    assert left[True].any(), "the case tells nothing"
    assert torch.equal(left[True], left[False])
    assert passes[False] < 0.4 * passes[True]
