"""Several classifiers in one latent assessment: a row for each, and what goes with what over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from windtunnel.assessments.latent.tables import ClassifierMetrics, Correlation
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import Rate, limits
from windtunnel.records.tables import table
from windtunnel.reporting.report.model import Table
from windtunnel.reporting.report.phrases import bracket, short

Numbers = Mapping[str, float]

_SHARES = {"clean": "clean_accuracy", "LRA": "lra", "LGA": "lga", "LLNA": "llna_reconstruction", "LARA": "lara"}
_SHARES |= {"LAGA": "laga", "noise": "noise_accuracy", "frequency L2": "adversarial_frequency_scaled_l2"}
_SHARES |= {"frequency Linf": "adversarial_frequency_linf"}
_SIZES = {"LARS": "lars", "LAGS": "lags", "severity L2": "adversarial_severity_scaled_l2"}
_SIZES |= {"severity Linf": "adversarial_severity_linf", "image L2, real": "image_change_l2_reconstruction"}
_SIZES |= {"image L1, real": "image_change_l1_reconstruction", "image L2, generated": "image_change_l2_generation"}
_SIZES |= {"image L1, generated": "image_change_l1_generation"}


def classifier_tables(artifacts: Artifacts) -> Iterator[Table]:
    """Yield the accuracies and the distances of every classifier, and the correlations; nothing where there is one classifier."""
    rows = table(tuple[ClassifierMetrics, ...], artifacts.metrics, "models")
    if not rows:
        return
    yield _table(f"Classifiers of {artifacts.name}: accuracies and frequencies", rows, _SHARES, _share)
    yield _table(
        f"Classifiers of {artifacts.name}: distances of their nearest adversarial examples", rows, _SIZES, _size
    )
    if lines := table(tuple[Correlation, ...], artifacts.metrics, "correlations"):
        cells = [
            (_words(line.x), _words(line.y), str(line.n), _coefficient(line.of_pearson), _coefficient(line.of_spearman))
            for line in lines
        ]
        header = ("metric", "with", "classifiers", "Pearson, 95 % interval", "Spearman, 95 % interval")
        yield Table(f"Correlations over the classifiers of {artifacts.name}", header, tuple(cells), folded=True)


def _table(
    caption: str, rows: Sequence[ClassifierMetrics], columns: dict[str, str], show: Callable[[Numbers, str], str]
) -> Table:
    used = {title: key for title, key in columns.items() if any(key in row.numbers for row in rows)}
    cells = tuple(
        (short(row.model), *(show(row.numbers, key) if key in row.numbers else "-" for key in used.values()))
        for row in rows
    )
    return Table(caption, ("classifier", *used), cells)


def _share(numbers: Numbers, key: str) -> str:
    return f"{numbers[key]:.1%}{bracket(limits(numbers, key))}"


def _size(numbers: Numbers, key: str) -> str:
    ends = limits(numbers, key)
    return f"{numbers[key]:.3g}" + (f" [{ends[0]:.3g}, {ends[1]:.3g}]" if ends else "")


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _coefficient(coefficient: Rate | None) -> str:
    if coefficient is None:
        return "constant"
    ends = coefficient.limits
    return f"{coefficient.value:.2f}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")
