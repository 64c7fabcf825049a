"""References to modules under the names of earlier versions still load."""

import torch

from windtunnel.boundary.models.architectures import lenet5
from windtunnel.core.references import resolve


def test_a_factory_under_its_former_name_builds_the_same_model():
    former = resolve("windtunnel.inputs.models.architectures:lenet5", "model.factory")()
    assert isinstance(former, torch.nn.Module)
    assert {k: v.shape for k, v in former.state_dict().items()} == {
        k: v.shape for k, v in lenet5().state_dict().items()
    }
