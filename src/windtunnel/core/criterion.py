"""Turn logits into prediction, correctness, margin and loss for a head: softmax, binary, one of several labels, top-k."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from windtunnel.core.errors import IncompatibleError


@dataclass(frozen=True, slots=True)
class Criterion:
    """Reading of the logits (N, K) of a classifier. Nothing else compares logits with labels.

    A binary head and a single label of a multi-label head are two logits [0, z]: the second class is the positive one,
    and an answer is positive where z > 0.
    """

    # `model.head.kind`
    head: str = "softmax"
    # a sample is classified correctly while its label is among the k largest logits
    k: int = 1
    # probability above which the answer of a binary head is positive; the logit of it is subtracted from z already
    threshold: float = 0.5

    def predict(self, logits: Tensor, labels: Tensor | None) -> Tensor:
        """Return the predicted classes.

        Args:
            logits: float (N, K).
            labels: int64 (N,), the true classes, or None where there are none.

        Returns:
            int64 (N,): the class of the largest logit, the first of equals; for top-k the label wherever it is among the
            k largest, so that a prediction equals the label exactly where it is correct; -1 where a logit is NaN.
        """
        predictions = argmax_or_invalid(logits)
        if self.k == 1 or labels is None:
            return predictions
        return torch.where(self._above(logits, labels) < self.k, labels, predictions).where(predictions >= 0, -1)

    def is_correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return True for each sample whose logits (N, K) count as the label (N,)."""
        return self.predict(logits, labels) == labels

    def margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the label's logit minus the k-th best other one, (N,); negative where misclassified."""
        label_logits = logits.gather(1, labels[:, None]).squeeze(1)
        others = logits.scatter(1, labels[:, None], -torch.inf)
        return label_logits - (others.amax(1) if self.k == 1 else others.topk(self.k, 1).values[:, -1])

    def margin_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the k-th best other logit minus the label's, (N,); positive where misclassified."""
        return -self.margin(logits, labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy of each sample, (N,), without the k - 1 best other classes."""
        return nn.functional.cross_entropy(self.without_best_others(logits, labels), labels, reduction="none")

    def without_best_others(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the logits (N, K) with the k - 1 best other classes set to the least logit of the sample.

        The argmax of the result is the label exactly where the label is among the k largest logits.
        """
        if self.k == 1:
            return logits
        others = logits.detach().scatter(1, labels[:, None], -torch.inf)
        best = others.topk(self.k - 1, 1).indices
        return logits.scatter(1, best, logits.detach().amin(1, keepdim=True).expand(-1, self.k - 1))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, float64 (N, K); the threshold of a binary head does not move it."""
        return self.without_threshold(logits).double().softmax(1)

    def without_threshold(self, logits: Tensor) -> Tensor:
        """Return the logits (N, K) whose softmax is the model's probability, for calibration."""
        return logits if self.threshold == 0.5 else logits + logits.new_tensor([0.0, self.shift])

    @property
    def shift(self) -> float:
        """The logit of `threshold`."""
        return math.log(self.threshold / (1 - self.threshold))

    @property
    def name(self) -> str:
        """The criterion in words, for reports: `top-5`, `binary at 0.3`."""
        if self.k > 1:
            return f"top-{self.k}"
        return f"{self.head} at {self.threshold:g}" if self.threshold != 0.5 else self.head

    def competing_classes(self, num_classes: int) -> int:
        """Return how many classes an attack sees: all, less the k - 1 that may exceed the label."""
        return num_classes - self.k + 1

    def require_top_1(self, where: str, what: str) -> None:
        """Raise IncompatibleError for an algorithm that is not defined for a top-k head.

        Args:
            where: Key of the entry.
            what: What cannot be done, as the beginning of a sentence.

        Raises:
            IncompatibleError: the head is top-k with k > 1.
        """
        if self.k > 1:
            raise IncompatibleError(
                f"{where}: {what} under model.head: {{top_k: {self.k}}}; remove the entry, or the head in a run of its own"
            )

    def _above(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return how many classes come before the label in the order of the logits, the first of equals first; (N,)."""
        label_logits = logits.gather(1, labels[:, None])
        earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
        return ((logits > label_logits) | ((logits == label_logits) & earlier)).sum(1)


SOFTMAX = Criterion()


class OneLabel(nn.Module):
    """A network for samples of one label: the argmax of its logits is the label exactly if the criterion counts the sample as correct."""

    def __init__(self, network: nn.Module, criterion: Criterion, label: int) -> None:
        super().__init__()
        self.network, self.criterion, self.label = network, criterion, label

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) without the k - 1 best other classes."""
        logits = self.network(inputs)
        labels = torch.full((len(logits),), self.label, device=logits.device)
        return self.criterion.without_best_others(logits, labels)


def argmax_or_invalid(logits: Tensor) -> Tensor:
    """Return the class of the largest of logits (N, K), int64 (N,); -1 where one is NaN."""
    return torch.where(logits.isnan().any(1), -1, logits.argmax(1))
