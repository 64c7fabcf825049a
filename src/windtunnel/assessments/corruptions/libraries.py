"""The library that corrupts images."""

from __future__ import annotations

from windtunnel.registry.plugins import Install, Lazy, Library

LIBRARIES = (
    Library(
        name="imagecorruptions",
        family="corruptions",
        package="imagecorruptions",
        imports=("imagecorruptions",),
        rows=Lazy("windtunnel.assessments.corruptions.table:ALGORITHMS"),
        install=Install("imagecorruptions>=1.1.2", "the common corruptions"),
    ),
)
