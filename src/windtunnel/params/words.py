"""Words that a plug-in can add to: as a Literal, with names that are known on this machine alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema


class OneOf:
    """Return the annotation of a string that must be one of `words` or of `more()`."""

    def __init__(self, *words: str, more: Callable[[], Iterable[str]]) -> None:
        self._words, self._more = words, more

    @property
    def words(self) -> list[str]:
        """Return the values allowed on this machine."""
        return [*self._words, *self._more()]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return a string, refused as pydantic refuses a Literal."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return an enumeration, for editors."""
        return {"type": "string", "enum": self.words}

    def _check(self, value: str) -> str:
        if value not in self.words:
            expected = ", ".join(f"'{word}'" for word in self.words)
            raise PydanticCustomError("enum", "is not allowed", {"expected": expected})
        return value
