"""The record of the classifiers of timm."""

from windtunnel.registry.plugins import Install, Lazy, ModelSource

_HERE = "windtunnel.boundary.models.timm.adapter"
SOURCE = ModelSource(
    "timm",
    Lazy(f"{_HERE}:load"),
    keep=Lazy(f"{_HERE}:keep"),
    view=Lazy(f"{_HERE}:view"),
    imports=("timm",),
    install=Install("timm>=1.0.15", "model.source: timm", asked=True, of_torch=True),
)
