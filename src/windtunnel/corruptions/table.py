"""Registry rows of the corruptions family."""

from __future__ import annotations

from windtunnel.core.contracts import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = ()
DEFAULT_VISUALISERS: tuple[str, ...] = ()
