"""Measure the accuracy of a model that draws at random under draws that no attack searched on."""

from collections.abc import Iterator

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Caveat, Json
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.core.statistics import BinomialRate, binomial_interval
from windtunnel.core.subject import Subject

DRAWS = 15
SAME = 1e-4  # of the largest logit: differences below are rounding
PROBED, CALLS = 8, 12  # samples, and calls of one of them, that are compared


def differs(first: Tensor, second: Tensor, share: float = SAME) -> bool:
    """Return True if logits (n, K) differ by more than a share of the largest of their sample."""
    return bool(((first - second).abs().amax(1) > share * second.abs().amax(1).clamp(min=1e-12)).any())


def is_random(subject: Subject) -> bool:
    """Return True if calls of the model on a few samples differ by more than rounding.

    All `PROBED` are compared with the clean logits, which another seed was set for; one is asked `CALLS` times, as few answers may
    be drawn from.
    """
    classifier, inputs = subject.classifier, subject.dataset.inputs[:PROBED]
    with seeded(derive_seed(subject.seed, "is random")):
        first = classifier.logits(inputs)
        if differs(subject.clean_logits[:PROBED], first) and differs(first, classifier.logits(inputs)):
            return True
        answer = classifier.logits(inputs[:1])
        return any(differs(answer, classifier.logits(inputs[:1])) for _ in range(CALLS - 1))


def fresh_metrics(subject: Subject, examples: Tensor, attacked: Tensor) -> dict[str, Json]:
    """Return the accuracy on stored examples under fresh draws; empty for a model that gives the same logits twice.

    Args:
        subject: The model and its samples.
        examples: float32 (N, ...), the stored examples; one that broke nothing in the search may break some draws.
        attacked: bool (N,), whether the sample was attacked; else its clean input counts.

    Returns:
        `fresh_accuracy`: mean over `DRAWS` calls, with the Wilson interval of N samples; samples that were misclassified
            before any attack count as wrong, as everywhere.
        `broken_by_every_draw`: share of the samples that are wrong in every call.
    """
    data, classifier = subject.dataset, subject.classifier
    if not len(data) or not is_random(subject):
        return {}
    moved = attacked.nonzero().flatten()
    right = torch.zeros(DRAWS, len(data), dtype=torch.bool)
    for i, answers in enumerate(right):
        with seeded(derive_seed(subject.seed, "fresh draws", i)):
            answers[:] = subject.clean_correct & _is_right(classifier, data.inputs, data.targets)
            if len(moved):
                answers[moved] = _is_right(classifier, examples[moved], data.targets[moved])
    total, n = float(right.double().mean(0).sum()), len(data)
    return {
        **BinomialRate(total, n, *binomial_interval(total, n)).metrics("fresh_accuracy"),
        "broken_by_every_draw": float((~right).all(0).double().mean()),
        "fresh_draws": DRAWS,
    }


def _is_right(classifier: Classifier, inputs: Tensor, labels: Tensor) -> Tensor:
    return classifier.criterion.is_correct(classifier.logits(inputs), labels)


def fresh_caveats(metrics: dict[str, Json]) -> Iterator[Caveat]:
    """Yield what fresh draws leave, where the model draws at random."""
    if metrics:
        yield Caveat(
            "fresh_draws",
            f"The model draws at random: {metrics['fresh_accuracy']:.1%} are right under {DRAWS} fresh draws of the stored examples "
            f"({metrics['broken_by_every_draw']:.1%} are wrong in every draw); adversarial_accuracy counts the draw that the search saw.",
        )
