"""Trained networks with a known counter-example in each ball are never verified there, whatever the scale of their logits.

More of them: `WINDTUNNEL_PLANTED_NETWORKS=100 pytest tests/assessments/verification/test_planted.py`.
The idea is SoundnessBench's (Zhou et al. 2024, arXiv 2412.03154); networks and training are our own.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from balls import budget, entry, subject_with
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.core.contracts import Verdict

NETWORKS = int(os.environ.get("WINDTUNNEL_PLANTED_NETWORKS", "6"))
SAMPLES, EPSILON, CLASSES = 4, 0.1, 3
ACTIVATIONS = [(nn.ReLU, nn.ReLU), (nn.ReLU, nn.Tanh), (nn.Sigmoid, nn.LeakyReLU)]


def train_planted(kinds, count):
    """Return `count` networks and their inputs (count, samples, 16), labels and counter-examples, trained side by side."""
    torch.manual_seed(len(kinds[0].__name__ + kinds[1].__name__))
    x = 0.2 + 0.6 * torch.rand(count, SAMPLES, 16)
    planted = x + 0.95 * EPSILON * torch.randn_like(x).sign()
    labels = torch.randint(CLASSES, (count, SAMPLES))
    others = (labels + torch.randint(1, CLASSES, labels.shape)) % CLASSES
    sizes = (16, 32, 24, CLASSES)
    weights = [(torch.randn(count, a, b) * a**-0.5).requires_grad_() for a, b in zip(sizes, sizes[1:], strict=False)]
    biases = [torch.zeros(count, 1, b, requires_grad=True) for b in sizes[1:]]
    first, second = (kind() for kind in kinds)
    optimiser = torch.optim.Adam([*weights, *biases], 0.01)

    def margins(points, leading):
        z = second(first(points @ weights[0] + biases[0]) @ weights[1] + biases[1]) @ weights[2] + biases[2]
        own = F.one_hot(leading, CLASSES).bool()
        return z[own].view(leading.shape) - z.masked_fill(own, -torch.inf).amax(2)

    for _ in range(600):
        loss = (1 - margins(x, labels)).clamp(min=0).sum() + (0.05 - margins(planted, others)).clamp(min=0).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    networks = []
    for i in range(count):
        layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            layer.weight.data, layer.bias.data = weight[i].detach().T.clone(), bias[i, 0].detach().clone()
        networks.append(nn.Sequential(nn.Flatten(), layers[0], kinds[0](), layers[1], kinds[1](), layers[2]))
    return networks, x, labels, planted


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ACTIVATIONS, ids=lambda kinds: " and ".join(kind.__name__ for kind in kinds))
def test_no_ball_with_a_planted_counter_example_is_verified(kinds):
    count = -(-NETWORKS // len(ACTIVATIONS))
    networks, x, labels, planted = train_planted(kinds, count)
    hidden, verified_nearby = 0, 0
    for i, network in enumerate(networks):
        scale = 10.0 ** (-6 + 12 * i / max(1, count - 1))
        network[-1].weight.data *= scale
        network[-1].bias.data *= scale
        subject = subject_with(network, x[i].view(-1, 1, 4, 4), CLASSES, labels[i])
        is_right = subject.classifier.predict(subject.dataset.inputs) == labels[i]
        logits = network.double()(planted[i].double())
        is_planted = is_right & (logits.argmax(1) != labels[i])
        network.float()
        hidden += int(is_planted.sum())
        for algorithm, more in (("crown", {}), ("branch-and-bound", {"params": {"domains": 60}})):
            verdicts = assess("v", entry(algorithm, **more), budget(EPSILON), subject).data["verdicts"]
            assert int(Verdict.VERIFIED) not in verdicts[is_planted].tolist(), (i, algorithm)
        nearby = assess("v", entry("crown"), budget(EPSILON / 20), subject).data["verdicts"]
        verified_nearby += int((nearby == Verdict.VERIFIED).sum())
    assert hidden >= 0.9 * count * SAMPLES
    assert verified_nearby >= 0.5 * count * SAMPLES
