"""Image transforms of the library that a model comes from; apart from loading it, so that `prepare` depends on nothing else."""

from windtunnel.params.model import Model
from windtunnel.registry.plugins import View, model_source, model_sources


def view_of(model: Model) -> View | None:
    """Return the image transforms of the model's own library; None where params.yaml alone says how they are prepared."""
    if model.source not in model_sources() or (view := model_source(model.source).view) is None:
        return None
    image_view: View = view()(model)
    return image_view
