"""`model.preprocess` and the layout of an ONNX graph: pixels are transposed, never reshaped into another order."""

import itertools
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError
from torch import nn

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.load import import_model, load_classifier, preview_classifier
from windtunnel.boundary.models.preprocess import layout_of
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.params.data import Data
from windtunnel.params.model import Model, Preprocess


def colour(height=6, width=5, channels=3, n=9):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(n, channels, height, width, generator=generator)
    return Dataset(inputs, torch.arange(n) % 4, tuple(map(str, range(n))), tuple("abcd"))


def graph(path, shape, *, batch="n", kind=TensorProto.FLOAT, numbers=None):
    """Save a graph that flattens a sample of `shape` as it is given and multiplies it by a random matrix."""
    numbers = numbers or int(np.prod(shape))
    weight = np.random.default_rng(0).normal(size=(numbers, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["real"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    taken = helper.make_tensor_value_info("x", kind, [batch, *shape])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])
    made = helper.make_graph(nodes, "g", [taken], [given], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def classifier(path, data, **preprocess):
    return preview_classifier(Model(source="onnx", path=str(path), preprocess=preprocess), data, None, "cpu")


def expected(path, x):
    session = onnxruntime.InferenceSession(str(path))
    return torch.from_numpy(np.concatenate([session.run(None, {"x": row[None].numpy()})[0] for row in x]))


@pytest.mark.parametrize("batch", [1, "n"])
def test_a_graph_with_channels_last_is_given_transposed_images(tmp_path, batch):
    data, path = colour(), graph(tmp_path / "m.onnx", (6, 5, 3), batch=batch)
    found = classifier(path, data)
    torch.testing.assert_close(found.logits(data.inputs), expected(path, data.inputs.permute(0, 2, 3, 1)))
    assert "NHWC" in found.source


def test_a_graph_with_channels_first_is_given_the_images_as_they_are(tmp_path):
    data, path = colour(), graph(tmp_path / "m.onnx", (3, 6, 5))
    found = classifier(path, data)
    torch.testing.assert_close(found.logits(data.inputs), expected(path, data.inputs))
    assert "NHWC" not in found.source


def test_an_ambiguous_shape_is_refused_until_the_key_decides(tmp_path):
    data, path = colour(3, 3), graph(tmp_path / "m.onnx", (3, 3, 3))
    with pytest.raises(IncompatibleError, match=r"model\.preprocess: \{layout: NCHW\} or \{layout: NHWC\}"):
        classifier(path, data)
    last, first = (classifier(path, data, layout=layout).logits(data.inputs) for layout in ("NHWC", "NCHW"))
    torch.testing.assert_close(last, expected(path, data.inputs.permute(0, 2, 3, 1)))
    torch.testing.assert_close(first, expected(path, data.inputs))
    assert not torch.allclose(first, last)


@pytest.mark.parametrize("shape", [(5, 6, 3), (3, 5, 6), (10, 3, 3), (9, 10), (6, 15)])
def test_image_shaped_inputs_are_never_reshaped(tmp_path, shape):
    data, path = colour(), graph(tmp_path / "m.onnx", shape)
    with pytest.raises(IncompatibleError, match=r"takes .* no order of the data's 3x6x5"):
        classifier(path, data)


def test_a_stated_layout_that_the_graph_contradicts_is_refused(tmp_path):
    with pytest.raises(IncompatibleError, match=r"layout: NCHW, but m\.onnx takes 6x5x3"):
        classifier(graph(tmp_path / "m.onnx", (6, 5, 3)), colour(), layout="NCHW")


@pytest.mark.parametrize("shape", [(90,), (1, 90, 1), (1, 90)])
def test_a_flat_input_takes_the_pixels_in_their_order(tmp_path, shape):
    data, path = colour(), graph(tmp_path / "m.onnx", shape)
    found = classifier(path, data).logits(data.inputs)
    torch.testing.assert_close(found, expected(path, data.inputs.reshape(-1, *shape)))


@pytest.mark.parametrize("shape", [(6, 5, 1), (1, 6, 5), (6, 5)])
def test_grey_images_need_no_decision(tmp_path, shape):
    data, path = colour(channels=1), graph(tmp_path / "m.onnx", shape)
    found = classifier(path, data).logits(data.inputs)
    torch.testing.assert_close(found, expected(path, data.inputs.reshape(-1, *shape)))


def test_sizes_that_a_graph_leaves_open_fit_what_they_must():
    assert layout_of([None, None, 3], (3, 6, 5), None, "m") == "NHWC"
    assert layout_of([3, None, None], (3, 6, 5), None, "m") == "NCHW"
    assert layout_of([None, 3, None], (3, 3, 5), None, "m") == "NCHW"


def test_a_graph_of_open_sizes_takes_the_layout_in_which_it_runs(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n", 1: "c", 2: "h", 3: "w"}}}
    torch.onnx.export(module, (torch.zeros(1, 3, 6, 5),), tmp_path / "m.onnx", dynamo=False, **axes)
    data = colour()
    torch.testing.assert_close(classifier(tmp_path / "m.onnx", data).logits(data.inputs), module(data.inputs))
    with pytest.raises(IncompatibleError, match=r"takes [?]x[?]x[?], which fits images with channels first and"):
        classifier(graph(tmp_path / "m.onnx", ("c", "h", "w"), numbers=90), data)


def test_a_uint8_input_is_an_image_of_0_to_255(tmp_path):
    data, path = colour(), graph(tmp_path / "m.onnx", (6, 5, 3), kind=TensorProto.UINT8)
    pixels = (data.inputs * 255).round().to(torch.uint8)
    found = classifier(path, data).logits(pixels / 255)
    torch.testing.assert_close(found, expected(path, pixels.permute(0, 2, 3, 1)), rtol=1e-5, atol=1e-3)


class Plain(nn.Module):
    """A network that gets what `prepare` of the documented order gives."""

    def __init__(self, shape=(3, 6, 5)):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(int(np.prod(shape)), 4)

    def forward(self, x):
        return self.linear(x.flatten(1))


def prepared(x, layout, value_range, mean, std, channels):
    if channels == "gray":
        x = (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2])[:, None]
    x = x.flip(1) if channels == "BGR" else x
    x = x * (value_range[1] - value_range[0]) + value_range[0]
    x = (x - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    return x.permute(0, 2, 3, 1) if layout == "NHWC" else x


FORMS = list(itertools.product(("NCHW", "NHWC"), ((0.0, 1.0), (0.0, 255.0), (-1.0, 1.0)), ("RGB", "BGR", "gray")))


@pytest.mark.parametrize(("layout", "value_range", "channels"), FORMS)
def test_every_source_is_preprocessed_in_the_documented_order(tmp_path, layout, value_range, channels):
    data = colour()
    count = 1 if channels == "gray" else 3
    shape = (count, 6, 5) if layout == "NCHW" else (6, 5, count)
    mean, std = [0.1, 0.2, 0.3][:count], [0.5, 0.6, 0.7][:count]
    fed = prepared(data.inputs, layout, value_range, mean, std, channels)
    preprocess = {"layout": layout, "range": value_range, "mean": mean, "std": std, "channels": channels}
    path = graph(tmp_path / "m.onnx", shape)
    found = classifier(path, data, **preprocess).logits(data.inputs)
    torch.testing.assert_close(found, expected(path, fed), rtol=1e-4, atol=1e-3)

    torch.save(Plain(shape).state_dict(), tmp_path / "w.pt")
    model = Model(
        source="state_dict", path=str(tmp_path / "w.pt"), factory=f"{__name__}:Plain", kwargs={"shape": list(shape)},
        preprocess=preprocess,
    )  # fmt: skip
    import_model(model, None, 0, "cpu", tmp_path / "kept", None, data)
    kept = load_classifier(tmp_path / "kept", "cpu", data, trust_of(model))
    torch.testing.assert_close(kept.logits(data.inputs), Plain(shape)(fed), rtol=1e-4, atol=1e-3)
    assert Capability.AUTOGRAD in kept.capabilities

    function = Model(source="function", function=f"{__name__}:predict", preprocess=preprocess)
    log = preview_classifier(function, data, None, "cpu").logits(data.inputs)
    torch.testing.assert_close(log.exp(), torch.from_numpy(predict(fed.numpy())), rtol=1e-4, atol=1e-5)


def predict(batch):
    x = np.stack([batch.reshape(len(batch), -1)[:, i] for i in (0, 3, 7, 11)], 1) / 255
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def test_a_factory_is_trained_behind_its_preprocessing(tmp_path):
    data = colour()
    model = Model.model_validate(
        {"source": "train", "factory": f"{__name__}:Plain", "train": {"epochs": 1}, "preprocess": {"range": [-1, 1]}}
    )
    import_model(model, data, 0, "cpu", tmp_path, None, data)
    kept = load_classifier(tmp_path, "cpu", data, trust_of(model))
    plain = Plain()
    plain.load_state_dict(torch.load(tmp_path / "weights.pt"))
    torch.testing.assert_close(kept.logits(data.inputs), plain(data.inputs * 2 - 1))


@pytest.mark.parametrize(
    ("given", "shape", "words"),
    [
        ({"mean": [0.1, 0.2]}, (3, 6, 5), "mean: has 2 values; one, or one for each of 3 channels"),
        ({"channels": "BGR"}, (1, 6, 5), "BGR is made of 3 channels; the data have 1"),
        ({"layout": "NHWC"}, (30,), "layout and channels are of images"),
    ],
)
def test_a_preprocessing_that_does_not_fit_is_one_line(tmp_path, given, shape, words):
    data = Dataset(torch.rand(4, *shape), torch.arange(4), tuple("abcd"), tuple("abcd"))
    torch.save(Plain(shape).state_dict(), tmp_path / "w.pt")
    model = Model(source="state_dict", path=str(tmp_path / "w.pt"), factory=f"{__name__}:Plain", preprocess=given)
    with pytest.raises(UserError, match=words):
        preview_classifier(model, data, None, "cpu")


@pytest.mark.parametrize("given", [{"range": [1, 0]}, {"std": [0.5, 0]}, {"layout": "NCWH"}, {"mean": ["x"]}])
def test_impossible_values_are_refused_in_params(given):
    with pytest.raises(ValidationError):
        Preprocess.model_validate(given)


@pytest.mark.slow
def test_the_traffic_sign_network_is_as_good_as_onnxruntime_says(shared, tmp_path):
    shutil.unpack_archive(shared / "data/colour/gtsrb/test.tar", tmp_path)
    data, _ = load_dataset(Data(source="folder", path=str(tmp_path / "test"), resize=48), 0)
    path = shared / "data/colour/gtsrb/bnn_48.onnx"
    found = classifier(path, data, range=[0, 255]).predict(data.inputs)
    session = onnxruntime.InferenceSession(str(path))
    pixels = (data.inputs * 255).permute(0, 2, 3, 1).numpy()
    theirs = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: pixels})[0]).argmax(1)
    assert (found == theirs).float().mean() > 0.995
    assert (found == data.targets).float().mean() > 0.91


def test_a_graph_with_a_flat_output_is_refused_in_one_line(tmp_path):
    """A binary network with one probability per sample, (N,)."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Sigmoid", ["mean"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "flat.onnx")
    with pytest.raises(IncompatibleError, match=r"flat\.onnx.*logits of shape \(N, K\) are needed"):
        preview_classifier(Model(source="onnx", path=str(tmp_path / "flat.onnx")), colour(), None, "cpu")


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).mean((1, 2))


def test_a_module_that_takes_channels_last_is_told_the_key(tmp_path):
    torch.save(ChannelsLast().state_dict(), tmp_path / "w.pt")
    model = Model(source="state_dict", path=str(tmp_path / "w.pt"), factory=f"{__name__}:ChannelsLast")
    with pytest.raises(IncompatibleError, match=r"model\.preprocess: \{layout: NHWC\}"):
        preview_classifier(model, colour(), None, "cpu")
