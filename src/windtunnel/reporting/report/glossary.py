"""The words of the report, each with its source."""

GLOSSARY: tuple[tuple[str, str], ...] = (
    (
        "adversarial accuracy",
        "share of all samples that are still classified as their label after an attack (Carlini et al. 2019)",
    ),
    (
        "attack success rate",
        "share of the correctly classified samples that an attack broke within the budget",
    ),
    ("budget", "the perturbations that count: all within epsilon of the clean input under a norm, on [0, 1] pixels"),
    ("calibration error (ECE)", "mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017)"),
    (
        "certified accuracy",
        "share of samples that are correct and for which it is verified that no perturbation in the budget changes that",
    ),
    ("corruption", "an everyday disturbance of an image at severity 1 to 5 (Hendrycks and Dietterich 2019)"),
    ("critical epsilon", "the smallest budget at which a sample's prediction flips"),
    ("interval", "95 % confidence: Wilson's for rates, Clopper-Pearson's for certified claims"),
    (
        "latent-space metrics",
        "robustness to changes along the data manifold of a generative model: accuracy on generated (LGA) and reconstructed "
        "images (LRA), under latent noise (LLNA), the smallest class-changing change of a code (LLAR), its mean (LAGS, LARS), "
        "the share without one within a radius (LAGA, LARA) (Buzhinsky et al. 2021)",
    ),
    ("not broken", "no adversarial example is known; that none exists was not shown"),
    (
        "sandwich",
        "certified accuracy ≤ true robust accuracy ≤ worst-case accuracy, at one budget, over the attacked samples",
    ),
    (
        "worst-case accuracy",
        "share of samples that no assessment broke: the minimum per sample over all attacks, not their mean",
    ),
)
