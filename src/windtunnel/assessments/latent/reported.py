"""Report section on latent space."""

from windtunnel.registry.reported import Column, Question, Reported

MANIFOLD = Question(
    "How does it do along the data manifold?",
    40,
    "Perturbations along the data manifold of a generative model. The metrics depend on the quality of that model, and bound "
    "nothing in pixels.",
)
MEANINGS = {
    "lra": "accuracy on the samples as the generative model reconstructs them (LRA)",
    "lga": "accuracy on images that the generative model draws (LGA)",
    "llna_reconstruction": "accuracy under random noise on the codes of the samples (LLNA)",
    "llna_generation": "accuracy under random noise on the codes of drawn images (LLNA)",
    "lara": "share of reconstructed images whose prediction survived the search within the bound (LARA)",
    "laga": "share of generated images whose prediction survived the search within the bound (LAGA)",
    "lars": "mean size of the smallest perturbation of a reconstructed image's code that changes the prediction; larger is better (LARS)",
    "lags": "mean size of the smallest perturbation of a generated image's code that changes the prediction; larger is better (LAGS)",
}
REPORTED = Reported(
    MANIFOLD,
    (
        Column("LRA", "lra", "rate", "LRA: accuracy on the samples as the generative model reconstructs them"),
        Column("LGA", "lga", "rate", "LGA: accuracy on images that it generates"),
        Column("LLNA", "llna_reconstruction", "share", "LLNA: accuracy under random noise on the codes of the samples"),
        Column("LARA", "lara", "rate",
               "LARA and LAGA: share of reconstructed and of generated images whose prediction survived the search within the bound"),
        Column("LAGA", "laga", "rate"),
        Column("LARS", "lars", "plain",
               "LARS and LAGS: mean size of the smallest perturbation of a code that changes the prediction (larger is better)"),
        Column("LAGS", "lags", "plain"),
    ),
    (
        Column("decay epsilon", "decay_epsilon", "plain", "decay epsilon: noise whose decayed code is the centre of the searches"),
        Column("reconstruction error", "reconstruction_error", "plain"),
        Column("norm of the codes", "code_norm", "plain", "norm of the codes: 1 for draws of the prior"),
        Column("Frechet distance", "frechet_distance", "plain"),
        Column("of real images", "frechet_distance_of_real", "plain",
               "Frechet distance: of generated images to real ones, and of real images to each other"),
        Column("severity, scaled L2", "adversarial_severity_scaled_l2", "plain",
               "severity: mean size of the smallest change of the pixels that was found"),
        Column("severity, Linf", "adversarial_severity_linf", "plain"),
    ),
    meanings=MEANINGS,
)  # fmt: skip
