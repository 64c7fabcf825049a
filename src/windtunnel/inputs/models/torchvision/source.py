"""The record of the classifiers of torchvision.models."""

from __future__ import annotations

from windtunnel.core.plugins import Lazy, ModelSource

_HERE = "windtunnel.inputs.models.torchvision.adapter"
SOURCE = ModelSource(
    "torchvision",
    Lazy(f"{_HERE}:load"),
    keep=Lazy(f"{_HERE}:keep"),
    view=Lazy(f"{_HERE}:view"),
    imports=("torchvision",),
)
