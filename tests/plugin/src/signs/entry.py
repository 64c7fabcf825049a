"""The schema of an entry of `flips`: it is read with params.yaml, so it imports nothing slow."""

from pydantic import Field

from windtunnel.plugins import Entry


class FlipEntry(Entry):
    """The model on mirrored images."""

    library: str = "signs"
    algorithm: str = "mirror"
    axis: int = Field(3, ge=2, le=3, description="2 upside down, 3 left to right")
