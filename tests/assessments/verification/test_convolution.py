"""Convolutions carried backwards in less time are torch's, and have its gradients."""

import pytest
import torch
from torch import nn

from windtunnel.assessments.verification.bound_propagation.convolution import QuickTransposes, conv2d, pair

SIZES = [
    ((9, 7), (3, 3), {}),
    ((9, 7), (3, 3), {"padding": 1}),
    ((8, 8), (1, 1), {"stride": 2}),
    ((28, 28), (4, 4), {"stride": 2, "padding": 1}),
    ((28, 28), (3, 3), {"stride": (2, 2), "padding": (1, 1)}),
    ((1, 2), (2, 2), {"stride": 3, "padding": 1}),
    ((11, 10), (5, 3), {"stride": (2, 3), "padding": (2, 1)}),
    ((9, 9), (2, 2), {"stride": 3}),  # positions of which nothing depends
    ((7, 8), (3, 2), {"stride": [1], "padding": [4, 2]}),  # wider than the kernel
    ((9, 9), (3, 3), {"dilation": 2}),
    ((9, 9), (3, 3), {"groups": 2}),
]


@pytest.mark.parametrize("inputs", [2, 8])  # by matrices and by a convolution
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "kernel", "settings"), [*SIZES, ((9, 9), (3, 3), {"padding": "same", "dilation": 2})])
def test_the_gradient_is_torchs(inputs, dtype, size, kernel, settings):
    torch.manual_seed(0)
    x = torch.randn(3, inputs, *size, dtype=dtype, requires_grad=True)
    weight = torch.randn(6, inputs // settings.get("groups", 1), *kernel, dtype=dtype)
    bias = torch.randn(6, dtype=dtype)
    ours, theirs = conv2d(x, weight, bias, **settings), nn.functional.conv2d(x, weight, bias, **settings)
    assert torch.equal(ours, theirs)
    g = torch.randn_like(ours)
    (found,), (wanted,) = (torch.autograd.grad(out, x, g) for out in (ours, theirs))
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_weight_that_depends_on_the_input_has_its_gradient():
    torch.manual_seed(0)
    x = torch.randn(1, 4, 3, 3, requires_grad=True)
    (found,), (wanted,) = (
        torch.autograd.grad(f(torch.ones(1, 4, 9, 9), x).sum(), x) for f in (conv2d, nn.functional.conv2d)
    )
    assert torch.allclose(found, wanted)


@pytest.mark.parametrize("inputs", [2, 8])
@pytest.mark.parametrize(("size", "kernel", "settings"), SIZES)
def test_a_transposed_convolution_and_its_gradient_are_torchs(inputs, size, kernel, settings):
    torch.manual_seed(0)
    weight = torch.randn(6, inputs // settings.get("groups", 1), *kernel)
    strides, paddings = pair(settings.get("stride", 1)), pair(settings.get("padding", 0))
    out = nn.functional.conv2d(torch.zeros(3, inputs, *size), weight, None, **settings).shape
    spread = settings.get("dilation", 1)
    more = [
        side - ((many - 1) * stride - 2 * p + spread * (reach - 1) + 1)
        for side, many, stride, p, reach in zip(size, out[2:], strides, paddings, kernel, strict=True)
    ]
    g = torch.randn(out, requires_grad=True)
    wanted = nn.functional.conv_transpose2d(g, weight, None, output_padding=more, **settings)
    with QuickTransposes():
        found = nn.functional.conv_transpose2d(g, weight, None, output_padding=more, **settings)
    assert found.shape == (3, inputs, *size)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
    goal = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(it, g, goal)[0] for it in (found, wanted))
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
