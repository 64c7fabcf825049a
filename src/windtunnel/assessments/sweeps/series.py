"""The degradation curve of a sweep as a series that `dvc plots` draws."""

from __future__ import annotations

from pathlib import Path

from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import numbers
from windtunnel.records.series import write_csv


def write_curve_series(sweep: Artifacts, path: Path) -> None:
    """A row per epsilon, 0 first: epsilon, cumulative accuracy with its interval, accuracy at this epsilon alone."""
    source = {
        "epsilon": "epsilons",
        "accuracy": "accuracy_curve",
        "ci_low": "accuracy_curve_ci_low",
        "ci_high": "accuracy_curve_ci_high",
        "raw_accuracy": "accuracy_curve_raw",
    }
    columns = [numbers(sweep.metrics, key) for key in source.values()]
    write_csv(path, tuple(source), [dict(zip(source, row, strict=True)) for row in zip(*columns, strict=True)])
