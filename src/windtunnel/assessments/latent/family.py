"""The record of `latent`: how the classifier holds where a generative model moves along the data."""

from windtunnel.registry.plugins import Family, Lazy

FAMILY = Family(
    name="latent",
    stage="latent",
    order=60,
    entry=Lazy("windtunnel.params.latent:LatentEntry"),
    algorithms=Lazy("windtunnel.assessments.latent.table:ALGORITHMS"),
    preflight=Lazy("windtunnel.assessments.latent.preflight:preflight"),
    run=Lazy("windtunnel.assessments.latent.assess:run"),
    depends=Lazy("windtunnel.assessments.latent.table:DEPENDS"),
    reported=Lazy("windtunnel.assessments.latent.reported:REPORTED"),
    figures="windtunnel.assessments.latent.figures",
    visualisers=(
        "LatentMetricsVisualiser",
        "LatentGridVisualiser",
        "LatentNoiseVisualiser",
        "LatentDistributionsVisualiser",
        "GeneratorSheetVisualiser",
    ),
    headline=(
        "adversarial_accuracy",
        "attack_success_rate",
        "lra",
        "lga",
        "llna_reconstruction",
        "llna_generation",
        "lars",
        "lags",
        "lara",
        "laga",
    ),
    accuracy={"lara": "robust in latent space"},
    generators=True,
    results=Lazy("windtunnel.assessments.latent.table:results"),
)
