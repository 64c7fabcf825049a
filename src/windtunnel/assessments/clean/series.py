"""The clean evaluation as series that `dvc plots` draws."""

from __future__ import annotations

from pathlib import Path

from windtunnel.assessments.clean.reliability import ConfidenceBins
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.series import write_csv
from windtunnel.records.tables import ClassShare, table


def write_clean_series(clean: Artifacts, class_names: tuple[str, ...], directory: Path) -> None:
    """per_class_accuracy.csv, reliability.csv, and confusion.csv (a row a sample, as the confusion template reads it)."""
    write_csv(directory / "per_class_accuracy.csv", ("class", "accuracy", "n"), [
        {"class": line.label, "accuracy": line.accuracy, "n": line.n}
        for line in table(tuple[ClassShare, ...], clean.metrics, "per_class")
    ])  # fmt: skip
    write_csv(directory / "reliability.csv", ("confidence", "accuracy", "count"), [
        {"confidence": confidence, "accuracy": accuracy, "count": count}
        for confidence, accuracy, count in table(ConfidenceBins, clean.metrics, "reliability").filled
    ])  # fmt: skip
    pairs = zip(clean.tensor("targets").tolist(), clean.tensor("clean_predictions").tolist(), strict=True)
    write_csv(directory / "confusion.csv", ("actual", "predicted"), [
        {"actual": class_names[actual], "predicted": class_names[predicted]} for actual, predicted in pairs
    ])  # fmt: skip
