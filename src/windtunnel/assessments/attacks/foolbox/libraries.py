"""foolbox (Rauber et al. 2020, doi:10.21105/joss.02607): gradient, decision and minimum-norm attacks."""

from windtunnel.registry.plugins import Install, Lazy, Library

LIBRARIES = (
    Library(
        name="foolbox",
        family="attacks",
        package="foolbox",
        rows=Lazy("windtunnel.assessments.attacks.foolbox.rows:ROWS"),
        adapter=Lazy("windtunnel.assessments.attacks.foolbox.adapter:perturb"),
        call=Lazy("windtunnel.assessments.attacks.foolbox.adapter:call_of"),
        imports=("foolbox", "eagerpy"),
        module="foolbox.attacks",
        install=Install("foolbox>=3.3.4", "its attacks, minimum norm and decision-based among them"),
    ),
)
