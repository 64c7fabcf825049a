"""The model as a black box: images in, logits out, in batches; nothing else of it is used."""

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability
from windtunnel.core.criterion import SOFTMAX, Criterion

# Kernels for fewer samples (a matrix times a vector) add up in another order: measured with torch 2.13 on CPU, a sample's
# logits are equal bit for bit in batches of any size from 8 on, and differ from those in batches of 5 and less.
MIN_BATCH = 8


class Oracle:
    """Answers queries, `batch_size` at a time.

    A smaller batch than MIN_BATCH is filled up with copies whose answers are thrown away, so that an image's answer does
    not depend on what is asked beside it. A Python `predict` is asked exactly what is counted: its calls may cost money.
    """

    def __init__(self, classifier: Classifier, batch_size: int) -> None:
        self._module, self._device, self._batch_size = classifier.module, classifier.device, batch_size
        self._least = 1 if classifier.capabilities == {Capability.FORWARD} else MIN_BATCH

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Logits float32 (m, K) on the CPU of images (m, C, H, W)."""
        return torch.cat([self._batch(part) for part in images.split(self._batch_size)])

    def _batch(self, images: Tensor) -> Tensor:
        n = len(images)
        if n < self._least:
            images = torch.cat([images, images[-1:].expand(self._least - n, *images.shape[1:])])
        answer: Tensor = self._module(images.to(self._device))[:n].float().cpu()
        return answer


class Goal:
    """The adversary's objective for n images, evaluated from logits.

    labels: int64 (n,). aims: int64 (n,), the wanted classes, or None for any but the label.
    """

    def __init__(self, labels: Tensor, aims: Tensor | None, criterion: Criterion = SOFTMAX) -> None:
        self.targeted, self._labels, self._criterion = aims is not None, labels, criterion
        self._sought = labels if aims is None else aims

    def loss(self, logits: Tensor, indices: Tensor) -> Tensor:
        """Smaller is better: p(label), or -p(aim); float32 (m, k) of logits (m, k, K) of the images `indices` (m,).

        Probabilities in float32, as an interface gives them: what they cannot tell apart, no adversary behind one can.
        """
        if self._criterion.k > 1:
            each = self._labels[indices].repeat_interleave(logits.shape[1])
            logits = self._criterion.without_best_others(logits.flatten(0, 1), each).view_as(logits)
        sought = self._sought[indices].view(-1, 1, 1).expand(-1, logits.shape[1], 1)
        probability = logits.softmax(2).gather(2, sought)[..., 0]
        return -probability if self.targeted else probability

    def reached(self, logits: Tensor, indices: Tensor) -> Tensor:
        """Return bool (m,): the prediction meets the adversary's goal; logits (m, K)."""
        predictions = self._criterion.predict(logits, self._labels[indices])
        return (predictions == self._sought[indices]) if self.targeted else (predictions != self._sought[indices])
