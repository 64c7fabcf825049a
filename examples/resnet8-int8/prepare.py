"""Find MLPerf Tiny's two TFLite files and CIFAR-10 images, and write the float file's weights as the twin, twin.pt."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from resnet8 import ResNet8

COLOUR = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "data" / "colour"
TFLITE = {"float.tflite": "pretrainedResnet.tflite", "int8.tflite": "pretrainedResnet_quant.tflite"}
# The convolution that each batch normalisation of the Keras model was folded into.
FOLDED = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 6: 5, 7: 6}


def copy_models() -> None:
    """Copy the two files here; end with a line that says where they come from, if one is missing."""
    for name, original in TFLITE.items():
        sources = [Path(original), COLOUR / "tiny" / original]
        if not any(path.is_file() for path in sources):
            raise SystemExit(
                f"{original} is missing: take it from github.com/mlcommons/tiny (commit 1afd2c9, benchmark/training/"
                f"image_classification/trained_models, Apache-2.0) and put it beside prepare.py"
            )
        shutil.copyfile(next(path for path in sources if path.is_file()), name)


def write_twin() -> None:
    """Write the constants of float.tflite as a state dict of ResNet8."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter("float.tflite", experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    details = interpreter.get_tensor_details()

    def constant(prefix: str, *shape: int) -> torch.Tensor:
        (index,) = [d["index"] for d in details if prefix in d["name"] and tuple(d["shape"]) == shape]
        return torch.from_numpy(interpreter.get_tensor(index).copy())

    model = ResNet8()
    state = {"dense.weight": constant("model/dense/MatMul", 10, 64), "dense.bias": constant("model/dense/BiasAdd/", 10)}
    for i, layer in enumerate(model.convolutions):
        suffix = f"_{i}" if i else ""
        size = layer.kernel_size[0]
        weight = constant(f"model/conv2d{suffix}/Conv2D", layer.out_channels, size, size, layer.in_channels)
        state[f"convolutions.{i}.weight"] = weight.permute(0, 3, 1, 2).contiguous()
        number = FOLDED.get(i)
        name = (
            f"conv2d{suffix}/BiasAdd;"
            if number is None
            else f"batch_normalization{f'_{number}' if number else ''}/Fused"
        )
        state[f"convolutions.{i}.bias"] = constant(name, layer.out_channels)
    model.load_state_dict(state)
    torch.save(model.state_dict(), "twin.pt")


def write_images(n_samples: int | None) -> None:
    """Write test.npz: the lossless images of the shared folder, else the 20 that foolbox's package holds."""
    lossless = COLOUR / "cifar10" / "test.npz"
    if lossless.is_file():
        with np.load(lossless) as content:
            x, y = content["x"], content["y"]
    else:
        from cifar10 import foolbox_images

        x, y = foolbox_images()
    np.savez("test.npz", x=x[:n_samples], y=y[:n_samples])
    print(f"float.tflite, int8.tflite, twin.pt, and test.npz with {len(x[:n_samples])} images")


def main() -> None:
    """Make everything that the two params.yaml name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="images to assess; all where absent")
    arguments = parser.parse_args()
    copy_models()
    write_twin()
    write_images(arguments.samples)


if __name__ == "__main__":
    main()
