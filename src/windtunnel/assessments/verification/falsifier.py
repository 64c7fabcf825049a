"""A quick falsifier for the cascade: PGD on the margin, with restarts. What it breaks needs no proof."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm

STEPS, RESTARTS = 40, 3
QUICK_STEPS, QUICK_RESTARTS = 10, 1  # before the bounds: finds most of what is easily broken in a tenth of the time
# A smaller lead of the rival can turn with the size of the batch that the sample is in.
ROUNDING = 1e-5


def falsify(
    classifier: Classifier,
    inputs: Tensor,
    targets: Tensor,
    epsilon: float | Tensor,
    seed: int,
    norm: Norm = Norm.LINF,
    *,
    steps: int = STEPS,
    restarts: int = RESTARTS,
    deadline: float = float("inf"),
) -> tuple[Tensor, Tensor]:
    """(found (n,) bool, examples (n, ...)): misclassified points of the Linf ball inside [0, 1].

    epsilon: one for all, or one a sample (n,). deadline: time.monotonic() at which the search ends, with what it has.
    Objective: the margin logit(target) - max of the rivals, so that a saturated softmax hides nothing.
    Source: Madry et al. 2018, arXiv 1706.06083. Only Linf; for another norm nothing is found.
    """
    found, examples = torch.zeros(len(inputs), dtype=torch.bool), inputs.clone()
    if norm is not Norm.LINF:
        return found, examples
    generator = torch.Generator().manual_seed(seed)
    radius = torch.as_tensor(epsilon, dtype=inputs.dtype).expand(len(inputs)).view(-1, *[1] * (inputs.ndim - 1))
    low, high = (inputs - radius).clamp(0, 1), (inputs + radius).clamp(0, 1)
    for _ in range(restarts):
        left = (~found).nonzero().flatten()
        if not len(left) or time.monotonic() > deadline:
            break
        start = low[left] + (high - low)[left] * torch.rand(inputs[left].shape, generator=generator)
        step = 2.5 * radius[left] / steps
        moved = _descend(classifier, start, targets[left], low[left], high[left], step, steps, deadline)
        hit = leads(classifier, moved, targets[left])
        examples[left[hit]] = moved[hit]
        found[left[hit]] = True
    return found, examples


def leads(classifier: Classifier, points: Tensor, targets: Tensor) -> Tensor:
    """Whether some rival leads the target at each of `points` (n, ...) by more than rounding; (n,) bool."""
    logits, own = classifier.logits(points), targets[:, None]
    lead = logits.scatter(1, own, -torch.inf).amax(1) - logits.gather(1, own).squeeze(1)
    return lead > ROUNDING


def _descend(
    classifier: Classifier,
    x: Tensor,
    targets: Tensor,
    low: Tensor,
    high: Tensor,
    step: Tensor,
    steps: int,
    deadline: float,
) -> Tensor:
    device = classifier.device
    x, y, low, high, step = (t.to(device) for t in (x, targets, low, high, step))
    best, best_margin = x.clone(), torch.full((len(x),), torch.inf, device=device)
    for _ in range(steps + 1):
        if time.monotonic() > deadline:
            break
        x = x.detach().requires_grad_()
        logits = classifier.module(x)
        rivals = logits.scatter(1, y[:, None], -torch.inf).amax(1)
        margin = logits.gather(1, y[:, None]).squeeze(1) - rivals
        better = margin.detach() < best_margin
        best[better], best_margin[better] = x.detach()[better], margin.detach()[better]
        (gradient,) = torch.autograd.grad(margin.sum(), x)
        x = torch.min(torch.max(x.detach() - step * gradient.sign(), low), high)
    return best.cpu()
