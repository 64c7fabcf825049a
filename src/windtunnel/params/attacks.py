"""Schema of an entry of `attacks`."""

from __future__ import annotations

from pydantic import Field

from windtunnel.params.entry import Entry


class AttackEntry(Entry):
    """An empirical attack by torchattacks or foolbox."""

    target_classes: int | str | list[int] | None = Field(
        None, description="targeted: one class, a list (one per sample), or least_likely, random, next"
    )
