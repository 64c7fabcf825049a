"""The outcomes of the batches of a sequential gate as one record."""

import pytest

from windtunnel.operations.sequential import joined
from windtunnel.records.gate import OutcomeRecord, Outcomes, Shares


@pytest.mark.parametrize("order", ["bdac", "dbca"])
def test_batches_are_joined_in_the_order_that_pairs_need(order):
    held, right = {"b": "1", "d": "0", "a": "-", "c": "1"}, {"b": 3, "d": None, "a": 7, "c": 0}
    batches = []
    for names in (("b", "d"), ("a", "c")):
        rows = {
            "worst_case/accuracy": Outcomes("p", "".join(held[name] for name in names)),
            "blur/corrupted_accuracy": Shares("q", tuple(right[name] for name in names), 10),
        }
        batches.append(OutcomeRecord("m", names, rows))
    record = joined(batches, order)
    assert record.samples == tuple(order)
    assert record.outcomes["worst_case/accuracy"] == Outcomes("p", "".join(held[name] for name in order))
    assert record.outcomes["blur/corrupted_accuracy"] == Shares("q", tuple(right[name] for name in order), 10)
