"""`model.head` and `model.output`: the model behind its head equals a hand-written one, and what does not fit is refused."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError
from torch import nn

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.heads import Headed, head_of
from windtunnel.boundary.models.load import fit, import_model, load_classifier, preview_classifier
from windtunnel.boundary.models.loaders import TORCH, Loaded, with_head
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.params.data import Data
from windtunnel.params.load import validate_schema
from windtunnel.params.model import Model

CPU = torch.device("cpu")


def data(n=40, classes=2):
    inputs = torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Dataset(inputs, torch.arange(n) % classes, tuple(map(str, range(n))), tuple(map(str, range(classes))))


def network(outputs=1):
    torch.manual_seed(1)
    made = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, outputs)).eval()
    with torch.no_grad():  # trained networks give logits of both signs
        made[3].weight *= 20
        made[3].bias -= made(data().inputs).mean(0)
    return made


class HandWritten(nn.Module):
    def __init__(self, inner, column=0):
        super().__init__()
        self.inner, self.column = inner, column

    def forward(self, x):
        z = self.inner(x)[:, self.column]
        return torch.stack([torch.zeros_like(z), z], 1)


def headed(module, **head):
    return fit(with_head(Loaded(module, TORCH, "digest", "net"), head_of(Model(head=head))), CPU, data())


def onnx_file(path, *, shape="column", sigmoid=False, more=False):
    weight = np.random.default_rng(0).normal(size=(16, 1)).astype(np.float32)
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["z"])]
    last = "z"
    if sigmoid:
        nodes.append(helper.make_node("Sigmoid", [last], ["p"]))
        last = "p"
    if shape == "flat":
        nodes.append(helper.make_node("Reshape", [last, "one"], ["out"]))
        last = "out"
    dims = ["n"] if shape == "flat" else ["n", 1]
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, dims)]
    if more:
        outputs.insert(0, helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["n", 16]))
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 4, 4])
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([-1], np.int64), "one")]
    made = helper.make_graph(nodes, "g", [taken], outputs, constants)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return torch.from_numpy(weight)


def test_a_binary_head_equals_a_hand_written_one_bit_for_bit():
    inner = network()
    twin, plain = headed(inner, kind="binary"), HandWritten(inner)
    x = data().inputs.clone().requires_grad_()
    ours, theirs = twin.module(x), plain(x)
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(nn.functional.cross_entropy(z, data().targets), x)[0] for z in (ours, theirs)]
    assert torch.equal(*gradients)


def test_one_label_of_several_equals_its_column():
    inner = network(3)
    twin = headed(inner, labels=["a", "b", "c"], label="c", kind="multi_label")
    assert torch.equal(twin.module(data().inputs), HandWritten(inner, 2)(data().inputs))


@pytest.mark.parametrize("threshold", [0.5, 0.2, 0.9])
@pytest.mark.parametrize("output", ["logit", "probability"])
def test_the_answer_is_yes_above_the_threshold(threshold, output):
    inner = network()
    given = inner if output == "logit" else nn.Sequential(*inner, nn.Sigmoid())
    found = headed(given, kind="binary", output=output, threshold=threshold)
    probability = torch.sigmoid(inner(data().inputs))[:, 0]
    assert torch.equal(found.predict(data().inputs), (probability > threshold).long())
    torch.testing.assert_close(found.criterion.probabilities(found.logits(data().inputs))[:, 1].float(), probability)


@pytest.mark.parametrize("shape", ["column", "flat"])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_an_onnx_graph_carries_its_head_in_the_file(tmp_path, shape, sigmoid):
    weight = onnx_file(tmp_path / "m.onnx", shape=shape, sigmoid=sigmoid)
    head = {"kind": "binary", "output": "probability" if sigmoid else "logit"}
    model = Model(source="onnx", path=str(tmp_path / "m.onnx"), head=head)
    import_model(model, None, 0, "cpu", tmp_path / "kept", assessed=data())
    found = load_classifier(tmp_path / "kept", "cpu", data(), trust_of(model))
    z = (data().inputs.flatten(1) @ weight)[:, 0]
    torch.testing.assert_close(
        found.logits(data().inputs), torch.stack([torch.zeros_like(z), z], 1), atol=2e-5, rtol=1e-5
    )
    assert found.criterion.head == "binary"
    assert "binary head" in found.source


@pytest.mark.parametrize("head", [{"output": "probability"}, {"output": "probability", "top_k": 2}])
def test_probabilities_of_classes_are_read_as_logits(tmp_path, head):
    inner, inputs = network(4), data(classes=4)
    logits = inner(inputs.inputs).detach()

    class WithSoftmax(nn.Module):
        def forward(self, x):
            return inner(x / 20).softmax(1)

    def classifier(module):
        return fit(with_head(Loaded(module, TORCH, "digest", "net"), head_of(Model(head=head))), CPU, inputs)

    assert torch.equal(classifier(nn.Sequential(*inner, nn.Softmax(1))).logits(inputs.inputs), logits)
    inside = classifier(WithSoftmax()).logits(inputs.inputs)
    torch.testing.assert_close(inside, inner(inputs.inputs / 20).log_softmax(1), atol=1e-4, rtol=1e-4)

    for last in ([nn.Softmax(1)], [nn.Softmax(1), nn.Identity(), nn.Hardtanh(0, 1)]):  # the second hides that it is one
        path = tmp_path / "m.onnx"
        program = nn.Sequential(*inner, *last)
        torch.onnx.export(
            program, (inputs.inputs[:1],), path, dynamo=False, dynamic_axes={"input": {0: "n"}}, input_names=["input"]
        )
        model = Model(source="onnx", path=str(path), head=head)
        import_model(model, None, 0, "cpu", tmp_path / "kept", assessed=inputs)
        kept = load_classifier(tmp_path / "kept", "cpu", inputs, trust_of(model))
        want = logits if len(last) == 1 else logits.softmax(1).clamp_min(1e-12).log()
        torch.testing.assert_close(kept.logits(inputs.inputs), want, atol=1e-3, rtol=1e-3)


def test_a_twin_may_give_logits_where_the_file_gives_probabilities():
    twin = {"source": "onnx", "path": "x.onnx"}
    model = Model(source="tflite", path="x.tflite", head={"output": "probability"}, twin={**twin, "output": "logit"})
    assert head_of(model).output == "probability"
    assert head_of(model.twin_model) is None
    assert head_of(model.model_copy(update={"twin": type(model.twin)(**twin)}).twin_model).output == "probability"


def test_a_named_output_of_an_onnx_graph_is_assessed(tmp_path):
    weight = onnx_file(tmp_path / "m.onnx", more=True)
    of = {"source": "onnx", "path": str(tmp_path / "m.onnx"), "head": "binary"}
    found = preview_classifier(Model(**of, output="z"), data(), None, "cpu")
    torch.testing.assert_close(found.logits(data().inputs)[:, 1], (data().inputs.flatten(1) @ weight)[:, 0])
    with pytest.raises(UserError, match=r"m\.onnx has 2 outputs \(flat, z\); model\.output: flat picks one"):
        preview_classifier(Model(**of), data(), None, "cpu")
    with pytest.raises(UserError, match=r"model\.output: 'zz' is not an output of m\.onnx"):
        preview_classifier(Model(**of, output="zz"), data(), None, "cpu")


def test_a_named_output_of_a_module_is_assessed():
    class Several(nn.Module):
        def forward(self, x):
            return {"features": x.flatten(1), "logits": x.flatten(1)[:, :2]}

    def fitted(name):
        return fit(with_head(Loaded(Several(), TORCH, "d", "net"), head_of(Model(output=name))), CPU, data())

    assert torch.equal(fitted("logits").logits(data().inputs), data().inputs.flatten(1)[:, :2])
    with pytest.raises(
        UserError, match=r"model\.output: 'logit' is not an output of the model\. Did you mean 'logits'"
    ):
        fitted("logit")
    with pytest.raises(IncompatibleError, match=r"model\.output picks one of features, logits"):
        fit(Loaded(Several(), TORCH, "d", "net"), CPU, data())


@pytest.mark.parametrize(
    ("outputs", "head", "line"),
    [
        (2, {"kind": "binary"}, r"binary reads 1 output a sample, the model gives shape \(2,\); model\.head: softmax"),
        (2, {"kind": "multi_label", "labels": ["a", "b", "c"], "label": "a"}, "multi_label reads 3 outputs a sample"),
        (2, {"kind": "top_k", "top_k": 2}, "top_k: 2 of 2 classes: no answer could be wrong"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_one_line(outputs, head, line):
    with pytest.raises(IncompatibleError, match=line) as error:
        headed(network(outputs), **head)
    assert "\n" not in str(error.value)


def test_one_output_without_a_head_names_the_head():
    with pytest.raises(IncompatibleError, match=r"model\.head: binary"):
        fit(Loaded(network(1), TORCH, "d", "net"), CPU, data())


def test_probabilities_are_not_read_as_logits_in_silence():
    inner = nn.Sequential(*network(), nn.Sigmoid())
    with pytest.raises(
        UserError, match=r"model\.head\.output: all outputs lie in .* set it to probability, or to logit"
    ):
        headed(inner, kind="binary")
    headed(inner, kind="binary", output="logit")


def test_a_head_changes_the_digest_of_the_model(tmp_path):
    onnx_file(tmp_path / "m.onnx")
    found = []
    for threshold in (0.5, 0.3):
        model = Model(source="onnx", path=str(tmp_path / "m.onnx"), head={"kind": "binary", "threshold": threshold})
        found.append(preview_classifier(model, data(), None, "cpu").digest)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ({"threshold": 0.3}, "threshold is no key of kind: softmax; output"),
        ({"kind": "binary", "top_k": 3}, "top_k is no key of kind: binary"),
        ({"kind": "top_k"}, "needs top_k"),
        ({"labels": ["a", "b"], "label": "c"}, "'c' is not one of labels"),
        ({"label": "c"}, "needs labels"),
        (
            {"labels": ["a", "b"], "label": "all"},
            r"a run assesses one label; windtunnel sweep --set model\.head\.label=all",
        ),
        ({"labels": ["a", "b"], "label": ["a", "b"]}, r"sweep --set model\.head\.label=a,b assesses each"),
        ("sigmoid", "softmax"),
        ({"kind": "binary", "threshold": 1}, "less than 1"),
    ],
)
def test_a_wrong_head_is_refused(head, line):
    with pytest.raises(ValidationError, match=line):
        Model(head=head)


def test_a_label_may_be_called_all():
    assert Model(head={"labels": ["all", "some"], "label": "all"}).head.label == "all"


@pytest.mark.parametrize("output", [None, "logit", "probability"])
@pytest.mark.parametrize("source", ["function", "state_dict"])
def test_stages_read_outputs_as_check_does(source, output):
    head = {"kind": "binary", **({"output": output} if output else {})}
    model = Model(source=source, head=head)
    resolved = Model.model_validate(model.model_dump(mode="json"))  # names every key, with its default
    assert head_of(resolved) == head_of(model)
    assert head_of(model).output == (output or {"function": "probability", "state_dict": "logit"}[source])


def test_a_function_with_an_output_a_class_returns_probabilities():
    assert head_of(Model(source="function", head={"output": "probability"})) is None
    with pytest.raises(ValidationError, match="returns probabilities"):
        Model(source="function", head={"output": "logit"})


def test_short_forms_of_a_head():
    assert Model(head="binary").head.kind == "binary"
    assert Model(head={"top_k": 5}).head.kind == "top_k"
    assert Model(head={"labels": ["a", "b"], "label": "b"}).head.kind == "multi_label"
    assert head_of(Model()) is None
    assert isinstance(Headed(network(), head_of(Model(head="binary"))), nn.Module)


def test_one_label_of_several_is_read_from_its_column(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (30, 3))
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).random((30, 4, 4)), y=labels)
    raw = {
        "data": {"source": "npz", "path": str(tmp_path / "x.npz")},
        "model": {"source": "train", "head": {"labels": ["a", "b", "c"], "label": "b"}},
        "budget": {"norm": "Linf", "epsilon": 0.1},
    }
    params = validate_schema(raw)
    assessed, _ = load_dataset(params.data, 0)
    assert assessed.targets.tolist() == labels[:, 1].tolist()
    assert assessed.class_names == ("not b", "b")
    with pytest.raises(UserError, match=r"model\.head\.label: b is column 1; remove it"):
        validate_schema({**raw, "data": {**raw["data"], "label_column": 2}})
    with pytest.raises(UserError, match=r"labels of shape .* one column"):
        load_dataset(Data(source="npz", path=str(tmp_path / "x.npz"), class_names=2), 0)
    with pytest.raises(UserError, match=r"data\.label_column: 3: labels have shape \(30, 3\)"):
        load_dataset(Data(source="npz", path=str(tmp_path / "x.npz"), label_column=3), 0)
