"""The record of `attacks`: empirical attacks under a perturbation budget."""

from windtunnel.registry.plugins import Family, Lazy

FAMILY = Family(
    name="attacks",
    stage="attack",
    order=10,
    entry=Lazy("windtunnel.params.attacks:AttackEntry"),
    algorithms=Lazy("windtunnel.assessments.attacks.table:ALGORITHMS"),
    preflight=Lazy("windtunnel.assessments.attacks.preflight:preflight"),
    run=Lazy("windtunnel.assessments.attacks.assess:run"),
    depends=Lazy("windtunnel.assessments.attacks.table:DEPENDS"),
    figures="windtunnel.assessments.attacks.figures",
    visualisers=("ImagePairVisualiser", "PerturbationHeatmapVisualiser"),
    headline=("adversarial_accuracy", "attack_success_rate", "two_phase_accuracy"),
    asks_libraries=("windtunnel.assessments.attacks.adapters",),
    built_on=True,
)
