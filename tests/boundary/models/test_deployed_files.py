"""TFLite files and twins: numbers are of the deployed file, gradients of its stand-in."""

import pickle
import warnings
from dataclasses import replace

import onnx
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from windtunnel.boundary.models import onnx_gradients
from windtunnel.boundary.models.load import import_model, load_classifier, preview_classifier
from windtunnel.boundary.models.tflite.adapter import keep
from windtunnel.boundary.models.trust import trust_of
from windtunnel.boundary.models.twin import WithTwin
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.model import Model


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def quantised() -> nn.Module:
    """Return the network as torch quantises it dynamically: its logits require a gradient, which never reaches the input."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.ao.quantization.quantize_dynamic(network().eval(), {nn.Linear}, dtype=torch.qint8)


class QuantisedAsExported(nn.Module):
    """What PT2E makes of a network: its inputs rounded by an operator of quantized_decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x):
        x = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.01, 0, 0, 255, torch.uint8)
        return self.inner(torch.ops.quantized_decomposed.dequantize_per_tensor(x, 0.01, 0, 0, 255, torch.uint8))


def data() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(20, 3, 2, 2, generator=generator)
    return Dataset(inputs, torch.arange(20) % 3, tuple(f"s{i}" for i in range(20)), ("a", "b", "c"))


class Rounds(nn.Module):
    """A deployed network without gradients."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return (self.inner(x) * 4).round() / 4


def test_values_are_of_the_deployed_model_and_gradients_of_the_twin():
    twin = network().eval()
    both = WithTwin(Rounds(twin), twin)
    x = data().inputs.requires_grad_()
    assert torch.equal(both(x), Rounds(twin)(x))
    (gradient,) = torch.autograd.grad(both(x)[:, 0].sum(), x)
    (expected,) = torch.autograd.grad(twin(x)[:, 0].sum(), x)
    assert torch.equal(gradient, expected)


def test_a_twin_is_imported_and_loaded_beside_the_deployed_file(tmp_path):
    deployed, weights = tmp_path / "deployed.onnx", tmp_path / "float.pt"
    torch.onnx.export(
        Rounds(network()), (torch.zeros(2, 3, 2, 2),), str(deployed), dynamo=False, input_names=["x"],
        dynamic_axes={"x": {0: "n"}},
    )  # fmt: skip
    torch.save(network().state_dict(), weights)
    twin = {"source": "state_dict", "path": str(weights), "factory": f"{__name__}:network"}
    model = Model(source="onnx", path=str(deployed), twin=twin)
    import_model(model, None, 0, "cpu", tmp_path / "kept", assessed=data())
    classifier = load_classifier(tmp_path / "kept", "cpu", data(), trust_of(model))
    assert Capability.AUTOGRAD in classifier.capabilities
    assert Capability.ONNX_GRAPH not in classifier.capabilities
    alone = preview_classifier(model.model_copy(update={"twin": None}), data(), None, "cpu")
    assert torch.equal(classifier.logits(data().inputs), alone.logits(data().inputs))
    (caveat,) = [c for c in classifier.caveats if c.code == "twin"]
    agree = int((classifier.predict(data().inputs) == network()(data().inputs).argmax(1)).sum())
    assert f"they agree on {agree} of 20 samples" in caveat.text


def test_a_quantised_graph_may_be_its_own_twin_where_its_torch_form_differs(tmp_path, monkeypatch):
    path = tmp_path / "int8.onnx"
    inputs = (torch.zeros(2, 3, 2, 2),)
    torch.onnx.export(
        Rounds(network()), inputs, str(path), dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}}
    )
    monkeypatch.setattr(onnx_gradients.OnnxModule, "forward", lambda self, x: self._run(x) + 0.25 * x[:, 0, 0, :1])
    file = {"source": "onnx", "path": str(path)}
    alone = preview_classifier(Model(**file), data(), None, "cpu")
    assert Capability.AUTOGRAD not in alone.capabilities
    both = preview_classifier(Model(**file, twin=file), data(), None, "cpu")
    assert Capability.AUTOGRAD in both.capabilities
    x = data().inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(both.module(x)[:, 0].sum(), x)
    assert torch.equal(both.module(x).detach(), alone.logits(x))
    torch.testing.assert_close(gradient, network()[1].weight[0].view(1, 3, 2, 2).expand(20, -1, -1, -1))


def test_a_twin_without_gradients_is_refused(tmp_path):
    path, cut = tmp_path / "deployed.onnx", tmp_path / "cut.onnx"
    for file, module in ((path, Rounds(network())), (cut, nn.Sequential(network(), nn.LogSoftmax(1)))):
        inputs = (torch.zeros(2, 3, 2, 2),)
        torch.onnx.export(module, inputs, str(file), dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    graph = onnx.load(cut)
    graph.graph.node[-1].op_type = "Hardmax"  # which is not read
    onnx.save(graph, cut)
    model = Model(source="onnx", path=str(path), twin={"source": "onnx", "path": str(cut)})
    with pytest.raises(UserError, match=r"model\.twin: .*Hardmax.*: a twin is there for its gradients"):
        preview_classifier(model, data(), None, "cpu")


@pytest.mark.parametrize("form", ["dynamic", "PT2E"])
def test_a_module_that_torch_quantised_has_gradients_by_its_twin_alone(tmp_path, form):
    twin = {"source": "state_dict", "path": str(tmp_path / "float.pt"), "factory": f"{__name__}:network"}
    torch.save(network().state_dict(), twin["path"])
    path = tmp_path / "int8.pt2"
    if form == "dynamic":
        deployed, source = quantised(), {"source": "state_dict", "factory": f"{__name__}:quantised"}
        torch.save(deployed.state_dict(), path)
    else:
        deployed, source = QuantisedAsExported().eval(), {"source": "export"}
        batch = ({0: torch.export.Dim("n")},)
        torch.export.save(torch.export.export(deployed, (data().inputs,), dynamic_shapes=batch), path)
    model = Model(path=str(path), **source)
    alone = preview_classifier(model, data(), None, "cpu")
    assert Capability.AUTOGRAD not in alone.capabilities
    assert "cuts off the gradient" in alone.source
    both = preview_classifier(Model(path=str(path), **source, twin=twin), data(), None, "cpu")
    assert Capability.AUTOGRAD in both.capabilities
    for classifier in (alone, both):
        assert torch.equal(classifier.logits(data().inputs), deployed(data().inputs).detach())


def test_a_twin_stands_in_for_a_file():
    twin = {"source": "onnx", "path": "x.onnx"}
    with pytest.raises(ValidationError, match="source: function has none"):
        Model(source="function", function="a:b", twin=twin)


def test_what_is_no_tflite_file_is_refused_in_one_line(tmp_path):
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "x.tflite").write_bytes(b"no model")
    with pytest.raises(UserError, match=r"x\.tflite is not a TFLite model"):
        preview_classifier(Model(source="tflite", path=str(tmp_path / "x.tflite")), data(), None, "cpu")


@pytest.mark.parametrize(
    ("preprocess", "stretches"), [({}, True), ({"layout": "NHWC"}, True), ({"range": (0, 1)}, False)]
)
def test_stages_stretch_inputs_as_check_does(preprocess, stretches, tmp_path):
    (tmp_path / "x.tflite").write_bytes(b"any")
    model = Model(source="tflite", path=str(tmp_path / "x.tflite"), preprocess=preprocess)
    resolved = Model.model_validate(model.model_dump(mode="json"))  # names every key, with its default
    (tmp_path / "kept").mkdir()
    for form in (model, resolved):
        assert keep(form, tmp_path / "kept", 0)["stretches"] is stretches


@pytest.fixture(scope="module")
def cifar(shared) -> Dataset:
    np = pytest.importorskip("numpy")
    folder = shared / "data/colour"
    if not (folder / "tiny").is_dir():
        pytest.skip("no TFLite files here")
    with np.load(folder / "cifar10/test.npz") as content:
        inputs, labels = torch.tensor(content["x"]).float() / 255, torch.tensor(content["y"])
    return Dataset(inputs, labels, tuple(map(str, range(len(labels)))), tuple("0123456789"))


def test_tflite_files_are_as_good_as_litert_says(shared, cifar):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    folder = shared / "data/colour/tiny"
    for name, preprocess in (("pretrainedResnet", {"range": (0, 255)}), ("pretrainedResnet_quant", {})):
        path = folder / f"{name}.tflite"
        classifier = preview_classifier(
            Model(source="tflite", path=str(path), preprocess=preprocess), cifar, None, "cpu"
        )
        plain = interpreter.Interpreter(str(path))
        plain.allocate_tensors()
        given, made = plain.get_input_details()[0], plain.get_output_details()[0]
        predictions = []
        for image in cifar.inputs:
            pixels = (image.permute(1, 2, 0) * 255).round()
            pixels = pixels - 128 if given["dtype"].__name__ == "int8" else pixels
            plain.set_tensor(given["index"], pixels[None].numpy().astype(given["dtype"]))
            plain.invoke()
            predictions.append(int(plain.get_tensor(made["index"]).argmax()))
        assert classifier.predict(cifar.inputs).tolist() == predictions
        again = pickle.loads(pickle.dumps(classifier.module))
        assert torch.equal(
            replace(classifier, module=again).logits(cifar.inputs[:3]), classifier.logits(cifar.inputs[:3])
        )
