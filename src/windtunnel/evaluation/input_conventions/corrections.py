"""Find mismatches between data and model by the accuracy that a plausible correction regains.

Each correction is one thing that people get wrong. It is believed where it does better on the same samples than chance would
by far, in one of two ways. The level is 1 % in all: half of it is shared by the plain conventions of values, which are the commonest
mistakes, and half by all other corrections (weighted Bonferroni, Genovese et al. 2006, doi:10.1093/biomet/93.3.509).

- accuracy: it gains five points or halves the errors (McNemar's exact test, one-sided);
- loss: it takes a fifth off the cross-entropy and costs no accuracy (paired t-test, one-sided, from 100 samples on). Some
  mistakes cost a good model hardly an answer, and every answer some confidence. Cross-entropy is taken after dividing the logits by
  the temperature that suits them best (Guo et al. 2017, arXiv 1706.04599): a correction that merely scales the logits up or
  down gains nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy.stats import ttest_rel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from windtunnel.boundary.models.preprocess import Preprocessed, steps_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.criterion import SOFTMAX, argmax_or_invalid
from windtunnel.core.dataset import Dataset
from windtunnel.evaluation.sanity.rates import ALPHA, discordant, significantly_more
from windtunnel.params.model import Preprocess

Normalisations = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
# name: (mean, std) of each channel, for inputs in [0, 1].
COLOUR: Normalisations = {
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100's": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
GREY: Normalisations = {
    "MNIST's": ((0.1307,), (0.3081,)),
    "Fashion-MNIST's": ((0.2860,), (0.3530,)),
    "ImageNet's grey": ((0.449,), (0.226,)),
}
MEASURED = 50  # samples on which a correction is tried first
LEVEL = 0.01
ENOUGH_POINTS = 0.05
ENOUGH_LOSS = 0.8  # of the loss as given; sound and half-trained models have 0.88 and more under every correction
ENOUGH_SAMPLES = 100  # for the loss: a few samples have too few errors to weigh
_TEMPERATURES = torch.logspace(-2, 1, 31)  # of logits whose deviation is 1
# A correction within so much of the best one is as good: the first of the list, which is the commonest, is named.
ALIKE = 0.02
_RIVALS = 3  # so many are named


@dataclass(frozen=True, slots=True)
class Correction:
    """One plausible correction.

    Attributes:
        words: what goes after "if", and the question that follows from it.
        inputs: (N, C, H, W) as given -> as corrected, in the same shape.
        name: of its constants; empty where it has none.
        preprocess: what cures it in params.yaml; None where no preprocessing does.
    """

    words: str
    inputs: Callable[[Tensor], Tensor]
    name: str = ""
    preprocess: Preprocess | None = None

    @property
    def is_of_values(self) -> bool:
        """True for a convention of values alone: range, mean and deviation."""
        return self.preprocess is not None and self.preprocess.channels == "RGB" and not self.preprocess.layout


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Suspected error in the model's inputs. given, corrected: accuracies, as fractions, on `samples` samples.

    losses: the calibrated cross-entropies, in nats, of what was believed by them; None for what was believed by its accuracy.
    preprocess: what cures it; None where no preprocessing does. rivals: names and cures that are as good but for chance.
    size: (height, width) that cures it, () where size does not.
    """

    words: str
    given: float
    corrected: float
    samples: int
    losses: tuple[float, float] | None = None
    preprocess: Preprocess | None = None
    rivals: tuple[tuple[str, Preprocess], ...] = ()
    size: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The whole sentence."""
        names = ", ".join(name for name, _ in self.rivals)
        apart = f"; not told from {names} by more than chance" if names else ""
        if self.losses is None:
            return f"accuracy {self.given:.0%} as given, {self.corrected:.0%} if {self.words} ({self.samples} samples{apart})"
        given_loss, corrected = self.losses
        return (
            f"accuracy {self.given:.1%} and cross-entropy {given_loss:.3g} as given, {self.corrected:.1%} and {corrected:.3g} if "
            f"{self.words} ({self.samples} samples{apart})"
        )


@dataclass(frozen=True, slots=True)
class _Tried:
    """A correction that was tried: which samples are right (N,), and the loss of each (N,), None for an order of classes."""

    words: str
    right: Tensor
    losses: Tensor | None = None
    correction: Correction | None = None

    @property
    def preprocess(self) -> Preprocess | None:
        return self.correction.preprocess if self.correction else None

    @property
    def is_of_values(self) -> bool:
        return self.correction is not None and self.correction.is_of_values


def normalisations(channels: int) -> Normalisations:
    """Return (mean, std) of each channel by the name of their data set."""
    tables = {1: GREY, 3: COLOUR}
    return {**tables.get(channels, {}), "a mean and deviation of 0.5": ((0.5,) * channels, (0.5,) * channels)}


def expectations(shape: Sequence[int]) -> Iterator[Correction]:
    """Yield the value conventions that a model may expect of images (C, H, W), the commonest first."""
    for name, (mean, std) in normalisations(shape[0]).items():
        is_of_a_data_set = name.endswith("'s") or "grey" in name
        values: dict[str, object] = {"mean": mean, "std": std} if is_of_a_data_set else {"range": (-1, 1)}
        hypothesis = f"inputs were normalised with {_of(name)}: is normalisation missing inside the model?"
        yield _expecting(hypothesis, name, shape, values)
    hypothesis = "inputs spanned 0 to 255: does the model expect values up to 255?"
    yield _expecting(hypothesis, "values of 0 to 255", shape, {"range": (0, 255)})
    if shape[0] == 3:
        hypothesis = "inputs spanned 0 to 255 less ImageNet's mean, as in Caffe: is that missing inside the model?"
        yield _expecting(hypothesis, "Caffe's", shape, {"range": (0, 255), "mean": (123.68, 116.779, 103.939)})
    hypothesis = "inputs were divided by 255: does the model, or data.value_range, scale them again?"
    yield _expecting(hypothesis, "values of 0 to 1/255", shape, {"range": (0, 1 / 255)})


def _expecting(hypothesis: str, name: str, shape: Sequence[int], values: Mapping[str, object]) -> Correction:
    preprocess = Preprocess.model_validate(values)
    module = Preprocessed(nn.Identity(), steps_of(preprocess, shape))
    return Correction(hypothesis, lambda x: module.prepared(x).reshape(x.shape), name, preprocess)


def _also(correction: Correction, shape: Sequence[int], order: str, what: str, **values: object) -> Correction:
    """Return the correction for a model that differs in the layout of its channels as well."""
    assert correction.preprocess is not None
    condition, _, question = correction.words.partition(":")
    changed = {**correction.preprocess.model_dump(exclude_unset=True), **values}
    return _expecting(f"{condition}, {what} ({order}):{question}", f"{correction.name} in {order}", shape, changed)


def _with_channels_swapped(correction: Correction, shape: Sequence[int]) -> Correction:
    """Return the correction for a model whose channels are the other way round."""
    assert correction.preprocess is not None
    values = correction.preprocess.model_dump(exclude_unset=True)
    swapped = {key: values[key][::-1] for key in ("mean", "std") if key in values}
    return _also(correction, shape, "BGR", "channels the other way round", channels="BGR", **swapped)


def corrections(data: Dataset, *, is_flat: bool = False) -> Iterator[Correction]:
    """Yield possible mistakes of such inputs, the commonest conventions first.

    is_flat: the model takes vectors, so that a layout with channels last fits too.
    """
    if not data.is_image:
        return
    shape = tuple(data.inputs.shape[1:])
    yield from expectations(shape)
    if shape[0] == 3:
        hypothesis = "the channels were the other way round: are they BGR in the data, or in the model?"
        yield _expecting(hypothesis, "BGR", shape, {"channels": "BGR"})
        yield from (_with_channels_swapped(correction, shape) for correction in expectations(shape))
        if is_flat:
            hypothesis = "channels came last: does the model expect NHWC?"
            yield _expecting(hypothesis, "NHWC", shape, {"layout": "NHWC"})
            for correction in expectations(shape):
                yield _also(correction, shape, "NHWC", "channels last", layout="NHWC")
    for name, (mean, std) in normalisations(shape[0]).items():
        hypothesis = f"a normalisation with {_of(name)} were undone: are the inputs normalised twice, in the data and in the model?"
        columns = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        yield Correction(hypothesis, partial(_undone, *columns))
    hypothesis = "black and white changed places: is ink dark in the data, and bright in training?"
    yield Correction(hypothesis, lambda x: 1 - x)
    if shape[1] == shape[2]:
        yield Correction("rows and columns changed places: are images stored transposed?", lambda x: x.transpose(2, 3))


def suspicion(classifier: Classifier | None, data: Dataset, logits: Tensor) -> Suspicion | None:
    """Return the correction that regains most accuracy, if any; `logits` (N, K) are of the uncorrected inputs.

    Evaluates every sample of `data` a few dozen times; without data only class orders are tried.
    """
    baseline = _tried("", logits, data.targets)
    candidates = _asked(classifier, data) if classifier else []
    orders_tried = [_Tried(hypothesis, right) for hypothesis, right in orders(data.class_names, logits, data.targets)]
    tried = [*candidates, *orders_tried]
    n_values = sum(candidate.is_of_values for candidate in tried)
    n_groups = 2 if 0 < n_values < len(tried) else 1
    shares = [n_groups * (n_values if candidate.is_of_values else len(tried) - n_values) for candidate in tried]
    weighted = list(zip(tried, shares, strict=True))
    by_accuracy = [candidate for candidate, share in weighted if better(baseline.right, candidate.right, share)]
    believed = by_accuracy or [candidate for candidate, share in weighted if _surer(baseline, candidate, share)]
    if not believed:
        return None
    most = max(_mean(candidate.right) for candidate in believed)
    alike = [candidate for candidate in believed if _mean(candidate.right) >= most - ALIKE]
    surest = min(alike, key=lambda candidate: 0.0 if candidate.losses is None else _mean(candidate.losses))
    best = next(candidate for candidate in alike if not _beats(surest, candidate))
    rivals = [
        (candidate.correction.name, candidate.preprocess)
        for candidate in (alike if best.preprocess else [])
        if candidate is not best and candidate.correction and candidate.preprocess and not _beats(best, candidate)
    ]
    losses = None if by_accuracy else (_mean(baseline.losses), _mean(best.losses))
    accuracies = (_mean(baseline.right), _mean(best.right))
    return Suspicion(best.words, *accuracies, len(data), losses, best.preprocess, tuple(rivals[:_RIVALS]))


def own_size_suspicion(classifier: Classifier, resized: Dataset, original: Dataset) -> Suspicion | None:
    """Return the suspicion that a model takes images in the size that they are stored in, None where that is no better.

    resized, original: the same samples as the transforms of the model's library make them, and as they are stored.
    """
    sizes = [tuple(data.inputs.shape[2:]) for data in (resized, original)]
    if sizes[0] == sizes[1] or resized.ids != original.ids:
        return None
    try:
        right = [SOFTMAX.is_correct(classifier.logits(data.inputs), data.targets) for data in (resized, original)]
    except Exception:  # whatever a model raises on inputs of another shape
        return None
    if not better(right[0], right[1], 1):
        return None
    resized_to, stored_size = ("x".join(map(str, size)) for size in sizes)
    hypothesis = f"images kept their own size of {stored_size}: were they not resized to {resized_to} in training?"
    return Suspicion(hypothesis, _mean(right[0]), _mean(right[1]), len(original), size=sizes[1])


def _asked(classifier: Classifier, data: Dataset) -> list[_Tried]:
    """Return what the classifier makes of the samples under every correction."""

    def tried(correction: Correction) -> _Tried:
        logits = classifier.logits(correction.inputs(data.inputs).contiguous())
        return _tried(correction.words, logits, data.targets, correction)

    return [tried(correction) for correction in corrections(data, is_flat=_takes_vectors(classifier, data))]


def _takes_vectors(classifier: Classifier, data: Dataset) -> bool:
    """Return True if the model gives the same logits for a sample as a flat vector: it never sees its shape."""
    sample = data.inputs[:2].to(classifier.device)
    try:
        with torch.no_grad():
            return bool(torch.equal(classifier.module(sample.flatten(1)), classifier.module(sample)))
    except Exception:  # whatever a model raises on inputs of another shape
        return False


def invisible_channels(classifier: Classifier, data: Dataset, suspicion: Suspicion | None) -> str:
    """Return a sentence where RGB and BGR do equally well but for chance; empty where one is better, or no colour is there."""
    if not data.is_image or data.inputs.shape[1] != 3 or torch.equal(data.inputs, data.inputs.flip(1)):
        return ""
    shape = tuple(data.inputs.shape[1:])
    preprocess = suspicion.preprocess.model_dump(exclude_unset=True) if suspicion and suspicion.preprocess else {}
    as_found = _expecting("", "", shape, preprocess)
    images = (as_found.inputs(inputs).contiguous() for inputs in (data.inputs, data.inputs.flip(1)))
    original, swapped = (_tried("", classifier.logits(x), data.targets) for x in images)
    if _beats(original, swapped) or _beats(swapped, original):
        return ""
    return (
        f"the order of the channels is as good as invisible to accuracy: {_mean(original.right):.0%}, and "
        f"{_mean(swapped.right):.0%} with red and blue swapped ({len(data)} samples); take model.preprocess.channels "
        f"(RGB or BGR) from where the model comes"
    )


def _beats(first: _Tried, other: _Tried) -> bool:
    """Return True if the first does better than the second by more than chance, in accuracy or in loss."""
    gained, lost = discordant(first.right, other.right)
    if significantly_more(gained, lost):
        return True
    if first.losses is None or other.losses is None or gained < lost or torch.equal(first.losses, other.losses):
        return False
    return float(ttest_rel(other.losses.numpy(), first.losses.numpy(), alternative="greater").pvalue) < ALPHA


def _tried(hypothesis: str, logits: Tensor, targets: Tensor, correction: Correction | None = None) -> _Tried:
    return _Tried(hypothesis, SOFTMAX.is_correct(logits, targets), calibrated_losses(logits, targets), correction)


def _mean(values: Tensor | None) -> float:
    assert values is not None
    return float(values.float().mean())


def orders(names: tuple[str, ...], logits: Tensor, targets: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Return (description, bool (N,) correct samples) under other class orders, without further passes."""
    predicted, k = argmax_or_invalid(logits), len(names)
    as_text = sorted(range(k), key=str)
    alphabetical = sorted(range(k), key=lambda i: names[i])
    listed = {
        "labels began at 1 in training: is one class too many before the first, or one too few?": [
            k - 1,
            *range(k - 1),
        ],
        "labels were one higher: do they begin at 1 in the data?": [*range(1, k), 0],
        "classes were in the order of their numbers as text (0, 1, 10, 11, 2): were folders of training sorted so?": as_text,
        "classes were in alphabetical order: were they in training?": alphabetical,
        "classes were in the reverse order": list(range(k))[::-1],
    }
    for hypothesis, order in listed.items():
        if order != list(range(k)):  # class `order[i]` of ours is what the model calls i
            yield hypothesis, torch.tensor(order)[predicted.clamp_min(0)].where(predicted >= 0, -1) == targets
    yield _learnt_order(predicted, targets, k)


def _learnt_order(predicted: Tensor, targets: Tensor, k: int) -> tuple[str, Tensor]:
    """Return the best class order, fitted on every other sample of each class and tested on the rest, and vice versa."""
    right = torch.zeros_like(targets, dtype=torch.bool)
    order, by_class = torch.arange(k), targets.argsort(stable=True)
    for start in (0, 1):
        learnt, tried = by_class[start::2], by_class[1 - start :: 2]
        table = torch.zeros(k, k)
        is_learnt = predicted[learnt] >= 0
        cells = (predicted[learnt][is_learnt], targets[learnt][is_learnt])
        table.index_put_(cells, torch.ones(int(is_learnt.sum())), accumulate=True)
        order = torch.where(table.sum(1) > 0, table.argmax(1), -1)
        right[tried] = order[predicted[tried].clamp_min(0)] == targets[tried]
    moved = [f"{i} is {int(c)}" for i, c in enumerate(order) if int(c) not in (-1, i)][:3]
    hypothesis = (
        f"classes were in another order ({', '.join(moved)}, ...): is data.class_names in the order of training?"
    )
    return hypothesis, right


def better(original: Tensor, corrected: Tensor, tried: int) -> bool:
    """Return True if a correction is accepted at 1 / tried of the level; right samples of both, bool (N,)."""
    gained, lost = discordant(corrected, original)
    errors, errors_left = int((~original).sum()), int((~corrected).sum())
    enough = gained - lost >= ENOUGH_POINTS * len(original) or 2 * errors_left <= errors
    return enough and significantly_more(gained, lost, tried, LEVEL)


def _surer(original: _Tried, corrected: _Tried, tried: int) -> bool:
    """Return True if a correction is accepted by its loss."""
    if corrected.losses is None or original.losses is None or len(original.losses) < ENOUGH_SAMPLES:
        return False
    enough = _mean(corrected.losses) <= ENOUGH_LOSS * _mean(original.losses)
    if not enough or int(corrected.right.sum()) < int(original.right.sum()):
        return False
    test = ttest_rel(original.losses.numpy(), corrected.losses.numpy(), alternative="greater")
    return float(test.pvalue) < LEVEL / tried


def calibrated_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's cross-entropy, float32 (N,) in nats, at the temperature of the smallest mean, whatever the logits' scale."""
    finite_logits = logits.nan_to_num(nan=0.0, posinf=1e4, neginf=-1e4)
    finite_logits = finite_logits / finite_logits.std().clamp_min(1e-12)
    losses = torch.stack([cross_entropy(finite_logits / t, targets, reduction="none") for t in _TEMPERATURES])
    return losses[losses.mean(1).argmin()]


def _of(name: str) -> str:
    return name if name.startswith("a mean") else f"{name} mean and deviation"


def _undone(mean: Tensor, std: Tensor, inputs: Tensor) -> Tensor:
    return inputs * std + mean
