"""The few numbers of a run that people compare: reports/metrics.json and the series that DVC plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.core.contracts import Json
from windtunnel.core.plugins import families
from windtunnel.core.series import write_csv

if TYPE_CHECKING:  # `leading` is asked by commands that should not wait for torch
    from windtunnel.core.artifacts import Artifacts

# The number that stands for an assessment in a bar chart, with its interval; the first that is there.
ACCURACY = ("adversarial_accuracy", "certified_accuracy", "corrupted_accuracy", "lara", "clean_accuracy")

# Of the classes of `certified` and `worst_case`; every class's own rate is in reports/summary/metadata.json.
OF_CLASSES = (
    "weakest_class_accuracy", "weakest_class_accuracy_ci_low", "weakest_class_accuracy_ci_high",
    "class_gap", "class_gap_ci_low", "class_gap_ci_high",
)  # fmt: skip


def accuracy_key(name: str, metrics: Mapping[str, object]) -> str | None:
    """Which of ACCURACY stands for the assessment `name`; the clean evaluation is also the corruption "none"."""
    keys = ("clean_accuracy",) if name == "clean" else ACCURACY
    return next((key for key in keys if key in metrics), None)


def leading(family: str | None) -> tuple[str, ...]:
    """What `dvc metrics show`, `dvc exp show` and the MLflow run list lead with; metadata.json holds the rest."""
    if family in families():
        return families()[family].headline
    return tuple(dict.fromkeys(key for record in families().values() for key in record.headline))  # of an older version


def headline_metrics(summary: Artifacts, clean: Artifacts, assessments: Sequence[Artifacts]) -> dict[str, Json]:
    """Nested metrics: `clean`, `certified`, `worst_case`, then each assessment under its own name."""
    metrics = summary.metrics
    top: dict[str, Json] = {}
    for group, source in (
        ("certified", "certified_accuracy"),
        ("clean", "clean_accuracy"),
        ("worst_case", "worst_case_accuracy"),
    ):
        found = {key.replace(source, "accuracy"): metrics[key] for key in _with_interval(source) if key in metrics}
        found |= {key: metrics[f"{group}_{key}"] for key in OF_CLASSES if f"{group}_{key}" in metrics}
        if found:
            top[group] = found
    clean_block = top.setdefault("clean", {})
    if isinstance(clean_block, dict):
        clean_block.update(
            {key: clean.metrics[key] for key in ("nll", "ece", "adaptive_ece", "brier") if key in clean.metrics}
        )
    top["hard_failures"] = metrics["hard_failures"]
    for artifacts in assessments:
        top[artifacts.name] = {
            key: artifacts.metrics[key] for key in leading(artifacts.metadata.family) if key in artifacts.metrics
        }
    return top


def write_series(summary: Artifacts, assessments: Sequence[Artifacts], directory: Path) -> None:
    """The series of `dvc plots`: the sandwich per budget, and one accuracy per assessment with its interval."""
    layers = summary.metrics["sandwich"]
    rows: list[dict[str, object]] = []
    for layer in layers if isinstance(layers, list) else []:
        assert isinstance(layer, dict)
        budget = f"{layer['norm']} {layer['epsilon']:.4g}"
        ends = {**layer, "clean_accuracy": summary.metrics["clean_accuracy"]}
        for end in ("certified_accuracy", "worst_case_accuracy", "clean_accuracy"):
            if end in ends:
                # A bar has one name: bars of one name are stacked, and accuracies must not be added up.
                bar = f"{budget} {end.removesuffix('_accuracy').replace('_', ' ')}"
                rows.append({"bar": bar, "budget": budget, "end": end, "accuracy": ends[end]})
    write_csv(directory / "sandwich.csv", ("bar", "budget", "end", "accuracy"), rows)
    bars: list[dict[str, object]] = []
    for artifacts in (summary, *assessments):
        key = accuracy_key(artifacts.name, artifacts.metrics)
        if key:
            low, high = (artifacts.metrics.get(f"{key}_ci_{end}", "") for end in ("low", "high"))
            bars.append(
                {
                    "assessment": artifacts.name,
                    "metric": key,
                    "accuracy": artifacts.metrics[key],
                    "ci_low": low,
                    "ci_high": high,
                }
            )
    write_csv(directory / "assessments.csv", ("assessment", "metric", "accuracy", "ci_low", "ci_high"), bars)


def _with_interval(name: str) -> tuple[str, str, str]:
    return name, f"{name}_ci_low", f"{name}_ci_high"
