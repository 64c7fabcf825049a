"""Rows of model files that lead out of their folder, never end or look odd and are legitimate.

Those of a wrong kind are in `table.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tests.hostile.harness import params, write_params
from tests.hostile.table import Make, Row

_WEIGHT = np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32)
_QUANTISED = """
import torch
from torch import nn
def make():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, torch.qint8)
"""


def rows_of_models() -> Iterator[Row]:
    """Yield the rows."""
    # Legitimate.
    for where in ("initializer", "constant", "subgraph"):
        yield Row(f"onnx: external data in a {where}", _onnx(_external(where)), ("1 assessments",), code=0)
    for algorithm, words, code in [("Square", "1 assessments", 0), ("FGSM", "only its forward pass", 2)]:
        yield Row(f"state dict of a quantised module, {algorithm}", _quantised(algorithm), (words,), code=code)
    for name, keys, words in [
        ("a negative offset", {"offset": "-4"}, ("net.onnx",)),
        ("a negative length", {"length": "-4"}, ("net.onnx",)),
        ("an offset beyond the file", {"offset": str(2**40)}, ("net.onnx",)),
        ("a length of a terabyte", {"length": str(2**40)}, ("net.onnx",)),
        ("an offset that is text", {"offset": "x"}, ("net.onnx",)),
        ("a file above the folder", {"location": "../w.bin"}, ("net.onnx",)),
        ("an absolute file", {"location": "/etc/hostname"}, ("net.onnx",)),
        ("a device", {"location": "../../dev/zero"}, ("net.onnx",)),
        ("a file that is not there", {"location": "gone.bin"}, ("net.onnx",)),
        ("no location", {"location": ""}, ("net.onnx",)),
    ]:
        for where in ("initializer", "constant"):
            yield Row(f"onnx: {name} in a {where}", _onnx(_external(where, **keys)), words)
    yield Row("onnx: a loop without end", _onnx(_loop), ("has not answered", "model.time_limit"))
    index = "model.safetensors.index.json"
    for name, content, words in [
        ("above the folder", {"weight_map": {"a": "../../w.safetensors"}}, ("../../w.safetensors", "no file of its folder")),
        ("an absolute file", {"weight_map": {"a": "/etc/hostname"}}, ("/etc/hostname", "no file of its folder")),
        ("a number", {"weight_map": 3}, ("weight_map",)),
        ("a list", [1], ("must be a map",)),
    ]:  # fmt: skip
        yield Row(f"huggingface index: {name}", _vit({index: content}), (index, *words))
    for name, change in [
        ("heads that do not divide", {"num_attention_heads": 3}),
        ("no size", {"hidden_size": 0}),
        ("another architecture", {"architectures": [3]}),
    ]:
        yield Row(
            f"huggingface: {name}, and no fitting weights",
            _vit({"model.safetensors": _SAFETENSORS}, change),
            ("model.path: hf: ", "weights"),
        )
    for value in (-1, "x", 10**15, [1]):
        timm = {"source": "timm", "name": "resnet10t", "weights": "random", "kwargs": {"num_classes": value}}
        yield Row(f"timm: num_classes {value!r}", _params(model=timm), ("num_classes", "1 to 1000000"))


def _params(**blocks: object) -> Make:
    return lambda folder: write_params(folder, params(**blocks))


def _onnx(write: Callable[[Path], None]) -> Make:
    def make(folder: Path) -> None:
        write(folder)
        write_params(folder, params(model={"source": "onnx", "path": "net.onnx", "time_limit": 5}))

    return make


def _graph(nodes: list[onnx.NodeProto], constants: list[TensorProto]) -> onnx.ModelProto:
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph([helper.make_node("Flatten", ["x"], ["flat"]), *nodes], "g", [taken], [given], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _external(where: str, **keys: str) -> Callable[[Path], None]:
    """A linear model whose weight lies in w.bin beside it; `keys` change how the file is named."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64, 10], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **keys}.items():
        weight.external_data.add(key=key, value=value)
    constant = helper.make_node("Constant", [], ["w"], value=weight)
    nodes, initializers = [helper.make_node("MatMul", ["flat", "w"], ["y"])], []
    if where == "initializer":
        initializers = [weight]
    elif where == "constant":
        nodes = [constant, *nodes]
    else:
        then = helper.make_graph(
            [constant], "then", [], [helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 10])]
        )
        nodes = [helper.make_node("If", ["yes"], ["w"], then_branch=then, else_branch=then), *nodes]
        initializers = [numpy_helper.from_array(np.array(True), "yes")]
    model = _graph(nodes, initializers)

    def write(folder: Path) -> None:
        _WEIGHT.tofile(folder / "w.bin")
        _WEIGHT.tofile(folder.parent / "w.bin")
        (folder / "net.onnx").write_bytes(model.SerializeToString())

    return write


def _loop(folder: Path) -> None:
    """A loop whose condition is always true."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["v2"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, None)],
        [info("on", TensorProto.BOOL, []), info("v2", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("MatMul", ["flat", "w"], ["z"]),
        helper.make_node("Loop", ["", "yes", "z"], ["y"], body=body),
    ]
    constants = [numpy_helper.from_array(_WEIGHT, "w"), numpy_helper.from_array(np.array(True), "yes")]
    (folder / "net.onnx").write_bytes(_graph(nodes, constants).SerializeToString())


def _quantised(algorithm: str) -> Make:
    """An attack on a module whose logits require a gradient that never reaches the input."""

    def make(folder: Path) -> None:
        (folder / "mine.py").write_text(_QUANTISED)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        quantised = torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, torch.qint8)
        torch.save(quantised.state_dict(), folder / "w.pt")
        model = {"source": "state_dict", "path": "w.pt", "factory": "mine:make"}
        write_params(
            folder, {**params(model=model), "attacks": {"a": {"library": "torchattacks", "algorithm": algorithm}}}
        )

    return make


_HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
_SAFETENSORS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)  # one weight that no ViT has


def _vit(files: dict[str, object], change: dict[str, object] | None = None) -> Make:
    """A tiny ViT as save_pretrained writes it, without weights; `change`: keys of its configuration."""
    whole = {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 8, "patch_size": 4, "num_channels": 1,
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "num_labels": 10, **(change or {}),
    }  # fmt: skip
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}

    def make(folder: Path) -> None:
        (folder / "hf").mkdir()
        for name, content in {"config.json": whole, "preprocessor_config.json": processor, **files}.items():
            if not isinstance(content, bytes):
                content = (content if isinstance(content, str) else json.dumps(content)).encode()
            (folder / "hf" / name).write_bytes(content)
        write_params(folder, params(model={"source": "huggingface", "path": "hf", "time_limit": 10}))

    return make
