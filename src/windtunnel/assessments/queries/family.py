"""The record of `queries`: black-box attacks with every evaluation of the model counted."""

from windtunnel.registry.plugins import Family, Lazy

FAMILY = Family(
    name="queries",
    stage="query",
    order=20,
    entry=Lazy("windtunnel.params.attacks:QueryEntry"),
    algorithms=Lazy("windtunnel.assessments.queries.table:ALGORITHMS"),
    preflight=Lazy("windtunnel.assessments.queries.settings:preflight"),
    run=Lazy("windtunnel.assessments.queries.assess:run"),
    depends=Lazy("windtunnel.assessments.queries.table:DEPENDS"),
    figures="windtunnel.assessments.queries.figures",
    visualisers=("SuccessAgainstQueriesVisualiser", "QueryHistogramsVisualiser", "QueryGalleryVisualiser"),
    most_rows=Lazy("windtunnel.assessments.queries.settings:most_rows"),
    headline=("adversarial_accuracy", "attack_success_rate", "queries_succ_mean"),
)
