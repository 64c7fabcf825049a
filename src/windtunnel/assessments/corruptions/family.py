"""The record of `corruptions`: common corruptions, drawn at random: the average case."""

from windtunnel.registry.plugins import Family, Lazy

FAMILY = Family(
    name="corruptions",
    stage="corrupt",
    order=50,
    entry=Lazy("windtunnel.params.corruptions:CorruptionEntry"),
    algorithms=Lazy("windtunnel.assessments.corruptions.table:ALGORITHMS"),
    preflight=Lazy("windtunnel.assessments.corruptions.preflight:preflight"),
    run=Lazy("windtunnel.assessments.corruptions.assess:run"),
    finish=Lazy("windtunnel.assessments.corruptions.assess:finish"),
    depends=Lazy("windtunnel.assessments.corruptions.table:DEPENDS"),
    reported=Lazy("windtunnel.assessments.corruptions.reported:REPORTED"),
    figures="windtunnel.assessments.corruptions.figures",
    visualisers=(
        "CorruptionAccuracyVisualiser",
        "SeverityCurveVisualiser",
        "CorruptionHeatmapVisualiser",
        "CorruptionSheetVisualiser",
        "PredictionFlipsVisualiser",
        "MinimalSeverityVisualiser",
    ),
    headline=("corrupted_accuracy", "mean_corruption_error", "mce", "relative_mce"),
    parts=Lazy("windtunnel.assessments.corruptions.table:parts"),
    results=Lazy("windtunnel.assessments.corruptions.table:results"),
    most_rows=Lazy("windtunnel.assessments.corruptions.table:most_rows"),
    plot={"x": "severity", "y": "accuracy", "title": "Severity curve: ${key}"},
)
