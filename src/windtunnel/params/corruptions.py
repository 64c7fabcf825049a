"""Schema of an entry of `corruptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from windtunnel.params.entry import Entry, Number, Seconds, key

Severity = Annotated[int, Field(ge=1, le=5)]
CHOICE = "choice"
# Libraries beside imagecorruptions, and the suites of our own.
OWN, FUNCTION, FOLDER = "windtunnel", "function", "folder"
CAMERA, BAR = "camera", "common-bar"


class CorruptionEntry(Entry):
    """Corruptions of ImageNet-C: one by name, or a suite: common (15), validation (4), all (19), noise, blur, weather, digital.

    Or the suites camera and common-bar, a function of your own, or images that were corrupted elsewhere.
    """

    batch_is_a_unit = False

    library: str = key(
        "imagecorruptions",
        "imagecorruptions; windtunnel (camera, common-bar); function (yours); folder (images on disk); a plug-in",
    )
    algorithm: str = key(
        "common", "a corruption, or a suite of them; choice where `corruptions` lists them; function: module:function"
    )
    corruptions: tuple[str, ...] | None = key(
        None, "a list of your own: corruptions or categories, e.g. [fog, snow, noise]", min_length=1
    )
    path: str | None = key(None, "folder: where <corruption>/<severity>/<class>/<file> lie")
    severities: tuple[Severity, ...] = key((1, 3, 5), "1 to 5; severity 0 is always measured", min_length=1)
    upsample: PositiveInt | None = key(
        None, "resize to this side, corrupt, resize back; for images under 32 px", le=4096
    )
    reference: str | None = key(
        None, "for mCE: imagenet-alexnet, or the directory of a suite of another model on the same samples"
    )
    ci_method: Literal["wilson", "clopper_pearson", "jeffreys", "agresti_coull"] = "wilson"
    ci_level: Number = Field(0.95, gt=0, lt=1)
    time_limit: Seconds = key(60, "function and plug-ins: seconds for one image")

    @model_validator(mode="before")
    @classmethod
    def _choice(cls, given: object) -> object:
        """Read a list of corruptions as the algorithm `choice`, and the other way round."""
        if not isinstance(given, Mapping):
            return given
        listed, algorithm = given.get("corruptions") is not None, given.get("algorithm")
        if listed and algorithm not in {None, CHOICE}:
            raise ValueError(f"algorithm: '{algorithm}' and corruptions: a list; give one of the two")
        if algorithm == CHOICE and not listed:
            raise ValueError(f"algorithm: {CHOICE} needs corruptions: [a list of them]")
        if listed:
            return {**given, "algorithm": CHOICE}
        if algorithm is None and given.get("library") == FOLDER:
            return {**given, "algorithm": "all"}
        return {"library": OWN, **given} if algorithm in (CAMERA, BAR) else given

    @field_validator("severities")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"severities: {list(value)} repeats one; each severity once")
        return tuple(sorted(value))

    @model_validator(mode="after")
    def _path_of_a_folder(self) -> CorruptionEntry:
        if (self.path is not None) != (self.library == FOLDER):
            raise ValueError("path: is for library: folder, which needs it")
        return self
