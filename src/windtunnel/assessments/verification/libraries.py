"""The libraries that bound or decide."""

from __future__ import annotations

from windtunnel.core.plugins import Lazy, Library

LIBRARIES = (
    Library(
        name="auto-LiRPA",
        family="verification",
        package="auto-LiRPA",
        rows=Lazy("windtunnel.assessments.verification.table:LIRPA"),
    ),
    Library(
        name="Marabou",
        family="verification",
        package="maraboupy",
        rows=Lazy("windtunnel.assessments.verification.table:MARABOU_ROWS"),
    ),
    Library(
        name="windtunnel",
        family="verification",
        package=None,
        rows=Lazy("windtunnel.assessments.verification.table:OWN"),
    ),
)
