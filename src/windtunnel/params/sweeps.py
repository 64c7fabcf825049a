"""Schema of an entry of `sweeps`."""

from __future__ import annotations

from windtunnel.params.entry import Entry


class SweepEntry(Entry):
    """An attack over a menu of epsilons."""

    library: str = "windtunnel"
    algorithm: str = "FGSM"
