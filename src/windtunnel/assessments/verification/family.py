"""The record of `verification`: what can be certified for every input of a region."""

from windtunnel.registry.plugins import Family, Lazy

FAMILY = Family(
    name="verification",
    stage="verify",
    order=40,
    entry=Lazy("windtunnel.params.verification:VerificationEntry"),
    algorithms=Lazy("windtunnel.assessments.verification.table:ALGORITHMS"),
    preflight=Lazy("windtunnel.assessments.verification.preflight:preflight"),
    run=Lazy("windtunnel.assessments.verification.assess:run"),
    depends=Lazy("windtunnel.assessments.verification.depends:DEPENDS"),
    reported=Lazy("windtunnel.assessments.verification.reported:REPORTED"),
    figures="windtunnel.assessments.verification.figures",
    visualisers=("VerdictSummaryVisualiser", "OutputBoundsPinnedVisualiser", "OutputBoundsMarginHeatmapVisualiser"),
    headline=(
        "certified_accuracy",
        "two_phase_accuracy",
        "verified_rate",
        "falsified_rate",
        "unknown_rate",
        "error_rate",
        "average_certified_radius",
        "average_certified_radius_at_least",
    ),
    unknown_words=Lazy("windtunnel.assessments.verification.cascade.step:unknown_steps"),
    asks_libraries=("windtunnel.assessments.verification.cascade.step",),
    built_on=True,
)
