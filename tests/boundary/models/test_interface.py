"""Limits of an interface behind a predict function: batch size, rate, and calls that fail."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from windtunnel.boundary.models import backends
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.errors import UserError
from windtunnel.params.model import Interface, Model


class Answers:
    """A predict function that raises the given errors, one a call, before it answers."""

    def __init__(self, *errors):
        self.errors, self.batches = list(errors), []

    def __call__(self, batch):
        self.batches.append(len(batch))
        if self.errors:
            raise self.errors.pop(0)
        positive = batch.mean((1, 2, 3))
        return np.stack([1 - positive, positive], 1)


@pytest.fixture
def waits(monkeypatch):
    """The seconds of each wait, none of which happens."""
    seconds = []
    monkeypatch.setattr(backends.time, "sleep", seconds.append)
    return seconds


def function(predict, **interface):
    module = PredictFunction(predict)
    module.interface = Interface(**interface)
    return module


X = torch.rand(7, 1, 2, 2, generator=torch.Generator().manual_seed(0))


def test_a_call_that_fails_is_repeated_and_counted_apart(waits):
    module = function(Answers(ConnectionError("reset"), TimeoutError("slow")))
    assert torch.equal(module(X), function(Answers())(X))
    assert [w for w in waits if w] == [0.5, 1.0]
    assert (module.queries_asked, module.queries_repeated, module.calls_made) == (7, 14, 3)


def test_what_fails_always_ends_with_its_reason(waits):
    with pytest.raises(UserError, match=r"raised OSError: .*refused"):
        function(Answers(*[OSError("refused")] * 3), retries=2)(X)
    assert [w for w in waits if w] == [0.5, 1.0]


def test_a_mistake_in_the_code_is_not_repeated(waits):
    predict = Answers(KeyError("probabilities"))
    with pytest.raises(UserError, match="KeyError"):
        function(predict)(X)
    assert predict.batches == [7]


def test_no_call_has_more_samples_than_the_interface_takes(waits):
    predict = Answers()
    module = function(predict, batch_size=3)
    assert torch.equal(module(X), function(Answers())(X))
    assert predict.batches == [3, 3, 1]
    assert module(X[:0]).shape == (0, 2)


def test_calls_are_no_faster_than_the_interface_allows(waits):
    module = function(Answers(), batch_size=1, calls_per_second=0.01)
    module(X[:3])
    assert waits[0] == 0
    assert waits[1:] == pytest.approx([100, 100], abs=5)


def test_only_a_function_has_an_interface():
    with pytest.raises(ValidationError, match="source: onnx calls nothing"):
        Model(source="onnx", path="x.onnx", interface={"batch_size": 3})
