"""However a model is given it classifies alike, offers what it can, and a bad one is one clear line."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torchattacks
from torch import nn

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.boundary.models.load import (
    _warn_untested,
    export_onnx,
    import_model,
    load_classifier,
    pick_device,
    preview_classifier,
)
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.sanity.run import before_any_assessment
from windtunnel.evaluation.validate import validate
from windtunnel.params.data import Data
from windtunnel.params.model import Model
from windtunnel.records.files import read_json

FACTORY = """
import torch
from windtunnel.boundary.models.architectures import cnn, mlp
def small(width=None): return mlp((1, 8, 8), 10)
def wrong(): return "a text"
def fails(): raise RuntimeError("no such checkpoint")
def predict(batch):
    scores = batch.reshape(len(batch), -1)[:, :10] + 1e-3
    return scores / scores.sum(1, keepdims=True)
def logits(batch): return batch.reshape(len(batch), -1)[:, :10] - 5
def scores(batch): return batch.reshape(len(batch), -1)[:, :10] * 0 + 0.5
def flat(batch): return batch.sum((1, 2, 3))
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_model.py").write_text(FACTORY)
    monkeypatch.delitem(__import__("sys").modules, "their_model", raising=False)
    return tmp_path


@pytest.fixture
def module(mlp_subject) -> nn.Module:
    return mlp_subject.classifier.module


def imported(model: Model, dataset: Dataset, folder: Path) -> Classifier:
    import_model(model, None, 0, "cpu", folder)
    return load_classifier(folder, "cpu", dataset, trust_of(model))


def the_line(model: Model, dataset: Dataset) -> str:
    with pytest.raises(UserError) as caught:
        preview_classifier(model, dataset, None, "cpu").predict(dataset.inputs[:2])
    line = str(caught.value)
    assert "\n" not in line
    return line


def save_export(module: nn.Module, path: Path, *, dynamic: bool = True) -> None:
    example = torch.zeros(2 if dynamic else 1, 1, 8, 8)
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=shapes), path)


# --- forms of a model ---


def test_a_state_dict_an_export_and_an_onnx_file_of_one_model_give_equal_logits(here, module, mlp_subject):
    dataset, expected = mlp_subject.dataset, mlp_subject.clean_logits
    torch.save(module.state_dict(), here / "w.pt")
    save_export(module, here / "w.pt2")
    export_onnx(mlp_subject.classifier, here / "w.onnx")
    forms = {
        "state_dict": Model(source="state_dict", path="w.pt", factory="their_model:small"),
        "export": Model(source="export", path="w.pt2"),
        "onnx": Model(source="onnx", path="w.onnx"),
    }
    for name, model in forms.items():
        classifier = imported(model, dataset, here / "kept" / name)
        torch.testing.assert_close(classifier.logits(dataset.inputs), expected, atol=1e-4, rtol=1e-4)
        white_box = Capability.AUTOGRAD in classifier.capabilities
        assert white_box == (name != "onnx")
        assert (classifier.onnx_path is not None) == (name == "onnx")


def test_the_kept_model_needs_no_file_of_the_users(here, module, mlp_subject):
    torch.save(module.state_dict(), here / "w.pt")
    model = Model(source="state_dict", path="w.pt", factory="their_model:small")
    import_model(model, None, 0, "cpu", here / "kept")
    (here / "w.pt").unlink()
    assert (
        load_classifier(here / "kept", "cpu", mlp_subject.dataset, trust_of(model)).digest
        == mlp_subject.classifier.digest
    )


def test_gradients_flow_to_the_inputs_of_an_exported_program(here, module, mlp_subject):
    save_export(module, here / "w.pt2")
    classifier = imported(Model(source="export", path="w.pt2"), mlp_subject.dataset, here / "kept")
    inputs = mlp_subject.dataset.inputs[:3].clone().requires_grad_()
    classifier.module(inputs).sum().backward()
    assert inputs.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in classifier.module.parameters())


def test_attacks_run_on_an_exported_program_and_find_what_they_find_on_the_module(here, module, mlp_subject):
    save_export(module, here / "w.pt2")
    classifier = imported(Model(source="export", path="w.pt2"), mlp_subject.dataset, here / "kept")
    x, y = mlp_subject.dataset.inputs[:20], mlp_subject.dataset.targets[:20]
    torch.testing.assert_close(  # the attack calls train() and eval() on the model, which a program itself refuses
        *(torchattacks.FGSM(model, eps=0.05)(x, y) for model in (classifier.module, module))
    )


def test_an_exported_program_can_be_exported_to_onnx_for_the_verifiers(here, module, mlp_subject):
    save_export(module, here / "w.pt2")
    classifier = imported(Model(source="export", path="w.pt2"), mlp_subject.dataset, here / "kept")
    path = export_onnx(classifier, here / "again.onnx")
    again = imported(Model(source="onnx", path=str(path)), mlp_subject.dataset, here / "again")
    assert torch.equal(again.predict(mlp_subject.dataset.inputs), mlp_subject.clean_predictions)


@pytest.mark.parametrize(("training", "status"), [(False, "pass"), (True, "fail")])
def test_a_program_is_refused_where_it_was_exported_in_training_mode_and_only_there(
    here, mlp_subject, training, status
):
    layers = (nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))
    save_export(nn.Sequential(*layers).train(training), here / "w.pt2")
    classifier = imported(Model(source="export", path="w.pt2"), mlp_subject.dataset, here / "kept")
    raw = {"data": {}, "budget": {"epsilon": 0.1}, "model": {"source": "export", "path": "w.pt2"}}
    findings = before_any_assessment(validate(raw), subject_of(classifier, mlp_subject.dataset))
    (found,) = [f for f in findings if f.id == "A1"]
    assert found.status == status
    if training:
        assert "batch_norm, dropout" in found.reason


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_trainers_checkpoint_gives_its_state_dict(here, module, mlp_subject, key):
    prefixed = {f"module.{name}": value for name, value in module.state_dict().items()}
    torch.save({key: prefixed, "epoch": 3}, here / "w.pt")
    model = Model(source="state_dict", path="w.pt", factory="their_model:small")
    assert imported(model, mlp_subject.dataset, here / "kept").digest == mlp_subject.classifier.digest


def below(prefix, state):
    return {f"{prefix}{name}": value for name, value in state.items()}


CHECKPOINTS = {
    "the only state dict": lambda state: {"net": state, "acc": 91.2, "optimizer": {"state": {}, "param_groups": []}},
    "Lightning": lambda state: {"state_dict": {**below("model.", state), "criterion.weight": torch.ones(10)}},
    "torch.compile": lambda state: below("_orig_mod.", state),
    "torch.compile of DataParallel": lambda state: below("_orig_mod.module.", state),
    "an average of weights": lambda state: {**below("module.", state), "n_averaged": torch.tensor(3)},
}


@pytest.mark.parametrize("form", CHECKPOINTS)
def test_weights_behind_a_wrapper_are_those_of_the_network(here, module, mlp_subject, form):
    torch.save(CHECKPOINTS[form](module.state_dict()), here / "w.pt")
    model = Model(source="state_dict", path="w.pt", factory="their_model:small")
    assert imported(model, mlp_subject.dataset, here / "kept").digest == mlp_subject.classifier.digest


def test_of_two_state_dicts_the_model_is_taken_and_the_other_named(here, module, mlp_subject):
    averaged = {name: value * 0 for name, value in module.state_dict().items()}
    torch.save({"model_ema": averaged, "model": module.state_dict()}, here / "w.pt")
    model = Model(source="state_dict", path="w.pt", factory="their_model:small")
    classifier = imported(model, mlp_subject.dataset, here / "kept")
    assert classifier.digest == mlp_subject.classifier.digest
    assert "(w.pt: model, not model_ema)" in classifier.source


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda state: {"student": state, "teacher": state}, "it holds student, teacher; save one of them alone"),
        (lambda state: {**below("net.", state), **below("ema.", state)}, r"it fits below net\., ema\.; save"),
    ],
)
def test_state_dicts_that_fit_alike_are_refused(here, module, mlp_subject, content, words):
    torch.save(content(module.state_dict()), here / "w.pt")
    with pytest.raises(UserError, match=words):
        imported(
            Model(source="state_dict", path="w.pt", factory="their_model:small"), mlp_subject.dataset, here / "kept"
        )


def test_a_function_of_probabilities_is_a_model_of_forward_passes_only(here, mlp_subject):
    dataset = mlp_subject.dataset
    classifier = imported(Model(source="function", function="their_model:predict"), dataset, here / "kept")
    assert classifier.capabilities == {Capability.FORWARD}
    scores = dataset.inputs.flatten(1)[:, :10] + 1e-3
    torch.testing.assert_close(classifier.logits(dataset.inputs).softmax(1), scores / scores.sum(1, keepdim=True))


def test_a_changed_function_is_another_model(here, mlp_subject):
    model = Model(source="function", function="their_model:predict")
    before = imported(model, mlp_subject.dataset, here / "kept").digest
    (here / "their_model.py").write_text(FACTORY + "# retrained\n")
    assert imported(model, mlp_subject.dataset, here / "kept").digest != before


def test_importing_another_model_leaves_nothing_of_the_first(here, module, mlp_subject):
    save_export(module, here / "w.pt2")
    export_onnx(mlp_subject.classifier, here / "w.onnx")
    imported(Model(source="export", path="w.pt2"), mlp_subject.dataset, here / "kept")
    imported(Model(source="onnx", path="w.onnx"), mlp_subject.dataset, here / "kept")
    assert sorted(p.name for p in (here / "kept").iterdir()) == ["model.json", "weights.onnx"]


def test_the_reference_lenet5_has_its_published_accuracy(shared):
    """98.89 % on the 10,000 test images: advertorch, attack_benchmarks (shared/data/models/SOURCE.txt)."""
    images, labels = (shared / f"data/mnist/t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    dataset, _ = load_dataset(Data(source="idx", path=str(images), labels=str(labels)), 0)
    weights = shared / "data/models/mnist_lenet5_clntrained.pt"
    model = Model(source="state_dict", path=str(weights), factory="windtunnel.boundary.models.architectures:lenet5")
    classifier = preview_classifier(model, dataset, None, "cpu")
    assert int((classifier.predict(dataset.inputs) == dataset.targets).sum()) == 9889


# --- bad models: one clear line each ---


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"source": "state_dict", "path": "nowhere.pt", "factory": "their_model:small"}, "nowhere.pt: no such file"),
        ({"source": "state_dict", "factory": "their_model:small"}, "model.path: is required"),
        ({"source": "state_dict", "path": "w.pt"}, "model.factory: is required"),
        ({"source": "state_dict", "path": "w.pt", "factory": "their_model"}, "not of the form module:function"),
        ({"source": "state_dict", "path": "w.pt", "factory": "their_model:smal"}, "Did you mean 'small'"),
        ({"source": "state_dict", "path": "w.pt", "factory": "their_model:wrong"}, "returned a str"),
        ({"source": "state_dict", "path": "w.pt", "factory": "their_model:fails"}, "no such checkpoint"),
        ({"source": "state_dict", "path": "w.pt", "factory": "their_model:small", "kwargs": {"x": 1}}, "TypeError"),
        ({"source": "state_dict", "path": "text", "factory": "their_model:small"}, "weights_only"),
        ({"source": "state_dict", "path": "pickle.pt", "factory": "their_model:small"}, "weights_only"),
        ({"source": "state_dict", "path": "list.pt", "factory": "their_model:small"}, "does not fit"),
        ({"source": "state_dict", "path": "other.pt", "factory": "their_model:small"}, "does not fit"),
        ({"source": "export", "path": "text"}, "not a torch.export program"),
        ({"source": "onnx", "path": "text"}, "not an ONNX model"),
        ({"source": "onnx", "path": "w.pt"}, "not an ONNX model"),
        ({"source": "function"}, "model.function: is required"),
        ({"source": "function", "function": "their_model:logits"}, "probabilities are needed"),
        ({"source": "function", "function": "their_model:scores"}, "rows summing to 5 to 5"),
        ({"source": "function", "function": "their_model:flat"}, "(N, K) probabilities are needed"),
        ({"source": "mlflow"}, "model.uri: is required"),
        ({"source": "mlflow", "uri": "s3://bucket/model"}, "is no MLflow URI"),
        ({"source": "train"}, "needs a training split"),
        ({"source": "state_dict", "path": "w.pt", "factory": "their_model:small", "sha256": "ab" * 32}, "model.sha256"),
    ],
)
def test_a_bad_model_is_refused_in_one_line(here, module, mlp_subject, model, words):
    torch.save(module.state_dict(), here / "w.pt")
    torch.save(module, here / "pickle.pt")
    torch.save([1, 2], here / "list.pt")
    torch.save(ARCHITECTURES["cnn"]((1, 8, 8), 10).state_dict(), here / "other.pt")
    (here / "text").write_text("not a model\nat all")
    assert words in the_line(Model(**model), mlp_subject.dataset)


def test_the_digest_of_the_weights_is_checked_in_either_case(here, module, mlp_subject):
    torch.save(module.state_dict(), here / "w.pt")
    digest = hashlib.sha256((here / "w.pt").read_bytes()).hexdigest()
    model = Model(source="state_dict", path="w.pt", factory="their_model:small", sha256=digest.upper())
    imported(model, mlp_subject.dataset, here / "kept")
    assert read_json(here / "kept/model.json")["sha256"] == digest


def test_a_class_count_that_differs_from_the_datas_names_both(here, module, mlp_subject):
    save_export(module, here / "w.pt2")
    data = Dataset(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]), ("a", "b"), ("x", "y", "z"))
    assert "has 10 classes, the data has 3 (x, y, z)" in the_line(Model(source="export", path="w.pt2"), data)


def test_inputs_of_another_shape_are_refused_with_what_changes_them(here, module, mlp_subject):
    save_export(module, here / "w.pt2")
    data = Dataset(torch.zeros(2, 1, 9, 9), torch.tensor([0, 1]), ("a", "b"), tuple("0123456789"))
    with pytest.raises(IncompatibleError, match=r"does not take inputs of shape \(1, 9, 9\).*data.resize"):
        preview_classifier(Model(source="export", path="w.pt2"), data, None, "cpu")


def test_a_program_exported_for_one_sample_is_refused_before_any_attack(here, module, mlp_subject):
    save_export(module, here / "w.pt2", dynamic=False)
    assert "takes one sample and no batch" in the_line(Model(source="export", path="w.pt2"), mlp_subject.dataset)


def test_an_onnx_model_without_autograd_is_refused_for_a_white_box_attack(here, mlp_subject):
    from windtunnel.assessments.catalogue import find_algorithm

    export_onnx(mlp_subject.classifier, here / "w.onnx")
    classifier = imported(Model(source="onnx", path="w.onnx"), mlp_subject.dataset, here / "kept")
    with pytest.raises(IncompatibleError, match="needs autograd"):
        classifier.require(find_algorithm("torchattacks", "PGD", "attacks.pgd", "attacks"), "attacks.pgd")
    classifier.require(find_algorithm("torchattacks", "Square", "attacks.sq", "attacks"), "attacks.sq")


def test_an_absent_device_is_refused_in_one_line():
    with pytest.raises(UserError, match="device: 'teapot'"):
        pick_device("teapot")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_any_accelerator_is_taken_and_one_that_no_test_ran_on_is_said(kind, monkeypatch, capsys):
    """There is none here: torch is made to say so, and the tensor that would prove it is not made."""
    _warn_untested.cache_clear()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    assert pick_device("auto").type == kind
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert pick_device(kind).type == kind
    said = capsys.readouterr().err
    assert (
        said == f"windtunnel: device: no test of windtunnel ran on {kind}; compare a small run with device: cpu first\n"
    )
    # Its switches are for the whole process (tests/core/test_devices.py).
    monkeypatch.setattr("windtunnel.boundary.models.load.make_deterministic", lambda _: None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert pick_device("auto").type == "cuda"
    assert capsys.readouterr().err == ""


def test_a_damaged_model_json_is_refused_in_one_line(tmp_path, mlp_subject):
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(UserError, match=r"model\.json: not what `train` wrote \(source: field required\)"):
        load_classifier(tmp_path, "cpu", mlp_subject.dataset)


# --- MLflow ---


@pytest.mark.slow
def test_a_model_of_mlflow_is_fetched_by_alias_and_run_and_pickles_only_on_request(
    here, module, mlp_subject, monkeypatch
):
    import mlflow
    import onnx

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    mlflow.set_experiment(mlflow.create_experiment("models", artifact_location=str(here / "artifacts")) and "models")
    graph = onnx.load(export_onnx(mlp_subject.classifier, here / "w.onnx"))
    example = np.zeros((2, 1, 8, 8), np.float32)
    with mlflow.start_run() as run:
        mlflow.pytorch.log_model(
            module, name="safe", input_example=example, registered_model_name="digits", serialization_format="pt2"
        )
        mlflow.pytorch.log_model(module, name="pickled", serialization_format="pickle")
        mlflow.onnx.log_model(graph, name="graph")
    mlflow.MlflowClient().set_registered_model_alias("digits", "champion", "1")
    dataset, expected = mlp_subject.dataset, mlp_subject.clean_predictions
    for i, (uri, trusted) in enumerate(
        [
            ("models:/digits@champion", False),
            (f"runs:/{run.info.run_id}/graph", False),
            (f"runs:/{run.info.run_id}/pickled", True),
        ]
    ):
        model = Model(source="mlflow", uri=uri, allow_pickle=trusted)
        classifier = imported(model, dataset, here / f"kept{i}")
        assert torch.equal(classifier.predict(dataset.inputs), expected)
        assert read_json(here / f"kept{i}/model.json")["run_id"] == run.info.run_id
    assert "holds a pickle" in the_line(Model(source="mlflow", uri=f"runs:/{run.info.run_id}/pickled"), dataset)
    assert "is unavailable" in the_line(Model(source="mlflow", uri="models:/digits@nobody"), dataset)
    assert "is unavailable" in the_line(Model(source="mlflow", uri="models:/nothing/1"), dataset)
