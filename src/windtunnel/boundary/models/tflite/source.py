"""The record of TFLite files."""

from windtunnel.registry.plugins import Install, Lazy, ModelSource

_HERE = "windtunnel.boundary.models.tflite.adapter"
SOURCE = ModelSource(
    "tflite",
    Lazy(f"{_HERE}:load"),
    keep=Lazy(f"{_HERE}:keep"),
    imports=("ai_edge_litert",),
    install=Install("ai-edge-litert>=2", "model.source: tflite", asked=True),
)
