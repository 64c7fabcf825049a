"""Mistakes between data and model, told by what a plausible correction would bring back.

Each correction is one thing that people get wrong. It is believed where it does better on the same samples than chance would
by far (at 1 %, divided by the number of corrections tried), in one of two ways:

- accuracy: it gains five points or halves the errors (McNemar's exact test, one-sided);
- loss: it takes a fifth off the cross-entropy and costs no accuracy (paired t-test, one-sided, from 100 samples on). Some
  mistakes cost a good model hardly an answer, and every answer some confidence. Cross-entropy is taken after dividing the logits by
  the temperature that suits them best (Guo et al. 2017, arXiv 1706.04599): a correction that merely scales the logits up or
  down gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from scipy.stats import binom, ttest_rel
from torch import Tensor
from torch.nn.functional import cross_entropy

from windtunnel.core.classifier import Classifier, argmax_or_invalid
from windtunnel.core.dataset import Dataset

Table = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
# name: (mean, std) of each channel, for inputs in [0, 1].
COLOUR: Table = {
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100's": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
GREY: Table = {
    "MNIST's": ((0.1307,), (0.3081,)),
    "Fashion-MNIST's": ((0.2860,), (0.3530,)),
    "ImageNet's grey": ((0.449,), (0.226,)),
}
LEVEL = 0.01
ENOUGH_POINTS = 0.05
ENOUGH_LOSS = (
    0.8  # of the loss as given; sound models, and half-trained ones, have 0.88 and more under every correction
)
ENOUGH_SAMPLES = 100  # for the loss: a few samples have too few errors to weigh
_TEMPERATURES = torch.logspace(-2, 1, 31)  # of logits whose deviation is 1
# A correction within so much of the best one is as good: the first of the list, which is the commonest, is named.
ALIKE = 0.02


@dataclass(frozen=True, slots=True)
class Correction:
    """One plausible correction. words: what goes after "if", and the question that follows from it."""

    words: str
    inputs: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What the model seems to be given wrongly. given, corrected: accuracies, as fractions, on `samples` samples.

    losses: the calibrated cross-entropies, in nats, of what was believed by them; None for what was believed by its accuracy.
    """

    words: str
    given: float
    corrected: float
    samples: int
    losses: tuple[float, float] | None = None

    @property
    def line(self) -> str:
        """The whole sentence."""
        if self.losses is None:
            return f"accuracy {self.given:.0%} as given, {self.corrected:.0%} if {self.words} ({self.samples} samples)"
        given, corrected = self.losses
        return (
            f"accuracy {self.given:.1%} and cross-entropy {given:.3g} as given, {self.corrected:.1%} and {corrected:.3g} if "
            f"{self.words} ({self.samples} samples)"
        )


@dataclass(frozen=True, slots=True)
class _Tried:
    """A correction that was tried: which samples are right (N,), and the loss of each (N,), None for an order of classes."""

    words: str
    right: Tensor
    losses: Tensor | None = None


def normalisations(channels: int) -> dict[str, tuple[Tensor, Tensor]]:
    """(mean, std), each (C, 1, 1), by the name of what they are of."""
    tables: dict[int, Table] = {1: GREY, 3: COLOUR}
    named = {**tables.get(channels, {}), "a mean and deviation of 0.5": ((0.5,) * channels, (0.5,) * channels)}
    return {name: (_column(mean), _column(std)) for name, (mean, std) in named.items()}


def corrections(data: Dataset) -> Iterator[Correction]:
    """What may be wrong with inputs like these, the commonest first."""
    if not data.is_image:
        return
    for name, (mean, std) in normalisations(data.inputs.shape[1]).items():
        yield Correction(
            f"inputs were normalised with {_of(name)}: is normalisation missing inside the model?",
            _normalised(mean, std),
        )
    if data.inputs.shape[1] == 3:
        yield Correction(
            "the channels were the other way round: are they BGR in the data, or in the model?", lambda x: x.flip(1)
        )
    for name, (mean, std) in normalisations(data.inputs.shape[1]).items():
        yield Correction(
            f"a normalisation with {_of(name)} were undone: are the inputs normalised twice, in the data and in the model?",
            _undone(mean, std),
        )
    yield Correction("inputs spanned 0 to 255: does the model expect values up to 255?", lambda x: 255 * x)
    yield Correction(
        "inputs were divided by 255: does the model, or data.value_range, scale them again?", lambda x: x / 255
    )
    if data.inputs.shape[1] == 3:
        mean, std = normalisations(3)["ImageNet's"]
        yield Correction(
            "inputs were normalised with ImageNet's mean and deviation, channels the other way round: are both missing inside "
            "the model?",
            lambda x: (x.flip(1) - mean) / std,
        )
    yield Correction(
        "black and white changed places: is ink dark in the data, and bright in training?", lambda x: 1 - x
    )
    if data.inputs.shape[2] == data.inputs.shape[3]:
        yield Correction("rows and columns changed places: are images stored transposed?", lambda x: x.transpose(2, 3))


def suspicion(classifier: Classifier | None, data: Dataset, logits: Tensor) -> Suspicion | None:
    """The correction that brings back most, where one does; `logits` (N, K) are those of the inputs as they are.

    Asks the model about every sample of `data` a few dozen times; without one only orders of the classes are tried.
    """
    given = _tried("", logits, data.targets)
    tried = [_Tried(words, right) for words, right in orders(data.class_names, logits, data.targets)]
    if classifier is not None:
        asked = [
            _tried(c.words, classifier.logits(c.inputs(data.inputs).contiguous()), data.targets)
            for c in corrections(data)
        ]
        tried = [*asked, *tried]
    by_accuracy = [one for one in tried if better(given.right, one.right, len(tried))]
    believed = by_accuracy or [one for one in tried if _surer(given, one, len(tried))]
    if not believed:
        return None
    best = max(_mean(one.right) for one in believed)
    found = next(one for one in believed if _mean(one.right) >= best - ALIKE)
    losses = None if by_accuracy else (_mean(given.losses), _mean(found.losses))
    return Suspicion(found.words, _mean(given.right), _mean(found.right), len(data), losses)


def _tried(words: str, logits: Tensor, targets: Tensor) -> _Tried:
    return _Tried(words, argmax_or_invalid(logits) == targets, calibrated_losses(logits, targets))


def _mean(values: Tensor | None) -> float:
    assert values is not None
    return float(values.float().mean())


def orders(names: tuple[str, ...], logits: Tensor, targets: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(words, which samples (N,) would be right) under other orders of the classes; nothing is asked for these."""
    predicted, k = argmax_or_invalid(logits), len(names)
    as_text = sorted(range(k), key=str)
    alphabetical = sorted(range(k), key=lambda i: names[i])
    listed = {
        "labels began at 1 in training: is one class too many before the first, or one too few?": [(i - 1) % k for i in range(k)],
        "labels were one higher: do they begin at 1 in the data?": [(i + 1) % k for i in range(k)],
        "classes were in the order of their numbers as text (0, 1, 10, 11, 2): were folders of training sorted so?": as_text,
        "classes were in alphabetical order: were they in training?": alphabetical,
        "classes were in the reverse order": list(range(k))[::-1],
    }  # fmt: skip
    for words, order in listed.items():
        if order != list(range(k)):  # class `order[i]` of ours is what the model calls i
            yield words, torch.tensor(order)[predicted.clamp_min(0)].where(predicted >= 0, -1) == targets
    yield _learnt_order(predicted, targets, k)


def _learnt_order(predicted: Tensor, targets: Tensor, k: int) -> tuple[str, Tensor]:
    """The order that fits best, learnt from every other sample and tried on those between, and the other way round."""
    right = torch.zeros_like(targets, dtype=torch.bool)
    order = torch.arange(k)
    for start in (0, 1):
        learnt, tried = slice(start, None, 2), slice(1 - start, None, 2)
        table = torch.zeros(k, k)
        known = predicted[learnt] >= 0
        table.index_put_(
            (predicted[learnt][known], targets[learnt][known]), torch.ones(int(known.sum())), accumulate=True
        )
        order = torch.where(table.sum(1) > 0, table.argmax(1), -1)
        right[tried] = order[predicted[tried].clamp_min(0)] == targets[tried]
    moved = [f"{i} is {int(c)}" for i, c in enumerate(order) if int(c) not in (-1, i)][:3]
    return (
        f"classes were in another order ({', '.join(moved)}, ...): is data.class_names in the order of training?",
        right,
    )


def better(given: Tensor, corrected: Tensor, tried: int) -> bool:
    """Whether a correction is believed: both are which samples are right, (N,)."""
    gained, lost = int((corrected & ~given).sum()), int((given & ~corrected).sum())
    errors, left = int((~given).sum()), int((~corrected).sum())
    enough = gained - lost >= ENOUGH_POINTS * len(given) or 2 * left <= errors
    return enough and gained > lost and float(binom.sf(gained - 1, gained + lost, 0.5)) < LEVEL / tried


def _surer(given: _Tried, corrected: _Tried, tried: int) -> bool:
    """Whether a correction is believed by its loss."""
    if corrected.losses is None or given.losses is None or len(given.losses) < ENOUGH_SAMPLES:
        return False
    enough = _mean(corrected.losses) <= ENOUGH_LOSS * _mean(given.losses)
    if not enough or int(corrected.right.sum()) < int(given.right.sum()):
        return False
    test = ttest_rel(given.losses.numpy(), corrected.losses.numpy(), alternative="greater")
    return float(test.pvalue) < LEVEL / tried


def calibrated_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each sample, float32 (N,) in nats, at the temperature of the smallest mean; no scale of the logits counts."""
    known = logits.nan_to_num(nan=0.0, posinf=1e4, neginf=-1e4)
    known = known / known.std().clamp_min(1e-12)
    losses = torch.stack([cross_entropy(known / t, targets, reduction="none") for t in _TEMPERATURES])
    return losses[losses.mean(1).argmin()]


def _of(name: str) -> str:
    return name if name.startswith("a mean") else f"{name} mean and deviation"


def _normalised(mean: Tensor, std: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: (x - mean) / std


def _undone(mean: Tensor, std: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x * std + mean


def _column(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1)
