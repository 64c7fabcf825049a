"""Several classifiers on one set of codes: does latent robustness go with accuracy, as in the paper?"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import pearsonr, spearmanr

from windtunnel.core.contracts import Json

ACCURACIES = ("clean_accuracy", "lga", "lra")
ROBUSTNESS = (
    "lags", "lars", "laga", "lara", "noise_accuracy", "adversarial_severity_scaled_l2", "adversarial_severity_linf",
    "adversarial_frequency_scaled_l2", "adversarial_frequency_linf",
)  # fmt: skip
ENOUGH = 3  # two points always lie on a line


def correlations(rows: Sequence[dict[str, Json]]) -> list[Json]:
    """Pearson and Spearman coefficients of every accuracy with every robustness metric over the classifiers `rows`.

    Empty for fewer than three classifiers; without the coefficients where one of the two does not vary.
    """
    found: list[Json] = []
    for x in ACCURACIES:
        for y in ROBUSTNESS:
            pairs = [(float(str(row[x])), float(str(row[y]))) for row in rows if x in row and y in row]
            if len(pairs) < ENOUGH:
                continue
            xs, ys = zip(*pairs, strict=True)
            line: dict[str, Json] = {"x": x, "y": y, "n": len(pairs)}
            if len(set(xs)) > 1 and len(set(ys)) > 1:
                line |= {"pearson": float(pearsonr(xs, ys)[0]), "spearman": float(spearmanr(xs, ys)[0])}
            found.append(line)
    return found
