"""Find ResNet-20's published weights and write them and CIFAR-10 images here."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from cifar10 import foolbox_images

CIFAR = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "data" / "colour" / "cifar10"
WEIGHTS = "resnet20-12fca82f.th"


def main() -> None:
    """Make weights.pt, and test.npz: 20 images of foolbox's package, or with --lossless the 100 of the shared folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lossless", action="store_true", help="the 100 test images of the shared folder")
    lossless = parser.parse_args().lossless
    weights = next((path for path in (Path(WEIGHTS), CIFAR / WEIGHTS) if path.is_file()), None)
    if weights is None:
        raise SystemExit(
            f"{WEIGHTS} is missing: take it from github.com/akamaster/pytorch_resnet_cifar10 (commit d5489e8, "
            f"pretrained_models, BSD-2) and put it beside prepare.py"
        )
    state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    torch.save({name.removeprefix("module."): tensor for name, tensor in state.items()}, "weights.pt")
    if lossless and not (CIFAR / "test.npz").is_file():
        raise SystemExit(f"{CIFAR / 'test.npz'} is missing; without --lossless foolbox's 20 images are taken")
    if lossless:
        with np.load(CIFAR / "test.npz") as content:
            x, y = content["x"], content["y"]
    else:
        x, y = foolbox_images()
    np.savez("test.npz", x=x, y=y)
    print(f"weights.pt, and test.npz with {len(x)} images")


if __name__ == "__main__":
    main()
