"""The grammar of entries that are run on what others left: `on: {survivors_of: [...], uncertified_by: [...]}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from windtunnel.params.entry import Block, EntryReference

if TYPE_CHECKING:
    from windtunnel.records.artifacts import Artifacts


class On(Block):
    """Which of its samples an attack or a verification is run on: those that no named entry of this run decided."""

    survivors_of: list[str] = Field(
        default=[], min_length=1, description="entries of attacks; only samples none of them broke"
    )
    uncertified_by: list[str] = Field(
        default=[],
        min_length=1,
        description="entries of verification; only samples none of them certified at this budget",
    )

    @model_validator(mode="after")
    def _names_entries(self) -> On:
        if not self.survivors_of and not self.uncertified_by:
            raise ValueError("names no entry; give survivors_of: [attacks] or uncertified_by: [verifications]")
        return self

    @model_serializer(mode="wrap")
    def _without_empty(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that are not set, so that params of earlier versions have the digests they had."""
        return {key: names for key, names in serialise(self).items() if names}

    def references(self) -> Iterator[EntryReference]:
        """Yield the entries that are named."""
        for key, family in (("survivors_of", "attacks"), ("uncertified_by", "verification")):
            for name in getattr(self, key):
                yield EntryReference(f"on.{key}", family, name)

    def digests(self, results: Mapping[str, Artifacts]) -> dict[str, dict[str, str]]:
        """Return the digests of the named entries' results, by key and name, as results record them."""
        named: dict[str, dict[str, str]] = {}
        for key, _, name in self.references():
            named.setdefault(key.removeprefix("on."), {})[name] = results[name].digest()
        return named
