"""An ONNX graph is attacked and bounded as the torch model that it was made of; where it cannot be, it says why."""

import warnings
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
import torch
import torchattacks
from onnx import TensorProto, helper
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.cascade.solver_step import graph_for_marabou
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models import onnx_gradients
from windtunnel.boundary.models.load import import_model, load_classifier, preview_classifier
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Algorithm, Capability, Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model
from windtunnel.params.verification import VerificationEntry
from windtunnel.plugins import AssessmentKind, Randomness, ThreatModel

WHITE_BOX = Algorithm(
    "torchattacks", "PGD", AssessmentKind.EMPIRICAL_ATTACK, ThreatModel.WHITE_BOX, None, frozenset(),
    Randomness.DETERMINISTIC, frozenset({Capability.AUTOGRAD}),
)  # fmt: skip


def exported(module: nn.Module, sample: torch.Tensor, path: Path, opset: int, *, dynamic: bool, dynamo: bool) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            options = {"dynamic_shapes": ({0: torch.export.Dim("n")},)} if dynamic else {}
            torch.onnx.export(
                module, (sample[: 1 + dynamic],), path, dynamo=True, opset_version=opset, verbose=False, **options
            )
        else:
            options = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}} if dynamic else {}
            torch.onnx.export(module, (sample[:1],), path, dynamo=False, opset_version=opset, **options)
    return path


def as_torch(path: Path, data: Dataset) -> Classifier:
    return preview_classifier(Model(source="onnx", path=str(path)), data, None, "cpu")


def survivors(classifier: Classifier, data: Dataset, epsilon: float, steps: int) -> torch.Tensor:
    torch.manual_seed(0)
    attack = torchattacks.PGD(classifier.module, eps=epsilon, alpha=epsilon / 8, steps=steps)
    return classifier.predict(attack(data.inputs, data.targets)) == data.targets


@pytest.mark.parametrize("dynamic", [False, True], ids=["one sample", "any batch"])
@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 20])
def test_pgd_breaks_the_same_samples_of_a_graph_as_of_its_model(tmp_path, digits_subject, opset, dynamic):
    data = digits_subject.dataset.subset(torch.arange(60))
    module = digits_subject.classifier.module
    path = exported(module, data.inputs, tmp_path / "m.onnx", opset, dynamic=dynamic, dynamo=False)
    found = as_torch(path, data)
    assert Capability.AUTOGRAD in found.capabilities
    assert found.onnx_path is not None
    expected = survivors(digits_subject.classifier, data, 0.1, 8)
    assert 0 < int(expected.sum()) < 60
    assert torch.equal(survivors(found, data, 0.1, 8), expected)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["clntrained", "advtrained"])
def test_every_graph_of_the_reference_models_has_their_worst_case(tmp_path, shared, weights):
    images, labels = (str(shared / f"data/mnist/t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    data, _ = load_dataset(Data(source="idx", path=images, labels=labels, samples={"n": 50}), 0)
    factory = "windtunnel.boundary.models.architectures:lenet5"
    path = str(shared / f"data/models/mnist_lenet5_{weights}.pt")
    original = preview_classifier(Model(source="state_dict", path=path, factory=factory), data, None, "cpu")
    epsilon = {"clntrained": 0.1, "advtrained": 0.3}[weights]
    expected = survivors(original, data, epsilon, 5)
    forms = [(8, False, False), (9, True, False), (13, False, False), (20, True, False)]
    if find_spec("onnxscript"):  # what torch's newer exporter needs
        forms += [(18, False, True), (20, True, True), (26, True, True)]
    for opset, dynamic, dynamo in forms:
        graph = exported(original.module, data.inputs, tmp_path / "m.onnx", opset, dynamic=dynamic, dynamo=dynamo)
        assert torch.equal(survivors(as_torch(graph, data), data, epsilon, 5), expected), (opset, dynamic, dynamo)


def test_a_reshape_to_one_sample_takes_any_number_of_them(tmp_path, digits_subject):
    """What torch's newer exporter writes: a constant shape that begins with the batch, and `allowzero`."""
    data = digits_subject.dataset.subset(torch.arange(40))
    weight = torch.randn(10, 64, generator=torch.Generator().manual_seed(0)).numpy()
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"], allowzero=1),
        helper.make_node("Gemm", ["flat", "w"], ["y"], transB=1),
    ]
    constants = [onnx.numpy_helper.from_array(torch.tensor([1, 64]).numpy(), "shape"),
                 onnx.numpy_helper.from_array(weight, "w")]  # fmt: skip
    path = _saved(nodes, constants, tmp_path / "m.onnx", opset=21)
    found = as_torch(path, data)
    assert found.module.batch is None
    torch.testing.assert_close(found.logits(data.inputs), data.inputs.flatten(1) @ torch.from_numpy(weight).T)


def test_a_graph_of_one_size_of_batch_keeps_it_where_it_must(tmp_path, digits_subject):
    data = digits_subject.dataset.subset(torch.arange(7))
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Add", ["flat", "rows"], ["sum"]),  # a value of its own for each of the four rows
        helper.make_node("Gemm", ["sum", "w"], ["y"]),
    ]
    rows, weight = torch.arange(4.0)[:, None].expand(4, 64).numpy(), torch.randn(64, 10).numpy()
    constants = [onnx.numpy_helper.from_array(rows, "rows"), onnx.numpy_helper.from_array(weight, "w")]
    found = as_torch(_saved(nodes, constants, tmp_path / "m.onnx", batch=4), data)
    assert found.module.batch == 4
    assert Capability.AUTOGRAD in found.capabilities


def test_a_graph_with_an_operator_that_has_no_torch_form_names_it(tmp_path, digits_subject):
    data = digits_subject.dataset.subset(torch.arange(8))
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Hardmax", ["flat"], ["bent"], name="hard"),
        helper.make_node("Gemm", ["bent", "w"], ["y"]),
    ]
    weight = onnx.numpy_helper.from_array(torch.randn(64, 10).numpy(), "w")
    found = as_torch(_saved(nodes, [weight], tmp_path / "m.onnx"), data)
    assert Capability.AUTOGRAD not in found.capabilities
    with pytest.raises(
        IncompatibleError,
        match=r"forward pass only: weights.onnx: operator Hardmax \('hard'\) is not read: export the model",
    ):
        found.require(WHITE_BOX, "attacks.pgd")


def test_a_torch_form_of_other_logits_is_not_used(tmp_path, digits_subject, monkeypatch):
    data = digits_subject.dataset.subset(torch.arange(8))
    path = exported(digits_subject.classifier.module, data.inputs, tmp_path / "m.onnx", 13, dynamic=True, dynamo=False)
    right = onnx_gradients.converted

    def slightly_wrong(path: Path, batch: int | None, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(right(path, batch, shape), Shifted())

    monkeypatch.setattr(onnx_gradients, "converted", slightly_wrong)
    found = as_torch(path, data)
    assert Capability.AUTOGRAD not in found.capabilities
    assert "differ from onnxruntime's by 0.1" in found.source


class Shifted(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits + 0.1


def test_the_difference_is_a_caveat_of_every_number(tmp_path, digits_subject):
    data = digits_subject.dataset.subset(torch.arange(30))
    path = exported(digits_subject.classifier.module, data.inputs, tmp_path / "m.onnx", 13, dynamic=True, dynamo=False)
    (caveat,) = subject_of(as_torch(path, data), data).caveats
    assert caveat.code == "converted_model"
    assert "on the 30 assessed samples" in caveat.text


def test_a_kept_graph_is_compared_once(tmp_path, digits_subject, monkeypatch):
    data = digits_subject.dataset.subset(torch.arange(8))
    path = exported(digits_subject.classifier.module, data.inputs, tmp_path / "m.onnx", 13, dynamic=True, dynamo=False)
    import_model(Model(source="onnx", path=str(path)), None, 0, "cpu", tmp_path / "kept", None, data)
    monkeypatch.setattr(onnx_gradients, "compare", lambda *_: pytest.fail("compared again"))
    assert Capability.AUTOGRAD in load_classifier(tmp_path / "kept", "cpu", data).capabilities


def test_bounds_are_of_the_torch_form_and_the_solver_reads_the_graph_itself(tmp_path, mlp_subject):
    data = mlp_subject.dataset.subset(torch.arange(8))
    path = exported(mlp_subject.classifier.module, data.inputs, tmp_path / "m.onnx", 13, dynamic=False, dynamo=False)
    import_model(Model(source="onnx", path=str(path)), None, 0, "cpu", tmp_path / "kept", None, data)
    given = load_classifier(tmp_path / "kept", "cpu", data)
    subject: Subject = subject_of(given, data)
    canonical = canonical_subject(subject)
    assert isinstance(canonical.subject.classifier.module, torch.fx.GraphModule), "traced, as a torch model is"
    pytest.importorskip("maraboupy")
    graph = onnx.load(str(graph_for_marabou(canonical, given, tmp_path)[0]))
    own = onnx.load(str(path))
    assert [node.op_type for node in graph.graph.node if node.op_type == "Gemm"] == [
        node.op_type for node in own.graph.node if node.op_type == "Gemm"
    ]


def _saved(nodes: list, constants: list, path: Path, opset: int = 18, batch: int = 1) -> Path:
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


@pytest.mark.parametrize("dynamic", [False, True], ids=["one sample", "any batch"])
def test_a_graph_that_declares_a_column_decides_images_as_its_model_does(tmp_path, mlp_subject, dynamic):
    """Graphs of the verification competition take 1x784x1 for an image of 1x28x28."""
    data, model = mlp_subject.dataset.subset(torch.arange(6)), mlp_subject.classifier
    columns = data.inputs.flatten(1)[:, :, None]
    path = exported(model.module, columns, tmp_path / "column.onnx", 13, dynamic=dynamic, dynamo=False)
    found = as_torch(path, data)
    assert Capability.AUTOGRAD in found.capabilities
    assert torch.allclose(found.logits(data.inputs), model.logits(data.inputs), atol=1e-5)
    given = VerificationEntry(library="windtunnel", algorithm="cascade", steps=("crown", "branch-and-bound", "marabou"))
    region = Budget(norm=Norm.LINF, epsilon=0.03)
    theirs, ours = (assess("v", given, region, subject_of(it, data)).data["verdicts"].tolist() for it in (found, model))
    assert theirs == ours
    assert len(set(ours)) > 1
