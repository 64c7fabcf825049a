"""What auto-LiRPA 0.3 lacks is put back, and what is there is left alone."""

import sys

import numpy as np
import torch

from windtunnel.assessments.verification.shims import shim_auto_lirpa


def test_what_auto_lirpa_imports_is_there_after_the_shims_and_nothing_is_replaced(monkeypatch):
    import torch.onnx.symbolic_helper as helper

    shim_auto_lirpa()
    assert sys.modules["numpy.lib.arraysetops"].isin is np.isin
    assert hasattr(torch._C.Node, "__getitem__")
    kept = object()
    monkeypatch.setattr(helper, "_set_opset_version", kept)
    shim_auto_lirpa()
    assert helper._set_opset_version is kept
