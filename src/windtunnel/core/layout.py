"""Where a run keeps what it makes."""

from __future__ import annotations

from pathlib import Path

REPORTS = Path("reports")
DATA = REPORTS / "data"
MODEL = REPORTS / "model"
GENERATORS = REPORTS / "generators"
ROBUSTNESS = REPORTS / "robustness"
CLEAN = ROBUSTNESS / "clean"
SANITY = REPORTS / "sanity"
SUMMARY = REPORTS / "summary"
PLOTS = REPORTS / "plots"
REPORT = REPORTS / "report"  # the report as data, beside report.pdf and report.html
METRICS = REPORTS / "metrics.json"
GATE = REPORTS / "gate.json"
CHAMPION = Path("champion") / "champion.json"  # fetched from the registry, so no part of what a run makes
