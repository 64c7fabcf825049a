"""Which architecture of torchvision or timm a state dict fits: by names and shapes, built without memory for weights."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SECONDS = 20.0  # for each library
IMAGENET_CLASSES = 1000  # of the architectures as they are built
_LEAST_OF_SIZE, _MOST_OF_SIZE = 0.4, 1.3  # a head of 1,000 classes is up to 0.6 of a small network
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of a library. classes: rows of the head, where they are not those of ImageNet."""

    source: str
    name: str
    classes: int | None = None


def fitting_architecture(state: Mapping[str, Tensor], file_name: str) -> Architecture | None:
    """Return the architecture whose names and shapes are those of `state`; None if no installed library has one.

    Names that stand in `file_name` are tried first.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    size = sum(tensor.numel() for tensor in state.values())
    for source, names, build in (("torchvision", *_torchvision(size)), ("timm", *_timm(shapes))):
        deadline = time.monotonic() + _SECONDS
        for name in sorted(names, key=lambda name: -_likeness(name, file_name)):
            if time.monotonic() > deadline:
                break
            head = _head(_shapes_of(build, name), shapes)
            if head is not None:
                return Architecture(source, name, head if head != IMAGENET_CLASSES else None)
    return None


def _likeness(name: str, file_name: str) -> int:
    """Return how many letters of an architecture's name stand in the name of the file."""
    short, file = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (name.partition(".")[0], file_name))
    return len(short) if short in file else 0


def _head(expected: Shapes, actual: Shapes) -> int | None:
    """Return the classes of the actual state dict where it fits but for the number of classes; None where it does not."""
    if expected.keys() != actual.keys():
        return None
    others = [name for name, shape in expected.items() if shape != actual[name]]
    if not others:
        return IMAGENET_CLASSES
    rows = {actual[name][0] if actual[name] else 0 for name in others}
    resized = all(
        expected[name][:1] == (IMAGENET_CLASSES,) and expected[name][1:] == actual[name][1:] and actual[name]
        for name in others
    )
    return rows.pop() if resized and len(rows) == 1 else None


def _shapes_of(build: Callable[[str], Any], name: str) -> Shapes:
    """Return names and shapes of an architecture; empty where it cannot be built without arguments."""
    import torch

    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return {key: tuple(tensor.shape) for key, tensor in build(name).state_dict().items()}
    except Exception:  # whatever a library raises for an architecture that needs something else
        return {}


def _torchvision(size: int) -> tuple[list[str], Callable[[str], Any]]:
    """Return the architectures with `size` parameters without the head, the nearest first, and their builders."""
    from windtunnel.boundary.models.torchvision.adapter import architecture, classifiers, parameter_count
    from windtunnel.core.errors import UserError

    try:
        counts = {name: parameter_count(name) for name in classifiers()}
    except UserError:  # not installed, or built for another torch
        counts = {}
    names = [name for name, count in counts.items() if _LEAST_OF_SIZE * count <= size <= _MOST_OF_SIZE * count]
    return sorted(names, key=lambda name: abs(counts[name] - size)), lambda name: architecture(name, {})


def _timm(shapes: Shapes) -> tuple[list[str], Callable[[str], Any]]:
    try:
        import timm
    except Exception:  # not installed, or its torchvision does not import
        return [], lambda name: None
    rows = ((name, timm.get_pretrained_cfg(name, allow_unregistered=True)) for name in timm.list_models())
    # Short names are the common ones.
    names = [name for name, row in rows if row and _has(shapes, row.first_conv) and _has(shapes, row.classifier)]
    return sorted(names, key=len), lambda name: timm.create_model(name, pretrained=False)


def _has(shapes: Shapes, layers: object) -> bool:
    listed = layers if isinstance(layers, tuple | list) else [layers]
    return all(isinstance(layer, str) and f"{layer}.weight" in shapes for layer in listed)
