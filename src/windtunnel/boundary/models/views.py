"""Image transforms of the library that a model comes from; apart from loading it, so that `prepare` depends on nothing else."""

from PIL import Image

from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.errors import UserError
from windtunnel.params.model import Model
from windtunnel.registry.plugins import View, model_source, model_sources


def view_of(model: Model) -> View | None:
    """Return the image transforms of the model's own library; None where params.yaml alone says how they are prepared.

    Raises UserError where they make no image of a picture.
    """
    if model.source not in model_sources() or (view := model_source(model.source).view) is None:
        return None
    image_view: View = view()(model)
    if image_view.channels not in (1, 3):
        raise UserError(f"model: takes images of {image_view.channels} channels; pictures have 1 or 3")
    with trust_of(model).bounded(": its transforms of a picture"):
        shape = tuple(image_view.image(Image.new("RGB" if image_view.channels == 3 else "L", (96, 64))).shape)
    if len(shape) != 3 or 0 in shape:
        raise UserError(f"model: its transforms make a picture an array of shape {shape}; (C, H, W) is needed")
    return image_view
