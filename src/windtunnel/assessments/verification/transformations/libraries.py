"""Our own certificates of transformations: rotation, brightness, a patch."""

from __future__ import annotations

from windtunnel.registry.plugins import Lazy, Library

LIBRARIES = (
    Library(
        name="transformations",
        family="verification",
        package=None,
        rows=Lazy("windtunnel.assessments.verification.rows:TRANSFORMATIONS"),
    ),
)
