"""The nearest samples that check A21 asks are other ones: neither the sample itself nor a copy of it."""

import torch

from windtunnel.evaluation.sanity import samples
from windtunnel.evaluation.sanity.samples import NEIGHBOURS, _groups, _labels_nearby


def brute_force(inputs: torch.Tensor, labels: torch.Tensor, row: int) -> list[int]:
    others = [i for i in range(len(inputs)) if not torch.equal(inputs[i], inputs[row])]
    others.sort(key=lambda i: float((inputs[i] - inputs[row]).double().norm()))
    return [int(labels[i]) for i in others[:NEIGHBOURS]]


def test_they_are_those_of_a_search_by_hand_in_parts_of_any_size(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand((60, 1, 4, 4), generator=generator)
    inputs[31], inputs[7] = inputs[30], inputs[30]
    labels = torch.arange(60)
    rows = torch.tensor([0, 7, 30, 59])
    expected = [brute_force(inputs, labels, row) for row in rows.tolist()]
    for values in (16, 160, 10**6):
        monkeypatch.setattr(samples, "NEAR", values)
        found = _labels_nearby(inputs, labels, _groups(inputs), rows)
        assert found.tolist() == expected


def test_where_there_are_fewer_the_others_have_no_label():
    inputs = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    found = _labels_nearby(inputs, torch.tensor([5, 5, 6, 7]), _groups(inputs), torch.tensor([0]))
    assert found.tolist() == [[6, 7, -1, -1, -1]]
