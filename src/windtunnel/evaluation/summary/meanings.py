"""What the abbreviations among the metrics stand for, in a line each: for whoever shows them. Quick to import."""

MEANING: dict[str, str] = {
    "lra": "accuracy on the samples as the generative model reconstructs them (LRA)",
    "lga": "accuracy on images that the generative model draws (LGA)",
    "llna_reconstruction": "accuracy under random noise on the codes of the samples (LLNA)",
    "llna_generation": "accuracy under random noise on the codes of drawn images (LLNA)",
    "lara": "share of reconstructed images whose answer no change of the code within the bound turned (LARA)",
    "laga": "share of drawn images whose answer no change of the code within the bound turned (LAGA)",
    "lars": "mean size of the smallest change of a reconstructed image's code that turns the answer; larger is better (LARS)",
    "lags": "mean size of the smallest change of a drawn image's code that turns the answer; larger is better (LAGS)",
    "mean_runtime": "seconds a sample took on the machine that computed this result; known there alone, and in no output of DVC",
    "mce": "mean corruption error: errors relative to a reference model's, 1 is as many as that one makes (mCE)",
    "relative_mce": "as mCE, of the errors beyond those without corruption",
    "queries_succ_mean": "mean number of queries of a success",
    "median_critical_epsilon": "half of the samples are turned by a smaller epsilon of the sweep",
    "area_under_curve": "mean accuracy over the sweep's epsilons, by the trapezoid rule",
    "average_certified_radius": "mean over the samples of the largest epsilon verified, 0 where misclassified",
    "average_certified_radius_at_least": "the same of a search that the time budget cut off: lower than need be, and no finding",
}
