"""Where a run keeps what it makes."""

from __future__ import annotations

from pathlib import Path

PARAMS_FILE = Path("params.yaml")
REPORTS = Path("reports")
RESOLVED = REPORTS / "resolved"
DATA = REPORTS / "data"
MODEL = REPORTS / "model"
GENERATORS = REPORTS / "generators"
ROBUSTNESS = REPORTS / "robustness"
CLEAN = ROBUSTNESS / "clean"
SANITY = REPORTS / "sanity"
SUMMARY = REPORTS / "summary"
PLOTS = REPORTS / "plots"
DIGESTS = REPORTS / "digests"
REPORT = REPORTS / "report"  # the report as data, beside report.pdf and report.html
METRICS = REPORTS / "metrics.json"
GATE = REPORTS / "gate.json"
LOCK = Path("dvc.lock")
CHAMPION = Path("champion") / "champion.json"  # fetched from the registry, so no part of what a run makes
