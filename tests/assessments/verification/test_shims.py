"""What auto-LiRPA 0.3 lacks is put back, and what is there is left alone."""

import sys

import numpy as np
import pytest
import torch
from balls import budget, entry, subject_with
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.bound_propagation.lirpa import shim_auto_lirpa


def test_what_auto_lirpa_imports_is_there_after_the_shims_and_nothing_is_replaced(monkeypatch):
    import torch.onnx.symbolic_helper as helper

    shim_auto_lirpa()
    assert sys.modules["numpy.lib.arraysetops"].isin is np.isin
    assert hasattr(torch._C.Node, "__getitem__")
    kept = object()
    monkeypatch.setattr(helper, "_set_opset_version", kept)
    shim_auto_lirpa()
    assert helper._set_opset_version is kept


@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown"])
def test_a_leaky_relu_of_negative_slope_is_not_taken_for_monotonic(method):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(16, 8), nn.LeakyReLU(-0.5), nn.Linear(8, 8), nn.LeakyReLU(-0.5), nn.Linear(8, 3)]
    module, x, epsilon = nn.Sequential(*layers), torch.rand(4, 1, 4, 4), 0.2
    subject = subject_with(module, x, 3)
    found = assess("v", entry(method), budget(epsilon), subject).data["lower_margins"]
    low, high = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    for i, target in enumerate(subject.dataset.targets.tolist()):
        corners = torch.rand(4000, 1, 4, 4).round()
        points = low[i] + (high[i] - low[i]) * torch.cat([corners, torch.rand(4000, 1, 4, 4)])
        logits = module(points)
        others = logits.index_fill(1, torch.tensor(target), -torch.inf).amax(1)
        assert found[i] <= (logits[:, target] - others).amin() + 1e-4
