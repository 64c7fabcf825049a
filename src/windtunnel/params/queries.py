"""Schema of an entry of `queries`."""

from __future__ import annotations

from pydantic import Field

from windtunnel.params.entry import Entry


class QueryEntry(Entry):
    """A black-box attack whose every model evaluation is counted."""

    library: str = "windtunnel"
    target_classes: int | str | list[int] | None = Field(None, description="as for attacks")
