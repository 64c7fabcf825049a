"""Schema of an entry of `queries`."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from windtunnel.params.entry import Entry


class QueryEntry(Entry):
    """A black-box attack whose every model evaluation is counted: EvoBA, EpsGreedy, SimBA, or one of a library's."""

    library: str = "windtunnel"
    target_classes: int | str | list[int] | None = Field(None, description="as for attacks")
    max_queries: PositiveInt | None = Field(
        None,
        description="an image is given up before it would need more; no limit but the algorithm's own where absent",
    )
    total_queries: PositiveInt | None = Field(
        None, description="of the whole entry; shared equally among the attacked images, so that order decides nothing"
    )
    batch_size: PositiveInt = Field(256, description="queries that are sent to the model together")

    @property
    def batch_size_unused(self) -> str:
        """An attack of a library is given one image at a time."""
        return "" if self.library == "windtunnel" else "each image is a call of its own"
