"""Regions of changes that happen to cameras: the parameters of a transformation, each within a range around its identity.

The measure of such a region is the largest |parameter - identity| relative to its range; it stands where a norm stands for a ball
(`Norm("rotation=10,brightness=0.1")`), and an epsilon of 1 is the whole region. Every region holds the clean input.

Needs no torch: what only names a region, as the gate does, depends on no version of it. Tensors are `core.transformed`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.core.errors import unknown_word

if TYPE_CHECKING:
    from torch import Tensor

MOST_KINDS = 4
ZEROS, EDGE, REFLECT = BORDERS = ("zeros", "edge", "reflect")  # values beyond an image that is moved
PARAMETERS = "transformation_parameters"  # key of robustness_data.pt: {parameter: float32 (N,)}
UNIVERSAL_PATCH = "universal_patch"  # key of robustness_data.pt: float32 (C, side, side)


def epsilon_text(value: float) -> str:
    """`0.06`, or `8/255` for a whole or half number of grey levels that no short decimal is; else four digits."""
    plain, levels = f"{value:.4g}", value * 255
    if abs(float(plain) - value) <= 1e-9 * max(1.0, value) or not value:
        return plain
    halves = round(2 * levels) / 2
    # Params hold doubles, tensors on disk floats: 1e-5 grey levels is beyond the rounding of both.
    return f"{halves:g}/255" if 0 < halves <= 64 and abs(halves - levels) < 1e-5 else plain


_OF_SQUARE = ("_side", "_row", "_column")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of transformation, with the meaning of its range.

    identity: the value at which nothing changes. largest: of the range. unit: how a range is written. geometric: moves pixels.
    least_usual: the least range that is usual, by which a range in a wrong unit is noticed. is_even: a parameter and its
    negative make the same image, so that half of the range is all of it. suffixes: of the names of its parameters.
    """

    name: str
    meaning: str
    identity: float
    largest: float
    unit: str = ""
    geometric: bool = False
    least_usual: float = 0.0
    is_even: bool = False
    suffixes: tuple[str, ...] = ("",)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(f"{self.name}{suffix}" for suffix in self.suffixes)

    @property
    def is_square(self) -> bool:
        """True for a square at every place inside the image, or none: its side is the range, and alone is measured."""
        return self.suffixes == _OF_SQUARE


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("rotation", "degrees; a positive angle turns counter-clockwise", 0.0, 180.0, "°", True, 0.5),
        Kind("translation", "pixels to the right and up", 0.0, 1e4, " px", True, 0.1, suffixes=("_x", "_y")),
        Kind("scale", "factor, 1 less the range to 1 plus the range", 1.0, 0.99, "", True),
        Kind("shear", "factor: x moves by it times y", 0.0, 10.0, "", True),
        Kind("blur", "standard deviation in pixels of a Gaussian, 0 to the range", 0.0, 1e4, " px", False, 0.3, True),
        Kind("brightness", "is added to every value", 0.0, 1.0),
        Kind("contrast", "every value is multiplied by 1 less the range to 1 plus the range", 1.0, 1.0),
        Kind("gamma", "exponent of every value, 1 less the range to 1 plus the range", 1.0, 0.99),
        Kind("saturation", "factor of the difference from grey", 1.0, 1.0),
        Kind("hue", "degrees around the grey axis", 0.0, 180.0, "°", least_usual=0.5),
        Kind("occlusion", "side in pixels of a black square at every place", 0.0, 1e4, " px", suffixes=_OF_SQUARE),
        Kind("patch", "side in pixels of a square of any content at every place", 0.0, 1e4, " px", suffixes=_OF_SQUARE),
    )
}


@dataclass(frozen=True, slots=True)
class Transformation:
    """A region of transformations: (kind, range) pairs in the order of `KINDS`, and what a moved image shows beyond its border."""

    ranges: tuple[tuple[str, float], ...]
    border: str = ZEROS

    @classmethod
    def of(cls, ranges: Mapping[str, float], border: str = ZEROS) -> Transformation:
        """Return the region of these ranges. Raises ValueError, in one line, for what cannot be a region."""
        for name, size in ranges.items():
            if name not in KINDS:
                raise ValueError(unknown_word("region", name, KINDS, what="a kind of change"))
            if not 0 < size <= KINDS[name].largest:
                raise ValueError(
                    f"{name}: {size:g} is no range from above 0 to {KINDS[name].largest:g} ({KINDS[name].meaning})"
                )
            if KINDS[name].is_square and (size != int(size) or len(ranges) > 1):
                raise ValueError(f"{name}: is a whole number of pixels, and the only change of its region")
        changes = len(ranges) - ("contrast" in ranges and "brightness" in ranges)  # one change, as in DeepG
        if not 1 <= changes <= MOST_KINDS:
            raise ValueError(
                f"{changes} kinds of change; a region has 1 to {MOST_KINDS}, of which contrast and brightness are one"
            )
        if border not in BORDERS:
            raise ValueError(unknown_word("border", border, BORDERS))
        region = cls(tuple((name, float(ranges[name])) for name in KINDS if name in ranges), border)
        if border != ZEROS and not any(kind.geometric for kind in region.kinds):
            moving = ", ".join(name for name, kind in KINDS.items() if kind.geometric)
            raise ValueError(
                f"border: {border} is of changes that move pixels ({moving}); {region.kinds[0].name} does not"
            )
        return region

    @property
    def block(self) -> dict[str, float | str]:
        """The keys of a budget that make this region."""
        return {**dict(self.ranges), **({} if self.border == ZEROS else {"border": self.border})}

    @property
    def text(self) -> str:
        """The region as the value of a `Norm`: `rotation=10.0,brightness=0.1`, or `rotation=10.0,border=reflect`."""
        return ",".join(f"{key}={value}" for key, value in self.block.items())

    def words(self, epsilon: float = 1.0) -> str:
        """Return the region shrunk to `epsilon` for people: `rotation ≤ 10°, brightness ≤ 0.1`."""
        if self.is_square:
            ((name, size),) = self.ranges
            return f"{name} {size:g}x{size:g}{KINDS[name].unit}"
        ranges = [f"{_at_most(name, size * epsilon)}{KINDS[name].unit}" for name, size in self.ranges]
        return ", ".join([*ranges, *([] if self.border == ZEROS else [f"border {self.border}"])])

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of change, in their order."""
        return tuple(KINDS[name] for name, _ in self.ranges)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the P parameters."""
        return tuple(name for kind in self.kinds for name in kind.parameters)

    @property
    def is_square(self) -> bool:
        """True for an occlusion or a patch."""
        return self.kinds[0].is_square

    @property
    def is_patch(self) -> bool:
        """True if the content of the square is free."""
        return self.kinds[0].name == "patch"

    def side(self, epsilon: float = 1.0) -> int:
        """Side of the square in pixels, in the region shrunk to `epsilon`."""
        return int(self.ranges[0][1] * min(1.0, epsilon) + 1e-6)

    @property
    def identity(self) -> tuple[float, ...]:
        """The P values at which nothing changes."""
        return tuple(kind.identity for kind in self.kinds for _ in kind.parameters)

    @property
    def half_ranges(self) -> tuple[float, ...]:
        """The P half ranges."""
        return tuple(size for name, size in self.ranges for _ in KINDS[name].parameters)

    @property
    def is_even(self) -> tuple[bool, ...]:
        """Return for each of the P parameters whether its negative makes the same image."""
        return tuple(kind.is_even for kind in self.kinds for _ in kind.parameters)

    def covers(self, other: Transformation, own_epsilon: float, other_epsilon: float) -> bool:
        """Return True if this region at `own_epsilon` contains `other` at `other_epsilon`."""
        mine = dict(self.ranges)
        is_moved = any(kind.geometric for kind in other.kinds)
        return (self.border == other.border or not is_moved) and all(
            name in mine
            and size * other_epsilon <= mine[name] * own_epsilon * (1 + 1e-9)
            and (name != "occlusion" or size * other_epsilon == mine[name] * own_epsilon)  # else other images
            for name, size in other.ranges
        )

    def table(self, parameters: Tensor) -> dict[str, Tensor]:
        """Parameters (N, P) as robustness_data.pt has them, by name."""
        return {name: parameters[:, i].float().clone() for i, name in enumerate(self.names)}


def parameter_words(values: Mapping[str, float]) -> str:
    """Return one sample's parameters for people: `rotation 7.3°, brightness -0.05`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.3g}{'' if OWNERS[name].is_square else OWNERS[name].unit}"
        for name, value in values.items()
    )


OWNERS = {parameter: kind for kind in KINDS.values() for parameter in kind.parameters}  # the kind of each parameter


@functools.cache
def transformation_of(norm: str) -> Transformation | None:
    """Return the transformation whose parameters a `Norm` measures; None for a norm of pixels or latent codes."""
    if "=" not in norm:
        return None
    try:
        block = dict(item.split("=") for item in norm.split(","))
        border = block.pop("border", ZEROS)
        return Transformation.of({kind: float(size) for kind, size in block.items()}, border)
    except ValueError:
        return None


def budget_text(norm: str, epsilon: float) -> str:
    """`Linf ≤ 0.06` or `rotation ≤ 10°`, on one line."""
    if transformation := transformation_of(norm):
        return transformation.words(epsilon)
    return _at_most(norm, epsilon)


def epsilon_axis(norm: str) -> tuple[str, float]:
    """Return (label of an axis of epsilons, the factor of the epsilons on it): the parameter where a region has one alone."""
    transformation = transformation_of(norm)
    if transformation is None:
        return f"epsilon ({norm})", 1.0
    if len(transformation.ranges) > 1 or transformation.is_square:
        return f"share of the range {transformation.words()}", 1.0
    ((name, size),) = transformation.ranges
    return f"{name} up to{KINDS[name].unit and ', in ' + KINDS[name].unit.strip()}", size


def _at_most(name: str, value: float) -> str:
    return f"{name}\N{NO-BREAK SPACE}≤\N{NO-BREAK SPACE}{epsilon_text(value)}"


def place_text(norm: str, epsilon: float) -> str:
    """`Linf 8/255` or `rotation ≤ 10°`: a budget within a sentence."""
    return budget_text(norm, epsilon) if transformation_of(norm) else f"{norm} {epsilon_text(epsilon)}"
