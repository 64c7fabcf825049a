"""Sign, comparisons and roundings are split into their values; within the error of float32 an input takes both of them."""

import numpy as np
import onnx
import pytest
import torch
from exact import network
from onnx import helper, numpy_helper
from test_exactness import verdict
from torch import nn

from windtunnel.assessments.verification.branch_and_bound.network import Network, RoundingErrors
from windtunnel.boundary.models.backends import OnnxModule
from windtunnel.boundary.models.onnx_network import OnnxNetwork

CPU = torch.device("cpu")


class Binarised(nn.Module):
    """The sign of a x + b of four numbers, written in one of the ways that exporters know; then their weighted sum and 0.1."""

    def __init__(self, form, shift):
        super().__init__()
        self.form, self.shift = form, shift

    def forward(self, x):
        z = x.flatten(1) - 0.5 + self.shift
        one = torch.ones_like(z)
        y = {
            "sign": lambda: torch.sign(z),
            "where": lambda: torch.where(z >= 0, one, -one),
            "greater": lambda: 2 * (z > 0).to(z.dtype) - 1,
            "less": lambda: 1 - 2 * (z < 0).to(z.dtype),
            "floor": lambda: 2 * torch.floor(z + 1) - 1,
            "round": lambda: 2 * torch.round(z + 0.5) - 1,
            "ceil": lambda: 2 * torch.ceil(z) - 1,
        }[self.form]()
        total = (y * torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=z.dtype)).sum(1, keepdim=True)
        return torch.cat([total + 1e-3, torch.zeros_like(total)], 1)


@pytest.mark.parametrize("form", ["sign", "where", "greater", "less", "floor", "round", "ceil"])
def test_a_sign_is_decided_on_either_side_and_not_within_rounding_of_its_jump(form):
    """Within 0.1 of 0.7 all four are 1; of 0.55 all may be -1; 1e-9 beside the jump float32 sees no difference."""
    for x, shift, epsilon, expected in (
        (0.7, 0.0, 0.1, True),
        (0.55, 0.0, 0.1, False),
        (0.5, 1e-9, 0.0, None),
        (0.5, 1e-4, 0.0, True),
    ):
        verified, point = verdict(Binarised(form, shift), torch.full((1, 2, 2), x), 0, epsilon)
        assert verified is expected, (x, shift)
        assert (point is not None) == (expected is False)


@pytest.mark.parametrize("kind", ["dense", "convolution, batch norm", "residual", "average pooling", "max pooling"])
def test_float32_is_off_by_less_than_the_bound_and_the_bound_is_small(kind):
    for seed in range(4):
        module = nn.Sequential(network(kind, seed), nn.Linear(3, 4), Step(), nn.Linear(4, 3)).eval()
        net, x = Network(module, (1, 4, 4), CPU), torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        bound, *_ = net.jump_errors(torch.ones(16, dtype=torch.float64)).values()
        apart = (module[:2](x).double() - module[:2].double()(x.double())).abs().amax(0)
        assert (apart <= bound).all()
        assert (bound < 1e-2).all()


class Step(nn.Module):
    def forward(self, z):
        return torch.sign(z)


def test_what_cancels_counts_as_large():
    """(x + 1e4) - 1e4 loses three digits of x, which no weight of the network shows."""
    with RoundingErrors():
        rows = (torch.tensor([[1.0], [0.0], [0.0]]) + 1e4) - 1e4
    assert float(rows[1]) > 1e-3


def quantised_graph(path, form, seed):
    """Save 4 pixels in steps of 1/255, 6 hidden neurons in bytes, 3 logits, as one of the forms of onnxruntime's quantisation."""
    generator = np.random.default_rng(seed)
    constants = {
        "pixel": np.float32(1 / 255), "zero": np.uint8(0), "step": np.float32(0.02), "middle": np.uint8(100),
        "w": generator.integers(-60, 60, (4, 6)).astype(np.int8), "scale": np.float32(0.03), "none": np.int8(0),
        "v": generator.normal(size=(6, 3)).astype(np.float32), "flat": np.array([-1, 4]),
    }  # fmt: skip
    hidden = {
        "QDQ": (
            ("DequantizeLinear", "q pixel zero", "a"), ("DequantizeLinear", "w scale none", "b"),
            ("MatMul", "a b", "c"), ("QuantizeLinear", "c step middle", "r"),
        ),
        "QOperator": (("QLinearMatMul", "q pixel zero w scale none step middle", "r"),),
    }  # fmt: skip
    rows = (
        ("Reshape", "x flat", "z"), ("QuantizeLinear", "z pixel zero", "q"), *hidden[form],
        ("DequantizeLinear", "r step middle", "h"), ("Relu", "h", "p"), ("MatMul", "p v", "y"),
    )  # fmt: skip
    nodes = [helper.make_node(operator, inputs.split(), [output]) for operator, inputs, output in rows]
    taken = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1, 2, 2])
    given = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(
        nodes, form, [taken], [given], [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_a_quantised_graph_is_decided_as_onnxruntime_runs_every_step_of_its_input(form, tmp_path):
    decided, path = [], tmp_path / "q.onnx"
    for seed in (0, 1, 3):
        quantised_graph(path, form, seed)
        module, file, epsilon = OnnxNetwork(path).eval(), OnnxModule(path), (0.5 + 2 * (seed % 4)) / 255
        inputs = torch.rand(50, 1, 2, 2, generator=torch.Generator().manual_seed(seed))
        first, second = file(inputs).topk(2).values.T
        x = inputs[(first - second).argmin() if seed % 2 else 0]
        target = int(file(x[None]).argmax())
        low, high = (x.double() - epsilon).clamp(0, 1).flatten(), (x.double() + epsilon).clamp(0, 1).flatten()
        ends = zip((255 * low).round().int().tolist(), (255 * high).round().int().tolist(), strict=True)
        points = torch.cartesian_prod(*(torch.arange(first, last + 1) for first, last in ends)) / 255.0
        logits = file(points.double().maximum(low).minimum(high).float().view(-1, 1, 2, 2))
        verified, point = verdict(module, x, target, epsilon)
        assert verified in {bool((logits.argmax(1) == target).all()), None}, seed
        assert point is None or int(file(point.view(1, 1, 2, 2).float()).argmax()) != target
        decided.append(verified)
    assert {True, False} <= set(decided)
    assert decided.count(None) <= 1
