"""The one reader of ONNX graphs: it computes what onnxruntime computes, for any batch, or names the operator that it refuses."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.overrides import TorchFunctionMode

from tests.boundary.models.onnx_graphs import GRAPHS, dynamo, legacy
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.boundary.models.backends import OnnxModule
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.boundary.models.onnx_network import OnnxNetwork
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.subject import subject_of
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model
from windtunnel.params.verification import VerificationEntry

TOLERANCE = 1e-3


def onnxruntime_logits(path, x, optimised):
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    taken = session.get_inputs()[0]
    batches = x.split(1) if taken.shape[0] == 1 else [x]
    return torch.cat(
        [torch.from_numpy(session.run(None, {taken.name: b.numpy()})[0]).reshape(len(b), -1) for b in batches]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_every_exporter_is_read_as_onnxruntime_runs_it(tmp_path, name):
    path = tmp_path / "m.onnx"
    GRAPHS[name](path)
    network = OnnxNetwork(path).eval()
    # onnxruntime's own results on QDQ graphs differ by a step of quantisation with and without its fusions; those without are
    # what the operators' definitions say.
    optimised = not name.startswith("qdq")
    for n in (1, 7):
        x = torch.rand(n, *network.input_shape, generator=torch.Generator().manual_seed(n))
        with torch.no_grad():
            logits = network(x)
        assert float((logits - onnxruntime_logits(path, x, optimised)).abs().max()) < TOLERANCE
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(network(x).square().sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def save(path, nodes, constants, opset=17, shape=(1, 3, 8, 8)):
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [taken], [given], tensors)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), path)
    return path


REFUSED = {
    "an unknown operator": (
        [helper.make_node("Hardmax", ["x"], ["y"], name="h")],
        r"operator Hardmax \('h'\) is not read: export",
    ),
    "another domain": ([helper.make_node("Relu", ["x"], ["y"], domain="mine")], "operator Relu is not read: export"),
    "scales of the batch": (
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "y"])],
        "DynamicQuantizeLinear scales by the range of the whole batch, .*: quantise statically",
    ),
    "training mode": (
        [helper.make_node("BatchNormalization", ["x", "g", "g", "g", "g"], ["y"], training_mode=1)],
        r"BatchNormalization was exported in training mode: .*; export model.eval\(\)",
    ),
    "a shape of pixels": (
        [helper.make_node("Cast", ["x"], ["s"], to=TensorProto.INT64), helper.make_node("Expand", ["g", "s"], ["y"])],
        "operator Expand takes a shape, an index or a bound that is computed from the pixels: export it as a constant",
    ),
    "a size of data": (
        [helper.make_node("NonZero", ["x"], ["y"])],
        "NonZero gives a result whose size depends on the pixels",
    ),
    "a wrong shape": (
        [helper.make_node("MatMul", ["x", "g"], ["y"])],
        r"operator MatMul cannot be computed by torch \(.*\); export the model with a dynamic batch",
    ),
    "an attribute": (
        [helper.make_node("ArgMax", ["x"], ["y"], axis=1, select_last_index=1)],
        "operator ArgMax with select_last_index = 1 is not read; export it without",
    ),
    "a causal mask": (
        [helper.make_node("Attention", ["x", "x", "x"], ["y"], is_causal=1)],
        "operator Attention with is_causal = 1 is not read; export it without",
    ),
    "smoothing": (
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", antialias=1)],
        "operator Resize with antialias = 1 is not read; export it without",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_with_its_name(tmp_path, name):
    nodes, words = REFUSED[name]
    constants = {"g": np.ones(3, np.float32), "sizes": np.array([1, 3, 4, 4])}
    path = save(tmp_path / "m.onnx", nodes, constants, 18)
    with pytest.raises(IncompatibleError, match=rf"m\.onnx: {words}" if words.startswith("operator") else words):
        OnnxNetwork(path)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("n", "operator ReduceSum mixes the samples of a batch"),
        (4, "takes 4 samples at once: export the model for one"),
    ],
)
def test_a_graph_that_mixes_samples_is_refused(tmp_path, size, message):
    path = save(tmp_path / "m.onnx", [helper.make_node("ReduceSum", ["x"], ["y"])], {}, shape=(size, 3, 8, 8))
    with pytest.raises(IncompatibleError, match=message):
        OnnxNetwork(path)


NODE = helper.make_node
ROWS = {"w": np.random.default_rng(0).normal(size=(3, 4)).astype("f4")}
CHANNELS = {
    "k": np.random.default_rng(0).normal(size=(3, 2, 3, 3)).astype("f4"),
    "scales": np.float32([1, 1, 1.4, 2.5]),
}
LIMITS = {"low": np.array([0, 0, 1, 1]), "high": np.array([1, 3, 7, 2**40]), "first": np.array(0)}
SIZES = {"sizes": np.array([1, 3, 9, 12]), "two": np.float32([2, 2]), "mask": np.arange(64).reshape(8, 8) % 3 > 0}
MIDDLES = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
# name -> nodes, opset. Forms that were computed wrongly, or refused.
BATCH_OF_ONE = {
    "every sample of a slice": ([NODE("Slice", ["x", "low", "high"], ["y"])], 13),
    "the only sample": ([NODE("Gather", ["x", "first"], ["y"])], 13),
    "rows of its own": ([NODE("MatMul", ["x", "r"], ["z"]), NODE("Reshape", ["z", "column"], ["y"])], 13),
    "an output shape": ([NODE("ConvTranspose", ["x", "k"], ["y"], strides=[2, 2], output_shape=[16, 17])], 13),
    "a mask": ([NODE("Attention", ["x", "x", "x", "mask"], ["y"])], 23),
    "nearest by sizes": ([NODE("Resize", ["x", "", "", "sizes"], ["y"], **MIDDLES)], 13),
    "axes of height and width": ([NODE("Resize", ["x", "", "two"], ["y"], axes=[2, 3], **MIDDLES)], 18),
}


@pytest.mark.parametrize("name", BATCH_OF_ONE)
def test_a_graph_of_one_sample_is_read_for_several(tmp_path, name):
    nodes, opset = BATCH_OF_ONE[name]
    more = {"r": np.ones((8, 2), "f4"), "column": np.array([-1, 1])}
    path = save(tmp_path / "m.onnx", nodes, ROWS | CHANNELS | LIMITS | SIZES | more, opset)
    network, x = OnnxNetwork(path), torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x).flatten(1), onnxruntime_logits(path, x, True), atol=1e-4, rtol=1e-4)


# Axes, ranks and shapes of which the first dimension is no batch: nodes from x, opset.
ONE_SAMPLE = {
    "softmax over the first": ([NODE("Softmax", ["x"], ["y"], axis=0)], 13),
    "softmax over the second": ([NODE("Softmax", ["x"], ["y"], axis=1)], 13),
    "old softmax": ([NODE("Softmax", ["x"], ["y"], axis=1)], 11),
    "old softmax of all": ([NODE("LogSoftmax", ["x"], ["y"], axis=0)], 11),
    "concatenation first": ([NODE("Neg", ["x"], ["n"]), NODE("Concat", ["x", "n", "x"], ["y"], axis=0)], 11),
    "concatenation last": ([NODE("Neg", ["x"], ["n"]), NODE("Concat", ["n", "x"], ["y"], axis=-1)], 11),
    "sum of all": ([NODE("ReduceSum", ["x"], ["y"], keepdims=0)], 13),
    "mean over the first": ([NODE("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)], 11),
    "mean over the others": ([NODE("ReduceMean", ["x"], ["y"], axes=[-1, 1])], 11),
    "largest over the first": ([NODE("ReduceMax", ["x", "zero"], ["y"])], 18),
    "reversed": ([NODE("Transpose", ["x"], ["t"]), NODE("Relu", ["t"], ["y"])], 9),
    "flat": ([NODE("Flatten", ["x"], ["y"], axis=0)], 9),
    "flat from the third": ([NODE("Flatten", ["x"], ["f"], axis=2), NODE("MatMul", ["rows", "f"], ["y"])], 9),
    "unsqueezed": ([NODE("Unsqueeze", ["x", "two_axes"], ["u"]), NODE("Add", ["u", "x"], ["y"])], 13),
    "squeezed": ([NODE("Slice", ["x", "zero", "one"], ["s"]), NODE("Squeeze", ["s", "zero"], ["y"])], 13),
    "split": ([NODE("Split", ["x", "halves"], ["a", "b"], axis=-1), NODE("Sub", ["b", "a"], ["y"])], 13),
    "backwards": ([NODE("Slice", ["x", "last", "before", "zero", "minus"], ["y"])], 13),
    "gathered": ([NODE("Gather", ["x", "zero"], ["y"])], 13),
    "gathered in pairs": ([NODE("Gather", ["x", "pairs"], ["y"], axis=1)], 13),
    "weights on the left": ([NODE("MatMul", ["eight", "x"], ["y"])], 13),
    "a vector on the right": ([NODE("MatMul", ["x", "ones"], ["y"])], 13),
    "a vector on the left": ([NODE("MatMul", ["ones", "x"], ["y"])], 13),
    "a product of two": ([NODE("Relu", ["x"], ["r"]), NODE("MatMul", ["x", "r"], ["y"])], 13),
    "a value of another rank": (
        [NODE("ReduceSum", ["x", "zero"], ["s"], keepdims=0), NODE("Mul", ["x", "s"], ["y"])],
        13,
    ),
    "a constant of more dimensions": ([NODE("Add", ["x", "five"], ["y"])], 13),
    "expanded": ([NODE("Expand", ["x", "five_sizes"], ["y"])], 13),
    "repeated": ([NODE("Tile", ["x", "times"], ["y"])], 13),
    "padded": ([NODE("Pad", ["x", "pads"], ["y"])], 13),
    "chosen": ([NODE("Greater", ["x", "half"], ["c"]), NODE("Where", ["c", "x", "five"], ["y"])], 13),
    "a convolution of each": (
        [NODE("Reshape", ["x", "planes"], ["p"]), NODE("Conv", ["p", "kernel"], ["c"]), NODE("Relu", ["c"], ["y"])],
        13,
    ),
    "rows in a layer": (
        [
            NODE("Reshape", ["x", "table"], ["t"]),
            NODE("Gemm", ["t", "eight", "ones"], ["g"]),
            NODE("Sigmoid", ["g"], ["y"]),
        ],
        13,
    ),
    "the same letters": ([NODE("Einsum", ["x", "x"], ["y"], equation="...ij,...kj->...ik")], 13),
}


@pytest.mark.parametrize("has_batch", [True, False])
@pytest.mark.parametrize("name", ONE_SAMPLE)
def test_a_graph_of_one_sample_treats_its_first_dimension_as_any_other(tmp_path, name, has_batch):
    nodes, opset = ONE_SAMPLE[name]
    generator = np.random.default_rng(0)
    integers = {
        "zero": [0], "one": [1], "minus": [-1], "two_axes": [0, 2], "halves": [4, 4], "last": [-1], "before": [-9],
        "pairs": [[0, 1], [2, 0]], "five_sizes": [2, 1, 3, 8, 8], "planes": [3, 1, 8, 8], "table": [24, 8],
        "times": [2, 1, 1, 1] if has_batch else [2, 1, 1], "pads": [0, 0, 1, 0] * 2 if has_batch else [1, 0, 0, 0, 2, 1],
    }  # fmt: skip
    shapes = {
        "rows": (2, 3 if has_batch else 24),
        "eight": (8, 8),
        "ones": (8,),
        "five": (2, 1, 3, 1, 8),
        "half": (1,),
        "kernel": (2, 1, 3, 3),
    }
    constants = {key: np.array(value, np.int64) for key, value in integers.items()}
    constants |= {key: generator.uniform(0.2, 0.8, size).astype("f4") for key, size in shapes.items()}
    path = save(tmp_path / "m.onnx", nodes, constants, opset, (1, 3, 8, 8) if has_batch else (3, 8, 8))
    network, reference = OnnxNetwork(path, numbers=192), OnnxModule(path, numbers=192)
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x), reference(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (["x", "", "scales"], {"mode": "linear"}),
        (["x", "", "scales"], {"mode": "nearest", "nearest_mode": "floor"}),
        (["x", "", "", "sevens"], {"mode": "nearest"}),
        (["x", "", "", "doubled"], {"mode": "nearest", "nearest_mode": "ceil"}),
        (["x", "", "", "doubled"], {"mode": "nearest", "coordinate_transformation_mode": "align_corners"}),
    ],
)
def test_a_resize_that_torch_computes_otherwise_is_refused(tmp_path, inputs, attributes):
    """By a scale that gives no whole size, at ties between two pixels, and with other positions or rounding."""
    constants = CHANNELS | {"sevens": np.array([1, 3, 24, 7]), "doubled": np.array([1, 3, 16, 16])}
    path = save(tmp_path / "m.onnx", [NODE("Resize", inputs, ["y"], **attributes)], constants, 13)
    with pytest.raises(IncompatibleError, match=r"operator Resize with mode .* is not read; export nearest"):
        OnnxNetwork(path)


def test_a_branch_that_shapes_decide_is_read(tmp_path):
    """Older exporters write a squeeze of a size that they do not know as an If."""
    branches = [
        helper.make_graph([helper.make_node(operator, ["x"], [operator])], "b",
                          [], [helper.make_tensor_value_info(operator, TensorProto.FLOAT, None)])
        for operator in ("Relu", "Neg")
    ]  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "three"], ["width"]),
        helper.make_node("Equal", ["width", "eight"], ["is_eight"]),
        helper.make_node("If", ["is_eight"], ["r"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("ReduceMean", ["r"], ["y"], axes=[2, 3], keepdims=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"three": np.array(3), "eight": np.array(8)})
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(OnnxNetwork(path)(x), x.relu().mean((2, 3)))


@pytest.mark.parametrize(
    "name", ["legacy-residual-17-one-unfolded", "dynamo-vit-20-one", "hand-channels_last", "dynamo-old-23-any"]
)
def test_the_module_is_what_torch_export_takes(tmp_path, name):
    path = tmp_path / "m.onnx"
    GRAPHS[name](path)
    network = OnnxNetwork(path).eval()
    x = torch.rand(5, *network.input_shape)
    program = torch.export.export(network, (x[:2],), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.testing.assert_close(program.module()(x), network(x))


def test_a_copy_of_a_copy_of_a_graph_runs(tmp_path):
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)]
    module, x = OnnxModule(save(tmp_path / "m.onnx", nodes, {})), torch.rand(1, 3, 8, 8)
    torch.testing.assert_close(copy.deepcopy(copy.deepcopy(module))(x), module(x))


def test_padding_and_transpositions_leave_plain_convolutions(tmp_path):
    """Verifiers have no padding of their own, and would carry a transposition through every layer."""
    path = tmp_path / "m.onnx"
    GRAPHS["hand-channels_last"](path)
    assert [step.operator for step in OnnxNetwork(path).steps].count(
        "Transpose"
    ) == 4  # the input's, and three around values
    GRAPHS["hand-sliced"](path)
    assert "Pad" not in {step.operator for step in OnnxNetwork(path).steps}


@pytest.mark.parametrize(("export", "opset"), [(legacy, 14), (legacy, 17), (dynamo, 18), (dynamo, 20)])
def test_gelu_and_normalisation_that_an_exporter_took_apart_have_their_own_bounds(tmp_path, export, opset):
    path = tmp_path / "m.onnx"
    export("vit", path, opset, True, *([True] if export is legacy else []))
    network = OnnxNetwork(path).eval()
    operators = {step.operator for step in network.steps}
    assert operators & {"Gelu", "TwiceGelu"}
    assert operators & {"LayerNormalization", "Standardise"}
    assert not operators & {"Erf", "Sqrt", "Pow"}
    x = torch.rand(3, *network.input_shape, generator=torch.Generator().manual_seed(0))
    assert float((network(x) - onnxruntime_logits(path, x, True)).abs().max()) < TOLERANCE
    layers = Network(network, network.input_shape, torch.device("cpu")).layers
    assert "gelu" in {getattr(layer.activation, "name", "") for layer in layers}


GELU = [
    NODE("Div", ["x", "c"], ["d"]), NODE("Erf", ["d"], ["e"]), NODE("Add", ["e", "one"], ["a"]), NODE("Mul", ["x", "a"], ["y"])
]  # fmt: skip


@pytest.mark.parametrize(
    ("root", "dtype", "joined"),
    [
        (2**0.5, "f4", True),
        (1.414214, "f4", True),
        (1.4151, "f4", False),
        (1.4140625, "f4", False),
        (2**0.5, "f2", True),
    ],
)
def test_a_gelu_is_one_only_where_it_divides_by_the_root_of_two(tmp_path, root, dtype, joined):
    path = save(tmp_path / "m.onnx", GELU, {"c": np.array(root, dtype), "one": np.array(1, dtype)}, shape=("n", 4))
    model = onnx.load(path)
    model.graph.input[0].name = "own"
    model.graph.node.insert(
        0, NODE("Cast", ["own"], ["x"], to=TensorProto.FLOAT16 if dtype == "f2" else TensorProto.FLOAT)
    )
    onnx.save(model, path)
    network, x = OnnxNetwork(path), torch.randn(64, 4)
    assert ("TwiceGelu" in {step.operator for step in network.steps}) == joined
    tolerance = 1e-2 if dtype == "f2" else 1e-6
    torch.testing.assert_close(network(x).float(), x * (1 + torch.erf(x / root)), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(("axes", "shift"), [(True, "x"), (False, "eps")], ids=["no number to add", "all axes"])
def test_what_is_like_standardisation_is_computed_as_it_stands(tmp_path, opset, axes, shift):
    def mean(name, to):
        of = ([name, "last"], {}) if axes and opset == 18 else ([name], {"axes": [-1]} if axes else {})
        return NODE("ReduceMean", of[0], [to], keepdims=1, **of[1])

    nodes = [
        mean("x", "m"), NODE("Sub", ["x", "m"], ["c"]), NODE("Pow", ["c", "two"], ["p"]), mean("p", "v"),
        NODE("Add", ["v", shift], ["s"]), NODE("Sqrt", ["s"], ["r"]), NODE("Div", ["c", "r"], ["y"]),
    ]  # fmt: skip
    constants = {"two": np.float32(2), "eps": np.float32(1e-5), "last": np.array([-1])}
    path = save(tmp_path / "m.onnx", nodes, constants, opset, ("n", 4))
    x = torch.rand(6, 4)
    # All axes are the batch's too: such a graph is read for one size of batch alone.
    torch.testing.assert_close(OnnxNetwork(path, None if axes else 6)(x), onnxruntime_logits(path, x, True))


class Passing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [lambda: torch.device("cpu"), Passing], ids=["a default device", "any other"])
def test_gradients_pass_straight_through_rounding_under_a_mode_that_does_not_bound_it(tmp_path, mode):
    network = OnnxNetwork(save(tmp_path / "m.onnx", [NODE("Round", ["x"], ["y"])], {}, shape=("n", 4)))
    x = torch.rand(3, 4).requires_grad_()
    with mode():
        (gradient,) = torch.autograd.grad(network(x).sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))
    with torch.device("cpu"):
        assert Network(network, (4,), torch.device("cpu")).layers, "the jump is bounded"


@pytest.mark.parametrize("name", ["qoperator-old-int8", "qdq-old-uint8"])
def test_a_quantised_graph_is_certified_where_no_sampled_point_breaks_it(tmp_path, name):
    """At a jump the file and float64 bounds may take different sides, so that a bound covers both."""
    path = tmp_path / "m.onnx"
    GRAPHS[name](path)
    x, epsilon = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0)), 1e-5
    data = Dataset(x, torch.zeros(3, dtype=torch.int64), tuple("abc"), tuple("abcde"))
    classifier = preview_classifier(Model(source="onnx", path=str(path)), data, None, "cpu")
    data = Dataset(x, classifier.predict(x), data.ids, data.class_names)
    entry = VerificationEntry(library="windtunnel", algorithm="cascade", steps=("branch-and-bound",), timeout=5)
    result = assess("v", entry, Budget(norm=Norm.LINF, epsilon=epsilon), subject_of(classifier, data))
    certified = (result.data["verdicts"] == int(Verdict.VERIFIED)).nonzero().flatten()
    assert len(certified)
    points = x.repeat_interleave(100, 0)
    points = (points + epsilon * torch.randn(points.shape, generator=torch.Generator().manual_seed(1)).sign()).clamp(
        0, 1
    )
    for is_optimised in (False, True):
        predictions = onnxruntime_logits(path, points, is_optimised).argmax(1).view(3, -1)
        assert (predictions == data.targets[:, None])[certified].all()
