"""The grammar of entries that build on others: `on: {survivors_of: [...], uncertified_by: [...], corrupted_by: [...]}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from windtunnel.params.entry import CORRUPTED_BY, Block, EntryReference, Names

if TYPE_CHECKING:
    from windtunnel.records.artifacts import Artifacts


class On(Block):
    """Which samples an attack or a verification is run on: those that no named entry of this run decided, or corrupted ones."""

    survivors_of: Names = Field(
        default=[], min_length=1, description="entries of attacks; only samples none of them broke"
    )
    uncertified_by: Names = Field(
        default=[],
        min_length=1,
        description="entries of verification; only samples none of them certified at this budget",
    )

    corrupted_by: Names = Field(
        default=[],
        min_length=1,
        description="entries of corruptions, or one image of theirs as haze/fog-3; the images it is run on",
    )

    @model_validator(mode="after")
    def _names_entries(self) -> On:
        if not (self.survivors_of or self.uncertified_by or self.corrupted_by):
            raise ValueError(
                "names no entry; give survivors_of: [attacks], uncertified_by: [verifications] or corrupted_by: [corruptions]"
            )
        if half := next((name for name in self.corrupted_by if name.endswith("/")), None):
            raise ValueError(f"corrupted_by: {half} names no image; write haze/fog-3, or the entry alone")
        return self

    @model_serializer(mode="wrap")
    def _without_empty(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that are not set, so that params of earlier versions have the digests they had."""
        return {key: names for key, names in serialise(self).items() if names}

    def references(self) -> Iterator[EntryReference]:
        """Yield the entries that decided samples before."""
        for key, family in (("survivors_of", "attacks"), ("uncertified_by", "verification")):
            for name in getattr(self, key):
                yield EntryReference(f"on.{key}", family, name)

    def every_reference(self) -> Iterator[EntryReference]:
        """Yield all entries that are named, those whose corrupted images are assessed among them."""
        yield from self.references()
        for name in self.corrupted_by:
            suite, _, part = name.partition("/")
            yield EntryReference(CORRUPTED_BY, "corruptions", suite, part)

    def digests(self, results: Mapping[str, Artifacts]) -> dict[str, dict[str, str]]:
        """Return the digests of the results of `references`, by key and name, as results record them."""
        named: dict[str, dict[str, str]] = {}
        for reference in self.references():
            of_key = named.setdefault(reference.key.removeprefix("on."), {})
            of_key[reference.name] = results[reference.name].digest()
        return named
