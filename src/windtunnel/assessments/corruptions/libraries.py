"""The library that corrupts images."""

from __future__ import annotations

from windtunnel.core.libraries import Install
from windtunnel.core.plugins import Lazy, Library

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
