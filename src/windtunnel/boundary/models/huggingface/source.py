"""The record of the image classifiers of Hugging Face's transformers."""

from windtunnel.registry.plugins import Install, Lazy, ModelSource

_HERE = "windtunnel.boundary.models.huggingface.adapter"
SOURCE = ModelSource(
    "huggingface",
    Lazy(f"{_HERE}:load"),
    keep=Lazy(f"{_HERE}:keep"),
    view=Lazy(f"{_HERE}:view"),
    view_reads=("config.json", "preprocessor_config.json"),
    imports=("transformers",),
    install=Install(
        "transformers>=5",
        "model.source: huggingface, image classifiers of transformers",
        beside=("torchvision>=0.23",),
        asked=True,
        of_torch=True,
    ),
)
