"""Schema of an entry of `corruptions`."""

from __future__ import annotations

from windtunnel.params.entry import Entry


class CorruptionEntry(Entry):
    """Corruptions of ImageNet-C."""

    library: str = "imagecorruptions"
    algorithm: str = "common"
