"""Paths of the files of a run."""

from pathlib import Path


class Layout:
    """The places of a run whose params.yaml is in `root`, which is where DVC runs its stages."""

    def __init__(self, root: Path = Path()) -> None:
        self.root = root
        self.params = root / "params.yaml"
        self.lock = root / "dvc.lock"
        self.champion = root / "champion" / "champion.json"  # fetched from the registry, so no part of what a run makes
        self.reports = reports = root / "reports"
        self.resolved = reports / "resolved"
        self.data = reports / "data"
        self.model = reports / "model"
        self.generators = reports / "generators"
        self.robustness = reports / "robustness"
        self.clean = self.robustness / "clean"
        self.sanity = reports / "sanity"
        self.summary = reports / "summary"
        self.plots = reports / "plots"
        self.digests = reports / "digests"
        self.report = reports / "report"  # the report as data, beside report.pdf and report.html
        self.runtime = reports / "runtime"  # how long stages took that leave no assessment; no output of DVC
        self.metrics = reports / "metrics.json"
        self.gate = reports / "gate.json"

    def name_in_dvc(self, path: Path) -> str:
        """Return the name of a path of this run in dvc.lock."""
        return path.relative_to(self.root).as_posix()


HERE = Layout()

# The run in the current directory, as almost everybody means it.
PARAMS_FILE, LOCK, CHAMPION, REPORTS = HERE.params, HERE.lock, HERE.champion, HERE.reports
RESOLVED, DATA, MODEL, GENERATORS = HERE.resolved, HERE.data, HERE.model, HERE.generators
ROBUSTNESS, CLEAN, SANITY, SUMMARY = HERE.robustness, HERE.clean, HERE.sanity, HERE.summary
PLOTS, DIGESTS, REPORT, METRICS, GATE = HERE.plots, HERE.digests, HERE.report, HERE.metrics, HERE.gate
