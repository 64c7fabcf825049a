"""Checks that ask the model about every sample do so a few at a time: memory stays that of a few, whatever the run."""

import torch

from windtunnel.core.classifier import Classifier
from windtunnel.evaluation.sanity import agreement


def test_bounds_are_compared_with_a_few_samples_at_a_time(evidence, monkeypatch):
    whole = agreement.bounds_contain(evidence, 1e-4)
    asked: list[int] = []
    logits = Classifier.logits
    monkeypatch.setattr(Classifier, "logits", lambda self, x: asked.append(len(x)) or logits(self, x))
    monkeypatch.setattr(agreement, "sample_parts", lambda tensor: iter([slice(0, 7)]))
    monkeypatch.setattr(agreement, "AT_RANDOM", 10)
    parts = agreement.bounds_contain(evidence, 1e-4)
    assert max(asked) == 7
    assert (parts.flagged, parts.n) == (whole.flagged, whole.n)
    assert not parts.flagged
    bounded = [
        int(c.artifacts.data["output_bounds"]["lower"].isfinite().all(1).sum()) for c, _ in agreement.balls(evidence)
    ]
    assert sum(asked) >= sum(bounded) + sum(min(10, n) for n in bounded) * agreement.POINTS
    assert torch.isfinite(torch.tensor(parts.value))
