"""The clean evaluation as series that `dvc plots` draws."""

from __future__ import annotations

from pathlib import Path

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.rows import block, listed, rows_in
from windtunnel.core.series import write_csv


def write_clean_series(clean: Artifacts, class_names: tuple[str, ...], directory: Path) -> None:
    """per_class_accuracy.csv, reliability.csv, and confusion.csv (a row a sample, as the confusion template reads it)."""
    rows = rows_in(clean.metrics, "per_class")
    write_csv(directory / "per_class_accuracy.csv", ("class", "accuracy", "n"), [
        {"class": row["class"], "accuracy": row.get("accuracy", ""), "n": row["n"]} for row in rows
    ])  # fmt: skip
    bins = block(clean.metrics, "reliability")
    write_csv(directory / "reliability.csv", ("confidence", "accuracy", "count"), [
        {"confidence": c, "accuracy": a, "count": n}
        for c, a, n in zip(*(listed(bins, key) for key in ("confidence", "accuracy", "count")), strict=True) if n
    ])  # fmt: skip
    pairs = zip(clean.tensor("targets").tolist(), clean.tensor("clean_predictions").tolist(), strict=True)
    write_csv(directory / "confusion.csv", ("actual", "predicted"), [
        {"actual": class_names[actual], "predicted": class_names[predicted]} for actual, predicted in pairs
    ])  # fmt: skip
