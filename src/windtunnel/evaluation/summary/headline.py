"""The few numbers of a run that people compare: reports/metrics.json and the series that DVC plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.core.contracts import Json
from windtunnel.core.transformations import transformation_of
from windtunnel.records.basis import Basis, basis_of, leading_metric
from windtunnel.records.metadata import rate
from windtunnel.records.sandwich import layers_of
from windtunnel.records.tables import SliceRow, table, write_csv
from windtunnel.registry.plugins import families

if TYPE_CHECKING:  # `leading` is asked by commands that should not wait for torch
    from windtunnel.records.artifacts import Artifacts

# Of the classes of `certified` and `worst_case`; every class's own rate is in reports/summary/metadata.json.
OF_CLASSES = tuple(
    """
    weakest_class_accuracy weakest_class_accuracy_ci_low weakest_class_accuracy_ci_high class_gap class_gap_ci_low
    class_gap_ci_high
    """.split()
)


OF_SLICES = ("weakest_slice_accuracy", "weakest_slice_accuracy_ci_low", "weakest_slice_accuracy_ci_high")
SLICE_RATES = ("clean_accuracy", "worst_case_accuracy", "certified_accuracy")


def leading(family: str | None) -> tuple[str, ...]:
    """Select the metrics that `dvc metrics show`, `dvc exp show` and the MLflow run list show first; metadata.json holds the rest."""
    if family in families():
        return families()[family].headline
    return tuple(dict.fromkeys(key for record in families().values() for key in record.headline))  # of an older version


def headline_metrics(summary: Artifacts, clean: Artifacts, assessments: Sequence[Artifacts]) -> dict[str, Json]:
    """Return nested metrics: `clean`, `certified`, `worst_case`, each with its `n`, then each assessment under its name.

    `certified` and `worst_case` hold the rates at every budget with a name below that name too.
    Where there are slices, `slices` holds the rates of each by column and value.
    """
    metrics = summary.metrics
    layer, *_ = layers_of(metrics)
    sizes = {"clean": layer.n, "certified": layer.n_certified, "worst_case": layer.n_attacked}
    top: dict[str, dict[str, Json]] = {}
    for group in ("certified", "clean", "worst_case"):
        source = f"{group}_accuracy"
        rates = _chosen(summary, (*_with_interval(source), *_with_interval(f"{source}_all")))
        numbers = {key.replace(source, "accuracy"): value for key, value in rates.items()}
        if numbers:
            numbers["n"] = sizes[group]
        weakest = _chosen(summary, [f"{group}_{key}" for key in (*OF_CLASSES, *OF_SLICES)])
        numbers |= {key.removeprefix(f"{group}_"): value for key, value in weakest.items()}
        if numbers:
            top[group] = numbers
    for layer in layers_of(metrics):
        ends = {"worst_case": (layer.worst_case, layer.n_attacked), "certified": (layer.certified, layer.n_certified)}
        for group, (end, n) in ends.items():
            if layer.name and end:
                limits = dict(zip(("accuracy_ci_low", "accuracy_ci_high"), end.limits or (), strict=False))
                top.setdefault(group, {})[layer.name] = {"accuracy": end.value, "n": n, **limits}
    top["clean"] = {**top.get("clean", {}), **_chosen(clean, ("nll", "ece", "adaptive_ece", "brier"))}
    entries = {a.name: _chosen(a, leading(a.metadata.family)) for a in assessments}
    slices: dict[str, dict[str, Json]] = {}
    for row in table(tuple[SliceRow, ...], metrics, "slices"):
        rates = row.model_dump(mode="json", exclude={"column", "value", "states", "n_attacked"}, exclude_none=True)
        slices.setdefault(row.column, {})[row.value] = rates
    if slices:
        top["slices"] = {**slices}
    return {**top, "hard_failures": metrics["hard_failures"], **entries}


def write_series(summary: Artifacts, assessments: Sequence[Artifacts], directory: Path) -> None:
    """Write the series of `dvc plots`: the sandwich per budget, and one accuracy per assessment with its interval."""
    rows: list[dict[str, object]] = []
    metrics = summary.metrics
    for layer in layers_of(metrics):
        budget = layer.budget if transformation_of(layer.norm) else f"{layer.norm} {layer.epsilon:.4g}"
        n = Basis.of_layer(layer).n
        ends = {
            "certified_accuracy": (layer.certified, n),
            "worst_case_accuracy": (layer.worst_case, n),
            "clean_accuracy": (rate(metrics, "clean_accuracy"), layer.n),
        }
        for end, (value, size) in ends.items():
            if value is not None:
                # A bar has one name: bars of one name are stacked, and accuracies must not be added up.
                bar = f"{budget} {end.removesuffix('_accuracy').replace('_', ' ')}"
                ends_of_interval = dict(zip(("ci_low", "ci_high"), value.limits or ("", ""), strict=True))
                row = {"bar": bar, "budget": budget, "end": end, "accuracy": value.value, **ends_of_interval, "n": size}
                rows.append(row)
    write_csv(directory / "sandwich.csv", ("bar", "budget", "end", "accuracy", "ci_low", "ci_high", "n"), rows)
    bars: list[dict[str, object]] = []
    for artifacts in (summary, *assessments):
        key = leading_metric(artifacts.metadata)
        if key:
            low, high = (artifacts.metrics.get(f"{key}_ci_{end}", "") for end in ("low", "high"))
            basis = basis_of(artifacts.metadata, key)
            bars.append(
                {
                    "assessment": artifacts.name,
                    "metric": key,
                    "accuracy": artifacts.metrics[key],
                    "ci_low": low,
                    "ci_high": high,
                    "norm": basis.norm or "",
                    "epsilon": "" if basis.epsilon is None else basis.epsilon,
                    "n": basis.n,
                }
            )
    columns = ("assessment", "metric", "accuracy", "ci_low", "ci_high", "norm", "epsilon", "n")
    write_csv(directory / "assessments.csv", columns, bars)


def _chosen(artifacts: Artifacts, keys: Sequence[str]) -> dict[str, Json]:
    """Return those of the metrics `keys` that an assessment has."""
    return {key: artifacts.metrics[key] for key in keys if key in artifacts.metrics}


def _with_interval(name: str) -> tuple[str, str, str]:
    return name, f"{name}_ci_low", f"{name}_ci_high"
