"""Schema of `data`."""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from windtunnel.params.entry import Block, Names, Number, OneOf, Samples, Seconds, Value, key
from windtunnel.registry.plugins import plugins

_OURS = ("digits", "npz", "npy", "idx", "folder", "function")
Source = Annotated[str, OneOf(*_OURS, more=partial(plugins, "windtunnel.data", _OURS))]

MOST_CLASSES = 100_000  # ImageNet-21k has 21,843; a label beyond is a mistake that would cost gigabytes
MAX_SIDE = 16_384
Side = Annotated[PositiveInt, Field(le=MAX_SIDE)]


class Data(Block):
    """Source of the samples, and their processing up to inputs in [0, 1]."""

    source: Source = "digits"
    path: str | None = key(None, "npz: the file; npy, idx: the test images; folder: the folder")
    labels: str | None = key(None, "npy, idx: the label file; folder: a CSV of file,label; 'none' for no labels")
    train_path: str | None = key(None, "training split, for recipes and generators; same form as path")
    train_labels: str | None = None
    function: str | None = key(None, "module:function returning a windtunnel.core.dataset.Dataset or (x, y)")
    kwargs: dict[str, Value] = key(dict, "arguments of the function")
    label_column: NonNegativeInt | None = key(
        None, "labels (N, L) of 0 and 1: the column to assess; model.head.label sets it"
    )
    class_names: Annotated[Names, Field(min_length=1)] | Annotated[PositiveInt, Field(le=MOST_CLASSES)] | None = key(
        None, "names of the classes, or how many there are"
    )
    resize: Side | tuple[Side, Side] | None = key(None, "side, or (height, width)")
    crop: Literal["center"] | None = key(
        None, "center: the largest part in the middle of the shape of resize (square where absent), before resizing"
    )
    channels: Literal[1, 3] | None = key(None, "convert to grey or to colour")
    value_range: tuple[Number, Number] | None = key(None, "what the source's values span, e.g. [0, 255]")
    slices: str | None = key(
        None, "a CSV of sample,column,value: rates per slice (camera, site, lighting), and the worst of them"
    )
    test_fraction: Number = key(0.3, "digits: share held out of training", gt=0, lt=1)
    samples: Samples = Samples()
    time_limit: Seconds = key(
        600, "function: seconds that windtunnel check gives it; a stage gives it ten times as long"
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """`resize` as (height, width)."""
        return (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
