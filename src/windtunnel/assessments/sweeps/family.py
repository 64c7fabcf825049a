"""The record of `sweeps`: accuracy against epsilon."""

from windtunnel.registry.plugins import Family, Lazy

FAMILY = Family(
    name="sweeps",
    stage="sweep",
    order=30,
    entry=Lazy("windtunnel.params.sweeps:SweepEntry"),
    algorithms=Lazy("windtunnel.assessments.sweeps.table:ALGORITHMS"),
    preflight=Lazy("windtunnel.assessments.sweeps.preflight:preflight"),
    run=Lazy("windtunnel.assessments.sweeps.assess:run"),
    finish=Lazy("windtunnel.assessments.sweeps.assess:finish"),
    depends=Lazy("windtunnel.assessments.sweeps.table:DEPENDS"),
    figures="windtunnel.assessments.sweeps.figures",
    visualisers=(
        "DegradationCurveVisualiser",
        "CriticalEpsilonVisualiser",
        "ConfidenceVisualiser",
        "ClassAccuracyVisualiser",
    ),
    headline=("adversarial_accuracy", "attack_success_rate", "area_under_curve", "median_critical_epsilon"),
    plot={"x": "epsilon", "y": "accuracy", "title": "Degradation curve: ${key}"},
)
