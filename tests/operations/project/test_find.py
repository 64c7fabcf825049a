"""What `windtunnel init` finds: weights, data, factories and the stages that make them, without running anything of the user's."""

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from ruamel.yaml import YAML
from safetensors.torch import save_file
from torch import nn

from windtunnel.boundary import text
from windtunnel.boundary.discovery import walk, weights
from windtunnel.boundary.discovery.architecture import Architecture, factories
from windtunnel.core.errors import UserError
from windtunnel.operations.project.choose import Choice, FolderContents, notes, params_text


@pytest.fixture
def found(tmp_path):
    def look(**files: str) -> FolderContents:
        return FolderContents(tmp_path, Path("robustness"))

    return look


def images(folder, classes=("a", "b"), size=(8, 6), mode="L"):
    for name in classes:
        (folder / name).mkdir(parents=True)
        Image.new(mode, size).save(folder / name / "0.png")


def net(channels=3, classes=5):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Flatten(), nn.Linear(16, classes))


def test_a_state_dict_says_how_many_channels_and_classes_its_model_has(tmp_path, found):
    torch.save({"epoch": 3, "model_state_dict": net().state_dict()}, tmp_path / "best.pth")
    (one,) = found().weights
    assert (one.source, one.channels, one.classes, one.size) == ("state_dict", 3, 5, 4 * 27 + 4 + 16 * 5 + 5)
    assert one.parts == {"0", "2"}


def test_an_architecture_is_looked_for_behind_the_prefix_of_lightning(tmp_path, found, monkeypatch):
    state = {f"model.{name}": value for name, value in net().state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "last.ckpt")
    of_library = Architecture("timm", "tiny", 5)
    monkeypatch.setattr(
        weights, "fitting_architecture", lambda state, name: (of_library if "0.weight" in state else None, ())
    )
    (one,) = found().weights
    assert (one.source, one.name, one.classes) == ("timm", "tiny", 5)


@pytest.mark.parametrize("name", ["net.th", "model_best.pth.tar", "net.safetensors"])
def test_weights_are_found_by_the_names_that_trainers_give_them(tmp_path, found, name):
    (save_file if name.endswith("safetensors") else torch.save)(net().state_dict(), tmp_path / name)
    (tmp_path / "images.tar").write_bytes(b"of images")
    (one,) = found().weights
    assert (str(one.path), one.source, one.classes) == (name, "state_dict", 5)


def test_the_architecture_that_a_checkpoint_names_is_tried_first(tmp_path, found, monkeypatch):
    asked = []
    monkeypatch.setattr(weights, "fitting_architecture", lambda state, words: (asked.append(words), (None, ()))[1])
    torch.save({"arch": "resnet50d", "epoch": 3, "state_dict": net().state_dict()}, tmp_path / "last.pth.tar")
    assert len(found().weights) == 1
    assert asked == ["last.pth.tar resnet50d"]


def test_what_could_run_code_or_is_no_checkpoint_is_no_candidate(tmp_path, found, capsys):
    torch.save(net(), tmp_path / "pickled.pt")
    (tmp_path / "text.pt").write_text("no weights")
    assert found().weights == []
    assert (
        "pickled.pt is not a state dict that loads with weights_only (UnpicklingError); torch.save"
        in capsys.readouterr().err
    )
    assert found().model_at("notes.txt") is None


def test_a_torch_export_program_is_told_by_its_content(tmp_path, found):
    program = torch.export.export(net().eval(), (torch.zeros(1, 3, 4, 4),))
    torch.export.save(program, tmp_path / "net.pt2")
    (tmp_path / "net.pt2").rename(tmp_path / "net.pt")
    assert [one.source for one in found().weights] == ["export"]


@pytest.mark.parametrize(
    ("shape", "channels", "side"),
    [
        (["N", 1, 28, 28], 1, (28, 28)),
        (["N", 48, 40, 3], 3, (48, 40)),
        (["N", 3, 3, 3], 3, (3, 3)),
        (["N", 3, "H", "W"], 3, None),
        (["N", "H", "W", 3], 3, None),
        (["N", 16, 8, 8], None, (8, 8)),
        (["N", 784], None, None),
    ],
)
def test_an_onnx_graph_says_the_shape_of_its_inputs(tmp_path, found, shape, channels, side):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])
    graph = helper.make_graph([helper.make_node("Flatten", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph), str(tmp_path / "net.onnx"))
    (one,) = found().weights
    assert (one.source, one.channels, one.side, one.classes) == ("onnx", channels, side, 10)


@pytest.mark.parametrize(
    ("operators", "activation"),
    [
        (["Sigmoid", "Squeeze", "Unsqueeze"], "Sigmoid"),
        (["Flatten", "Softmax", "Identity"], "Softmax"),
        (["Identity"], ""),
    ],
)
def test_an_onnx_graph_says_what_makes_its_outputs(tmp_path, found, operators, activation):
    names = [f"v{i}" for i in range(len(operators) + 1)]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(operators)]
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 10]) for name in (names[0], names[-1]))
    graph = helper.make_graph(nodes, "g", *([value] for value in ends))
    onnx.save(helper.make_model(graph), str(tmp_path / "net.onnx"))
    assert found().weights[0].activation == activation


@pytest.mark.parametrize(
    ("operators", "activation"),
    [(["SOFTMAX", "DEQUANTIZE"], "Softmax"), (["LOGISTIC"], "Sigmoid"), (["FULLY_CONNECTED"], "")],
)
@pytest.mark.parametrize("is_old", [False, True])
def test_a_tflite_file_says_its_shape_and_what_makes_its_outputs(tmp_path, found, operators, activation, is_old):
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    import flatbuffers

    shapes = [[1, 32, 48, 3], *([[1, 10]] * len(operators))]
    codes = [getattr(schema.BuiltinOperator, name) for name in operators]
    graph = made(
        schema.SubGraphT, inputs=[0], outputs=[len(operators)],
        tensors=[made(schema.TensorT, shape=shape) for shape in shapes],
        operators=[made(schema.OperatorT, opcodeIndex=i, inputs=[i], outputs=[i + 1]) for i in range(len(codes))],
    )  # fmt: skip
    key = "deprecatedBuiltinCode" if is_old else "builtinCode"
    model = made(
        schema.ModelT, subgraphs=[graph], operatorCodes=[made(schema.OperatorCodeT, **{key: code}) for code in codes]
    )
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    (tmp_path / "net.tflite").write_bytes(builder.Output())
    (one,) = found().weights
    assert (one.channels, one.side, one.classes, one.activation) == (3, (32, 48), 10, activation)


def made(kind, **values):
    """An object of a flat buffer with `values`."""
    item = kind()
    for name, value in values.items():
        setattr(item, name, value)
    return item


def test_an_image_classifier_of_hugging_face_is_a_folder(tmp_path, found):
    for name, kind in (("vit", "ViTForImageClassification"), ("bert", "BertForMaskedLM")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({"architectures": [kind], "id2label": {"0": "a", "1": "b"}})
        )
    (tmp_path / "config.json").write_text("[1")
    save_file(net().state_dict(), tmp_path / "vit" / "model.safetensors")  # which belongs to the folder
    (one,) = found().weights
    assert (one.source, one.path, one.classes) == ("huggingface", Path("vit"), 2)
    assert found().model_at("vit") == one
    assert found().model_at("bert") is None
    resnet = found().model_at("timm:resnet50.a1_in1k")
    assert (resnet.source, str(resnet.path), resnet.of_library) == ("timm", "resnet50.a1_in1k", True)


def test_data_named_as_tests_come_first_and_their_training_split_beside_them(tmp_path, found):
    images(tmp_path / "data" / "train")
    images(tmp_path / "data" / "val")
    images(tmp_path / "data" / "test")
    images(tmp_path / "robustness" / "reports")  # of the project itself
    images(tmp_path / "other" / "reports")
    (tmp_path / "other" / ".windtunnel.json").touch()
    images(tmp_path / "environment" / "pictures")
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    first, second = found().data
    assert len(found().files.image_folders) == 6
    assert first.path == Path("data/test")
    assert first.train == Path("data/train")
    assert (first.source, first.classes, first.side, first.channels) == ("folder", 2, (6, 8), 1)
    assert second.path == Path("data/val")


def test_images_of_different_sizes_have_no_side(tmp_path, found):
    images(tmp_path / "data", classes=("a",))
    images(tmp_path / "data", classes=("b",), size=(9, 9), mode="RGB")
    assert found().data[0].side is None


@pytest.mark.parametrize("kind", ["folder", "npz", "npy", "idx"])
def test_no_more_samples_are_asked_for_than_there_are(tmp_path, found, kind):
    if kind == "folder":
        images(tmp_path / "data", classes=("a", "b", "c"))
        (tmp_path / "data/a/._0.png").write_bytes(b"of macOS")
    elif kind == "npz":
        np.savez(tmp_path / "test.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    elif kind == "npy":
        np.save(tmp_path / "x_test.npy", np.zeros((3, 8, 8), np.float32))
        np.save(tmp_path / "y_test.npy", np.zeros(3, np.int64))
    else:
        (tmp_path / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 3, 8, 8) + bytes(3 * 64))
    (one,) = found().data
    params = YAML().load(params_text(Choice(None, one, "", "e"), Path()))
    entries = (entry for family in ("queries", "corruptions", "verification") for entry in params[family].values())
    assert {block["samples"]["n"] for block in (params["data"], *entries)} == {3}
    unknown = YAML().load(params_text(Choice(None, replace(one, samples=None), "", "e"), Path()))
    assert unknown["data"]["samples"]["n"] == 200


def test_hidden_files_are_no_candidates(tmp_path, found):
    images(tmp_path / "data")
    (tmp_path / "data/a/._0.png").write_bytes(b"of macOS")
    torch.save(net().state_dict(), tmp_path / "._net.pt")
    assert found().weights == []
    assert found().data[0].side == (6, 8)


def test_idx_files_have_their_labels_and_training_split(tmp_path, found):
    for name in ("t10k-images-idx3-ubyte.gz", "train-images-idx3-ubyte.gz"):
        (tmp_path / name).touch()
    (one,) = found().data
    assert one.path.name == "t10k-images-idx3-ubyte.gz"
    assert one.train == Path("train-images-idx3-ubyte.gz")
    assert one.labels == (Path("t10k-labels-idx1-ubyte.gz"), Path("train-labels-idx1-ubyte.gz"))


@pytest.mark.parametrize(
    ("samples", "labels", "training"),
    [
        ("x_test.npy", "y_test.npy", ("x_train.npy", "y_train.npy")),
        ("X_test.npy", "y_test.npy", None),
        ("test_images.npy", "test_labels.npy", ("train_images.npy", "train_labels.npy")),
        ("data.npy", "targets.npy", None),
    ],
)
def test_a_pair_of_npy_files_is_told_by_its_names(tmp_path, found, samples, labels, training):
    for x, y in filter(None, [(samples, labels), training]):
        np.save(tmp_path / x, np.zeros((4, 9, 8, 3), np.uint8))
        np.save(tmp_path / y, np.zeros((4, 1), np.int64))
    np.save(tmp_path / "weights_by_layer.npy", np.zeros(3))
    (one,) = found().data
    assert (one.path, one.source, one.side, one.channels) == (Path(samples), "npy", (9, 8), 3)
    assert (one.labels[0], one.train) == (Path(labels), Path(training[0]) if training else None)
    assert one.labels[1] == (Path(training[1]) if training else None)
    assert found().data_at(Path(samples)) == one
    assert found().data_at(tmp_path / samples).labels[0] == tmp_path / labels
    only_training = Choice(None, replace(one, path=Path("x_train.npy")), "", "e")
    assert any("looks like training data" in line for line in notes(only_training))
    assert not any("looks like training data" in line for line in notes(Choice(None, one, "", "e")))
    text = params_text(Choice(None, one, "", "e"), Path(".."))
    assert f"source: npy\n  path: ../{samples}\n  labels: ../{labels}\n" in text


@pytest.mark.parametrize("name", ["t10k-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte"])
def test_small_images_of_idx_and_npz_are_resized_for_corruptions(tmp_path, found, name):
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wb") as file:
        file.write(struct.pack(">4I", 0x803, 1, 28, 28) + bytes(28 * 28))
    np.savez(tmp_path / "colour.npz", x=np.zeros((2, 3, 30, 40), np.float32))
    np.savez(tmp_path / "large.npz", x=np.zeros((2, 3, 64, 64), np.float32))
    np.savez(tmp_path / "grey.npz", x=np.zeros((2, 8, 9), np.float32))
    by_name = {one.path.name: one for one in found().data}
    known = {name: (one.side, one.channels) for name, one in by_name.items()}
    of_npz = {"colour.npz": ((30, 40), 3), "large.npz": ((64, 64), 3), "grey.npz": ((8, 9), 1)}
    assert known == {name: ((28, 28), 1), **of_npz}
    for one in by_name.values():
        text = params_text(Choice(None, one, "", "e"), Path())
        assert ("upsample: 32" in text) == (one.path.name != "large.npz")


def test_the_training_split_beside_an_npz_is_named_too(tmp_path, found):
    """Without it A20 and A22 cannot ask whether the samples were trained on."""
    for name in ("test", "train"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.zeros(2, np.int64))
    (one,) = found().data
    assert (one.path.name, one.train) == ("test.npz", Path("train.npz"))


def test_an_npz_counts_where_it_holds_x(tmp_path, found):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)))
    np.savez(tmp_path / "b.npz", weights=np.zeros(3))
    assert [one.path.name for one in found().data] == ["a.npz"]
    assert found().data_at(Path("a.npz")).source == "npz"
    assert found().data_at(Path("later.npz")).source == "npz"  # a stage may make it
    with pytest.raises(
        UserError, match=r"^init: --data b\.npz: has no array 'x' \(it has weights\); x is \(N, C, H, W\)"
    ):
        found().data_at(Path("b.npz"))


def test_what_a_dvc_stage_makes_comes_first_even_before_it_is_there(tmp_path, found):
    torch.save(net().state_dict(), tmp_path / "a.pt")
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "dvc.yaml").write_text(
        "stages:\n  fit:\n    cmd: x\n    wdir: ..\n    outs: [models/net.onnx, {data: {cache: false}}, '${other}']\n"
    )
    images(tmp_path / "data" / "test")
    assert found().made == {Path("models/net.onnx"): "training/dvc.yaml:fit", Path("data"): "training/dvc.yaml:fit"}
    assert [(one.path.name, one.made_by) for one in found().weights] == [
        ("net.onnx", "training/dvc.yaml:fit"),
        ("a.pt", ""),
    ]
    assert found().data[0].made_by == "training/dvc.yaml:fit"


def test_dvc_yaml_files_are_read_by_the_fast_parser(tmp_path, monkeypatch):
    """A repository may have thousands; the exact parser takes five times as long."""
    (tmp_path / "dvc.yaml").write_text("stages: {fit: {cmd: fit, deps: [a.csv], params: [lr], outs: [net.pt]}}")
    exact = []
    monkeypatch.setattr(text, "YAML", lambda **options: exact.append(options["pure"]) or YAML(**options))
    assert walk.outputs(tmp_path, [Path("dvc.yaml")]) == {Path("net.pt"): "fit"}
    assert exact == [False]


def test_a_dvc_yaml_that_is_none_makes_nothing(tmp_path):
    (tmp_path / "dvc.yaml").write_text("stages: {a: 3, b: {outs: [")
    assert walk.outputs(tmp_path, [Path("dvc.yaml")]) == {}
    (tmp_path / "dvc.yaml").write_text("[1, 2]")
    assert walk.outputs(tmp_path, [Path("dvc.yaml"), Path("absent/dvc.yaml")]) == {}


NETS = """
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, width=3):
        self.body = nn.Linear(2, width)
        self.head: nn.Module = nn.Linear(width, 2)

class Needs(nn.Module):
    def __init__(self, width):
        self.body = self.head = None

class Other(nn.Module):
    def __init__(self):
        self.trunk = None

class Plain:
    def __init__(self):
        self.body = self.head = None

def build():
    return Net(width=5)

def numbered(): return nn.Sequential(nn.Linear(1, 1))
def with_argument(n): return Net(n)
raise RuntimeError("this file must not be run")
"""


def test_the_factory_is_what_has_the_children_of_the_state_dict_and_is_not_imported(tmp_path):
    for place in ("src/pkg/nets.py", "odd-name.py", "broken.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(NETS if place != "broken.py" else "def f(:")
    files = [Path("broken.py"), Path("odd-name.py"), Path("src/pkg/nets.py")]
    assert factories(tmp_path, files, frozenset({"body", "head"})) == ["pkg.nets:Net", "pkg.nets:build"]
    assert factories(tmp_path, files, frozenset({"0"})) == ["pkg.nets:numbered"]
    assert factories(tmp_path, files, frozenset({"nothing"})) == []


def test_the_factory_of_a_checkpoint_of_lightning_is_that_of_the_network_in_it(tmp_path, found):
    (tmp_path / "nets.py").write_text(NETS)
    state = {"model.body.weight": torch.ones(3, 4), "model.head.weight": torch.ones(2, 3)}
    torch.save({"state_dict": state}, tmp_path / "last.ckpt")
    (one,) = found().weights
    assert one.parts == {"model"}
    assert found().factories(one) == ["nets:Net", "nets:build"]


def test_the_side_of_images_is_taken_from_the_params_of_the_repository(tmp_path, found):
    (tmp_path / "params.yaml").write_text("train: {epochs: 3}\nprepare: {img_size: 64}\n")
    assert found().resize == (64, 64)
    (tmp_path / "params.yaml").write_text("a: [")
    assert FolderContents(tmp_path, Path("robustness")).resize is None
