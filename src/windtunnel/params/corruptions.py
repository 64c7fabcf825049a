"""Schema of an entry of `corruptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from windtunnel.params.entry import Entry
from windtunnel.params.numbers import Number

Severity = Annotated[int, Field(ge=1, le=5)]
CHOICE = "choice"


class CorruptionEntry(Entry):
    """Corruptions of ImageNet-C: one by name, or a suite: common (15), validation (4), all (19), noise, blur, weather, digital."""

    batch_is_a_unit = False

    library: str = "imagecorruptions"
    algorithm: str = Field(
        "common", description="a corruption, or a suite of them; choice where `corruptions` lists them"
    )
    corruptions: tuple[str, ...] | None = Field(
        None, min_length=1, description="a list of your own: corruptions or categories, e.g. [fog, snow, noise]"
    )
    severities: tuple[Severity, ...] = Field(
        (1, 3, 5), min_length=1, description="1 to 5; severity 0 is always measured"
    )
    upsample: PositiveInt | None = Field(
        None, le=4096, description="resize to this side, corrupt, resize back; for images under 32 px"
    )
    reference: str | None = Field(
        None, description="for mCE: imagenet-alexnet, or the directory of a suite of another model on the same samples"
    )
    ci_method: Literal["wilson", "clopper_pearson", "jeffreys", "agresti_coull"] = "wilson"
    ci_level: Number = Field(0.95, gt=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _choice(cls, given: object) -> object:
        """A list of corruptions is the algorithm `choice`, and the other way round."""
        if not isinstance(given, Mapping):
            return given
        listed, algorithm = given.get("corruptions") is not None, given.get("algorithm")
        if listed and algorithm not in {None, CHOICE}:
            raise ValueError(f"algorithm: '{algorithm}' and corruptions: a list; give one of the two")
        if algorithm == CHOICE and not listed:
            raise ValueError(f"algorithm: {CHOICE} needs corruptions: [a list of them]")
        return {**given, "algorithm": CHOICE} if listed else given

    @field_validator("severities")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"severities: {list(value)} repeats one; each severity once")
        return tuple(sorted(value))
