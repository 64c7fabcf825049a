"""Graphs of every exporter at hand: torch's legacy and newer one, onnxruntime's quantisation, and nodes put together by hand."""

import io
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn

SHAPE, CLASSES = (3, 12, 12), 5


class Old(nn.Module):
    """Flattens as torch 1.x did: by the size of the batch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(54, CLASSES)

    def forward(self, x):
        x = self.conv(x)
        return self.head(x.view(x.size(0), -1))


class Residual(nn.Module):
    """A residual network with the shortcut of CIFAR ResNets: every second pixel, and channels of zeros."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(4, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, 1, 1),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(self.block(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        return self.head(F.avg_pool2d(x, x.shape[3]).flatten(1))


class Vit(nn.Module):
    """A vision transformer with a class token, of torch's own encoder layers."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 10, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layer(x))[:, 0])


class Attention(nn.Module):
    """Attention as timm writes it: heads by reshape and permute, split by unbind."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(36, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        x = self.embed(x.reshape(n, 12, 36))
        q, k, v = self.qkv(x).reshape(n, 12, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.einsum("bhqd,bhkd->bhqk", q * 0.5, k).softmax(-1)
        x = (weights @ v).transpose(1, 2).reshape(n, 12, 8)
        return self.head(x.mean(1))


class Windows(nn.Module):
    """Windows that join the batch, as in Swin."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(16, 16), nn.Linear(3 * 144, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        windows = x.view(n, 3, 3, 4, 3, 4).permute(0, 2, 4, 1, 3, 5).reshape(n * 9, 3, 16)
        x = F.gelu(self.mix(windows), approximate="tanh").view(n, 3, 3, 3, 4, 4).permute(0, 3, 1, 4, 2, 5)
        return self.head(x.reshape(n, -1))


class Mobile(nn.Module):
    """Depthwise and dilated convolutions, squeeze and excitation, hard activations."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1), nn.Hardswish(), nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=6), nn.ReLU6()
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 2, 1), nn.PReLU(2), nn.Conv2d(2, 6, 1), nn.Hardsigmoid()
        )
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.body(x)
        return self.head((x * self.gate(x)).mean((2, 3)))


class Decoder(nn.Module):
    """Transposed convolutions, upsampling, pixel shuffle, chunks."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 4, 4, 2, 1, output_padding=1)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = F.leaky_relu(self.down(x), 0.2)
        a, b = torch.chunk(self.up(x), 2, 1)
        c = F.interpolate(x[:, 2:4], scale_factor=2, mode="nearest")
        d = F.pixel_shuffle(x[:, :8], 2)
        return self.head(torch.cat([a[:, :, :12, :12] * b[:, :, -12:, -12:].tanh(), c, d], 1).amax((2, 3)))


class Norms(nn.Module):
    """Group and instance normalisation, smooth activations, average pooling with padding, log softmax."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.SiLU(), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            nn.Conv2d(6, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ELU(), nn.MaxPool2d(2, 2, ceil_mode=True), nn.Softplus(),
        )  # fmt: skip
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return F.log_softmax(self.head(torch.flatten(self.body(F.pad(x, (1, 1, 1, 1), mode="reflect")), 1)), 1)


class Standardised(nn.Module):
    """A normalisation inside, a fully connected network, probabilities."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(432, 16), nn.Sigmoid(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, CLASSES)
        )

    def forward(self, x):
        return F.softmax(self.layers((x - self.mean) / 0.25), 1)


MODULES = {
    m.__name__.lower(): m for m in (Old, Residual, Vit, Attention, Windows, Mobile, Decoder, Norms, Standardised)
}


def module_of(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
    return module.eval()


def quiet():
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)


def legacy(name, path, opset, dynamic, folded):
    """Export by the exporter of TorchScript."""
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}} if dynamic else {}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        training = torch.onnx.TrainingMode.EVAL if folded else torch.onnx.TrainingMode.PRESERVE
        torch.onnx.export(
            module_of(name), (torch.rand(1 + dynamic, *SHAPE),), path, dynamo=False, opset_version=opset,
            do_constant_folding=folded, training=training, **axes,
        )  # fmt: skip


def dynamo(name, path, opset, dynamic):
    """Export by the exporter of torch.export."""
    more = {"dynamic_shapes": ({0: torch.export.Dim("n")},)} if dynamic else {}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module_of(name),
            (torch.rand(1 + dynamic, *SHAPE),),
            path,
            dynamo=True,
            opset_version=opset,
            verbose=False,
            **more,
        )


class Calibration:
    """A few images for onnxruntime's quantisation."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.batches = iter([{"x": generator.random((8, *SHAPE)).astype(np.float32)} for _ in range(4)])

    def get_next(self):
        return next(self.batches, None)


def quantised(name, path, form, per_channel, signed):
    """Quantise an export by onnxruntime.quantization, as QDQ or QOperator."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    plain = Path(path).with_suffix(".float.onnx")
    legacy(name, plain, 13, True, True)
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        quantize_static(
            plain, path, Calibration(), quant_format=getattr(QuantFormat, form), per_channel=per_channel,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8, weight_type=QuantType.QInt8,
            reduce_range=True,  # 8-bit weights overflow in onnxruntime's kernels on processors without VNNI
        )  # fmt: skip
    finally:
        logging.disable(level)


def by_hand(name, path):
    """Save one of the graphs of `HAND`."""
    nodes, constants, opset, shape, batch = HAND[name]()
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *shape])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph(
        nodes,
        name,
        [taken],
        [given],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def _random(*shape):
    return np.random.default_rng(sum(shape)).normal(0, 0.2, shape).astype(np.float32)


def _channels_last():
    """tf2onnx's form: transposed for each convolution, and back; SAME padding of an even size is one-sided."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 3, 1, 2]),
        node("Conv", ["a", "w"], ["b"], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Transpose", ["b"], ["c"], perm=[0, 2, 3, 1]),
        node("Add", ["c", "bias"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Transpose", ["e"], ["f"], perm=[0, 3, 1, 2]),
        node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Transpose", ["g"], ["h"], perm=[0, 2, 3, 1]),
        node("Reshape", ["h", "flat"], ["i"]),
        node("MatMul", ["i", "v"], ["j"]),
        node("Softmax", ["j"], ["y"]),
    ]
    constants = {"w": _random(4, 3, 3, 3), "bias": _random(4), "flat": np.array([-1, 36]), "v": _random(36, CLASSES)}
    return nodes, constants, 13, (12, 12, 3), "n"


def _binarised():
    nodes = [
        helper.make_node("Flatten", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Sign", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "v"], ["y"], transB=1, alpha=0.5),
    ]
    return nodes, {"w": _random(432, 8), "v": _random(CLASSES, 8)}, 13, SHAPE, "n"


def _old_flatten():
    """Shape, Gather, Unsqueeze, Concat, Reshape, of opset 9 and a batch of one."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "bias"], ["a"], strides=[3, 3]),
        node("Shape", ["a"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n"], ["m"], axes=[0]),
        node("Concat", ["m", "rest"], ["t"], axis=0),
        node("Reshape", ["a", "t"], ["b"]),
        node("BatchNormalization", ["b", "g", "o", "mu", "var"], ["c"]),
        node("Gemm", ["c", "v", "o2"], ["y"]),
    ]
    constants = {
        "w": _random(4, 3, 3, 3), "bias": _random(4), "zero": np.array(0), "rest": np.array([-1]), "g": _random(64) + 1,
        "o": _random(64), "mu": _random(64), "var": np.abs(_random(64)) + 1, "v": _random(64, CLASSES), "o2": _random(CLASSES),
    }  # fmt: skip
    return nodes, constants, 9, SHAPE, 1


def _sliced():
    """Slices and pads of opset 9, whose ends are attributes; a gather of constant indices; a constant branch."""
    node = helper.make_node
    nodes = [
        node("Slice", ["x"], ["a"], starts=[1, 2], ends=[2**31 - 1, -2], axes=[2, 3]),
        node("Pad", ["a"], ["b"], pads=[0, 0, 1, 0, 0, 0, 0, 1], value=0.0),
        node("Conv", ["b", "w"], ["c"]),
        node("Gather", ["c", "rows"], ["d"], axis=2),
        node("Clip", ["d"], ["e"], min=-0.2, max=0.3),
        node("ReduceMean", ["e"], ["f"], axes=[2, 3], keepdims=0),
        node("MatMul", ["f", "v"], ["y"]),
    ]
    return nodes, {"w": _random(4, 3, 3, 3), "rows": np.array([4, 0, 2]), "v": _random(4, CLASSES)}, 9, SHAPE, "n"


def _computed():
    """Slice with computed axes and ends, ReduceMean with axes as an input, and a division of sizes."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "three"], ["width"], axis=0),
        node("Div", ["width", "two"], ["half"]),
        node("Sub", ["three", "one"], ["axis"]),
        node("Unsqueeze", ["half", "zeroth"], ["end"]),
        node("Unsqueeze", ["axis", "zeroth"], ["axes"]),
        node("Slice", ["x", "zeroth", "end", "axes"], ["a"]),
        node("Conv", ["a", "w"], ["b"]),
        node("Round", ["b"], ["c"]),
        node("Add", ["b", "c"], ["d"]),
        node("ReduceMean", ["d", "where"], ["e"], keepdims=0),
        node("MatMul", ["e", "v"], ["y"]),
    ]
    constants = {
        "three": np.array(3), "two": np.array(2), "one": np.array(1), "zeroth": np.array([0]), "where": np.array([2, 3]),
        "w": _random(4, 3, 3, 3), "v": _random(4, CLASSES),
    }  # fmt: skip
    return nodes, constants, 18, SHAPE, "n"


HAND = {f.__name__.lstrip("_"): f for f in (_channels_last, _binarised, _old_flatten, _sliced, _computed)}

# name -> a function that saves the graph at a path
GRAPHS = {}
for _name in MODULES:
    # Group normalisation is written by instance normalisation; einsum and tanh GELU are not in every opset.
    for _opset, _dynamic, _folded in ((11, True, False), (13, False, True), (17, True, True), (17, False, False)):
        if _opset >= 14 or _name not in {"attention", "vit"}:
            GRAPHS[f"legacy-{_name}-{_opset}-{'any' if _dynamic else 'one'}-{'folded' if _folded else 'unfolded'}"] = (
                lambda path, a=(_name, _opset, _dynamic, _folded): legacy(a[0], path, *a[1:])
            )
    for _opset, _dynamic in ((18, True), (20, False), (23, True)):
        GRAPHS[f"dynamo-{_name}-{_opset}-{'any' if _dynamic else 'one'}"] = lambda path, a=(_name, _opset, _dynamic): (
            dynamo(a[0], path, *a[1:])
        )
for _name, _opset in (("old", 7), ("old", 9), ("standardised", 8), ("residual", 10)):
    GRAPHS[f"legacy-{_name}-{_opset}-any-unfolded"] = lambda path, a=(_name, _opset): legacy(
        a[0], path, a[1], True, False
    )
for _name in ("old", "residual", "standardised", "mobile"):
    for _form in ("QDQ", "QOperator"):
        for _per_channel, _signed in ((False, False), (True, True)):
            GRAPHS[f"{_form.lower()}-{_name}-{'int8' if _signed else 'uint8'}"] = (
                lambda path, a=(_name, _form, _per_channel, _signed): quantised(a[0], path, *a[1:])
            )
for _name in HAND:
    GRAPHS[f"hand-{_name}"] = lambda path, name=_name: by_hand(name, path)
