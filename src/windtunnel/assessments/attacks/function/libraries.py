"""Attacks of the user's own: `library: function`, and the function's reference as the algorithm."""

from windtunnel.registry.plugins import Lazy, Library

LIBRARIES = (
    Library(
        name="function",
        family="attacks",
        package=None,
        rows=Lazy("windtunnel.assessments.attacks.function.rows:ROWS"),
        adapter=Lazy("windtunnel.assessments.attacks.function.adapter:perturb"),
        row_of=Lazy("windtunnel.assessments.attacks.function.rows:row_of"),
    ),
)
