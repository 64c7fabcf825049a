"""windtunnel's own ensembles of the attacks of other libraries."""

from windtunnel.registry.plugins import Lazy, Library

LIBRARIES = (
    Library(
        name="windtunnel",
        family="attacks",
        package=None,
        rows=Lazy("windtunnel.assessments.attacks.ensembles.profiles:ROWS"),
    ),
)
