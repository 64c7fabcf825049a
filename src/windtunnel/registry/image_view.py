"""Image transforms of a model's own library, without its normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class View:
    """The library's own transforms without their normalisation, which is folded into the model.

    image: a picture (RGB, or L for one channel) -> float32 (C, H, W) in [0, 1]. channels: C.
    said: the transforms in the library's words, for dataset.json.
    class_names: lists of the K names that classes may have, in the order of the logits; empty where nobody knows them.
    """

    image: Callable[[Image], Tensor]
    channels: int
    said: str
    class_names: tuple[tuple[str, ...], ...] = ()

    def names_of(self, labels: set[str]) -> tuple[str, ...]:
        """Return the first list that has all `labels`; empty where none has."""
        return next((names for names in self.class_names if labels <= set(names)), ())


def distinct(names: list[str]) -> tuple[str, ...]:
    """Return the names, each with a number where it stands there again: ImageNet has two classes `crane`."""
    counts: dict[str, int] = {}
    numbered = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(numbered)
