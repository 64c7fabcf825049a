import pytest
import torch
from balls import subject_with
from torch import nn


@pytest.fixture(scope="session")
def free_linear():
    """A linear classifier whose samples lie in the middle of [0, 1], so that the image's edge cuts nothing off."""
    torch.manual_seed(3)
    return subject_with(nn.Sequential(nn.Flatten(), nn.Linear(9, 4)), 0.5 + 0.1 * (torch.rand(40, 1, 3, 3) - 0.5), 4)
