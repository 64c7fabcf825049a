"""Our own attacks on the parameters of transformations: rotation, brightness, a patch."""

from __future__ import annotations

from windtunnel.registry.plugins import Lazy, Library

_HERE = "windtunnel.assessments.attacks.transformations"

LIBRARIES = (
    Library(
        name="transformations",
        family="attacks",
        package=None,
        rows=Lazy(f"{_HERE}.rows:ROWS"),
        adapter=Lazy(f"{_HERE}.search:perturb"),
        module=f"{_HERE}.search",
    ),
)
