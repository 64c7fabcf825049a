"""The queries that `windtunnel check` announces for a Python predict bound those that a run sends."""

import dataclasses
import io

import pytest
import torch
from rich.console import Console

from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.cli import compatibility
from windtunnel.core.contracts import Capability
from windtunnel.core.subject import Subject
from windtunnel.evaluation.validate import validate
from windtunnel.operations.api.pipeline import assess_subject

N = 8
QUERIES = {
    "evoba": {"algorithm": "EvoBA", "params": {"generation_size": 4, "generations": 3}},
    "simba": {"algorithm": "SimBA", "params": {"steps": 5}, "samples": {"n": 4}},
    "shared": {"algorithm": "EpsGreedy", "params": {"steps": 500}, "total_queries": 80},
    "square": {"library": "torchattacks", "algorithm": "Square", "max_queries": 12},
}


def asked_and_announced(
    linear_subject: Subject, **families: object
) -> tuple[int, list[compatibility.QueriesAnswer], str]:
    """(queries of a run, what was announced, what was printed)."""
    subject = linear_subject.subset(torch.arange(N))
    inner = subject.classifier.module
    module = PredictFunction(lambda batch: inner(torch.from_numpy(batch)).softmax(1).detach().numpy())
    classifier = dataclasses.replace(subject.classifier, module=module, capabilities=frozenset({Capability.FORWARD}))
    model = {"source": "function", "function": "given:directly", "price": 0.5}
    data = {"source": "function", "function": "given:directly", "class_names": 10}
    budget = {"norm": "Linf", "epsilon": 0.05}
    params = validate(
        {"data": data, "model": model, "budget": budget, "sanity": {"profile": "stored"}, **families}, "test"
    )
    stream = io.StringIO()
    announced = compatibility.print_queries(params, subject.dataset, Console(file=stream, width=120))
    assess_subject(params, dataclasses.replace(subject, classifier=classifier), None)
    return module.queries_asked, announced, stream.getvalue()


@pytest.mark.parametrize("name", QUERIES)
def test_a_run_sends_no_more_queries_than_were_announced(linear_subject, name):
    asked, announced, printed = asked_and_announced(linear_subject, queries={name: QUERIES[name]})
    total = sum(answer.most for answer in announced)
    assert N < asked <= total
    assert f"{total / 2:,.2f}" in printed


def test_corruptions_send_what_was_announced(linear_subject):
    entry = {"algorithm": "fog", "severities": [1, 3], "upsample": 32}
    asked, announced, _ = asked_and_announced(linear_subject, corruptions={"suite": entry})
    total = sum(answer.most for answer in announced)
    assert total - N <= asked <= total


def test_an_entry_without_a_limit_is_named(linear_subject):
    square = {"library": "torchattacks", "algorithm": "Square", "params": {"n_queries": 5}}
    _, announced, text = asked_and_announced(linear_subject, queries={"free": square})
    assert [answer.most for answer in announced] == [N, None]
    assert "without a limit, and not in the sum: queries.free" in text
