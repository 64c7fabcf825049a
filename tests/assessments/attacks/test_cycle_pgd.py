"""PGD that skips repeated steps against the library's own."""

import pytest
import torch
import torchattacks
from torch import nn

from windtunnel.assessments.attacks.torchattacks.adapter import CyclePGD


class Independent(nn.Module):
    """A network that computes each sample alone, so that gradients do not depend on the batch."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return torch.cat([self.network(row[None]) for row in x])


class OnBatch(nn.Module):
    """Logits that depend on the mean of the batch."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x - x.mean(0))


class Noisy(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x) + 0 * torch.rand(1)


def network(seed, hidden=24):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 4)).eval()


def both(model, steps, seed, targeted=False, samples=12):
    torch.manual_seed(100 + seed)
    inputs, labels = torch.rand(samples, 1, 4, 4), torch.randint(4, (samples,))
    results = []
    for kind in (torchattacks.PGD, CyclePGD):
        attack = kind(model, eps=0.1, alpha=0.03, steps=steps)
        attack.set_device(inputs.device)
        if targeted:
            attack.set_mode_targeted_by_label(quiet=True)
        torch.manual_seed(seed)
        results.append(attack(inputs, labels))
    return *results, attack.gradients / (steps * samples)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_bytes_are_equal_where_gradients_do_not_depend_on_the_batch(seed, targeted, steps):
    library, ours, share = both(Independent(network(seed)), steps, seed, targeted)
    assert torch.equal(library, ours)
    if steps == 100:
        assert share < 0.7


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_are_equal_where_gradients_depend_on_the_batch(seed):
    model = OnBatch(network(seed))
    library, ours, _ = both(model, 60, seed)
    assert torch.equal(library, ours)


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_are_equal_for_a_model_that_computes_the_batch_as_a_whole(seed):
    model = network(seed)
    library, ours, _ = both(model, 100, seed, samples=33)
    assert torch.equal(model(library).argmax(1), model(ours).argmax(1))


def test_no_step_of_a_model_that_draws_is_skipped():
    *_, share = both(Noisy(network(0)), 50, 0)
    assert share == 1
