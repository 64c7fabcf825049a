"""Several classifiers on one set of codes: what goes with what over them, as in the paper's tables and scatter plots."""

import math
from collections.abc import Sequence
from itertools import product

from scipy.stats import norm, pearsonr, spearmanr

from windtunnel.assessments.latent.tables import ClassifierMetrics, Correlation
from windtunnel.core.contracts import Caveat

SEVERITIES = ("adversarial_severity_scaled_l2", "adversarial_severity_linf")
CONVENTIONAL = (*SEVERITIES, "adversarial_frequency_scaled_l2", "adversarial_frequency_linf")
LATENT = ("lags", "lars", "laga", "lara")
# Each side's distances in the image with its distances in latent space.
IMAGE = tuple(
    (f"image_change_{norm}_{side}", severity)
    for side, severity in (("reconstruction", "lars"), ("generation", "lags"))
    for norm in ("l2", "l1")
)
PAIRS: tuple[tuple[str, str], ...] = (
    ("clean_accuracy", "lga"),
    ("clean_accuracy", "lra"),
    *product(("clean_accuracy", "lga", "lra"), (*LATENT, "noise_accuracy", *CONVENTIONAL)),
    *product(CONVENTIONAL, LATENT),
    *product(("noise_accuracy",), SEVERITIES),
    *IMAGE,
)
FEWEST = 3  # two points always lie on a line
ENOUGH = 5
FOR_INTERVAL = 4  # Fisher's transformation divides by n - 3

_PERFECT = 1 - 1e-12  # points on a line give this or 1, as rounding has it; there Fisher's z has no end


def correlations(classifiers: Sequence[ClassifierMetrics]) -> list[Correlation]:
    """Pearson's and Spearman's coefficient of every pair of PAIRS over the `classifiers`, with 95 % intervals.

    Empty for fewer than three classifiers; without the coefficients where one of the two does not vary, and without the
    intervals for fewer than four.
    """
    correlated = []
    numbers = [classifier.numbers for classifier in classifiers]
    for x, y in PAIRS:
        pairs = [(float(row[x]), float(row[y])) for row in numbers if x in row and y in row]
        if len(pairs) < FEWEST:
            continue
        xs, ys = zip(*pairs, strict=True)
        coefficients: dict[str, float] = {}
        if len(set(xs)) > 1 and len(set(ys)) > 1:
            pearson, spearman = float(pearsonr(xs, ys)[0]), float(spearmanr(xs, ys)[0])
            # Spearman's variance after Bonett and Wright 2000, doi:10.1007/BF02294183.
            coefficients |= _with_interval("pearson", pearson, 1.0, len(pairs))
            coefficients |= _with_interval("spearman", spearman, 1 + spearman**2 / 2, len(pairs))
        correlated.append(Correlation.model_validate({"x": x, "y": y, "n": len(pairs), **coefficients}))
    return correlated


def few_classifiers(classifiers: Sequence[ClassifierMetrics]) -> tuple[Caveat, ...]:
    """Return the caveat of correlations over fewer than five classifiers."""
    if not 1 < len(classifiers) < ENOUGH:
        return ()
    text = f"The correlations are over {len(classifiers)} classifiers: coefficients of so few may be chance; use {ENOUGH} or more."
    return (Caveat("few_classifiers", text),)


def _with_interval(name: str, coefficient: float, variance: float, n: int) -> dict[str, float]:
    """Return a coefficient with the 95 % interval of Fisher's z, whose variance is `variance` / (n - 3)."""
    block = {name: coefficient}
    if n >= FOR_INTERVAL and abs(coefficient) < _PERFECT:
        half = float(norm.ppf(0.975)) * math.sqrt(variance / (n - 3))
        low, high = (math.tanh(math.atanh(coefficient) + side * half) for side in (-1, 1))
        block |= {f"{name}_ci_low": low, f"{name}_ci_high": high}
    return block
