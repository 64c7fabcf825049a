"""The record of the classifiers of torchvision.models."""

from windtunnel.registry.plugins import Install, Lazy, ModelSource

_HERE = "windtunnel.boundary.models.torchvision.adapter"
SOURCE = ModelSource(
    "torchvision",
    Lazy(f"{_HERE}:load"),
    keep=Lazy(f"{_HERE}:keep"),
    view=Lazy(f"{_HERE}:view"),
    imports=("torchvision",),
    install=Install("torchvision>=0.23", "model.source: torchvision", asked=True, of_torch=True),
)
