"""Losses of single samples that attacks of our own climb."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each sample; (n, K), (n,) -> (n,)."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Best wrong logit less the label's; positive where misclassified. (n, K), (n,) -> (n,)."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    other_classes = logits.scatter(1, labels[:, None], -torch.inf)
    return other_classes.amax(1) - own
