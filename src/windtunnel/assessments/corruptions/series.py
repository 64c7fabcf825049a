"""The severity curve of a suite as a series that `dvc plots` draws."""

from __future__ import annotations

from pathlib import Path

from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import numbers
from windtunnel.records.series import write_csv


def write_severity_series(suite: Artifacts, path: Path) -> None:
    """A row per severity, 0 (8-bit rounding alone) first: severity, mean accuracy with its interval."""
    columns = ("accuracy", "ci_low", "ci_high")
    names = [("severity_0_accuracy" + end, "accuracy_by_severity" + end) for end in ("", "_ci_low", "_ci_high")]
    curves = [[suite.metrics[zero], *numbers(suite.metrics, rest)] for zero, rest in names]
    severities = [0, *map(int, numbers(suite.metrics, "severities"))]
    rows = [
        {"severity": s, **dict(zip(columns, values, strict=True))}
        for s, *values in zip(severities, *curves, strict=True)
    ]
    write_csv(path, ("severity", *columns), rows)
