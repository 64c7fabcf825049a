"""Several classifiers in one latent assessment: a row for each, and what goes with what over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windtunnel.core.artifacts import Artifacts
from windtunnel.reporting.report.model import Table
from windtunnel.reporting.report.words import Row, bracket, interval, number, rows_in, short

_SHARES = {"clean": "clean_accuracy", "LRA": "lra", "LGA": "lga", "LLNA": "llna_reconstruction", "LARA": "lara", "LAGA": "laga",
           "noise": "noise_accuracy", "frequency L2": "adversarial_frequency_scaled_l2",
           "frequency Linf": "adversarial_frequency_linf"}  # fmt: skip
_SIZES = {"LARS": "lars", "LAGS": "lags", "severity L2": "adversarial_severity_scaled_l2",
          "severity Linf": "adversarial_severity_linf", "image L2, real": "image_change_l2_reconstruction",
          "image L1, real": "image_change_l1_reconstruction", "image L2, generated": "image_change_l2_generation",
          "image L1, generated": "image_change_l1_generation"}  # fmt: skip


def classifier_tables(artifacts: Artifacts) -> Iterator[Table]:
    """The accuracies and the distances of every classifier, and the correlations; nothing where there is one classifier."""
    rows = rows_in(artifacts.metrics, "models")
    if not rows:
        return
    yield _table(f"Classifiers of {artifacts.name}: accuracies and frequencies", rows, _SHARES, _share)
    yield _table(f"Classifiers of {artifacts.name}: how distant their nearest examples are", rows, _SIZES, _size)
    lines = rows_in(artifacts.metrics, "correlations")
    if lines:
        cells = [
            (_words(r["x"]), _words(r["y"]), short(r["n"]), _coefficient(r, "pearson"), _coefficient(r, "spearman"))
            for r in lines
        ]
        header = ("metric", "with", "classifiers", "Pearson, 95 % interval", "Spearman, 95 % interval")
        yield Table(f"Correlations over the classifiers of {artifacts.name}", header, tuple(cells), folded=True)


def _table(caption: str, rows: list[Row], columns: dict[str, str], show: Callable[[Row, str], str]) -> Table:
    used = {words: key for words, key in columns.items() if any(key in row for row in rows)}
    cells = tuple(
        (short(row["model"]), *(show(row, key) if key in row else "-" for key in used.values())) for row in rows
    )
    return Table(caption, ("classifier", *used), cells)


def _share(row: Row, key: str) -> str:
    return f"{number(row, key):.1%}{bracket(interval(row, key))}"


def _size(row: Row, key: str) -> str:
    limits = interval(row, key)
    return f"{number(row, key):.3g}" + (f" [{limits[0]:.3g}, {limits[1]:.3g}]" if limits else "")


def _words(metric: object) -> str:
    return str(metric).replace("_", " ")


def _coefficient(row: Row, key: str) -> str:
    if key not in row:
        return "constant"
    limits = interval(row, key)
    return f"{number(row, key):.2f}" + (f" [{limits[0]:.2f}, {limits[1]:.2f}]" if limits else "")
