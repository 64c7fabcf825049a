"""A finished run, wherever it came from: what was asked of it, what it measured, and where its artifacts are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.boundary.params_file import flat_params
from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.decide import flatten
from windtunnel.evaluation.summary.headline import OF_CLASSES
from windtunnel.evaluation.summary.security import CURVES_FILE, SecurityCurve, read_curves
from windtunnel.records.basis import Basis
from windtunnel.records.files import METADATA_FILE, read_block
from windtunnel.records.metadata import read_metadata
from windtunnel.records.sandwich import layers_in, options_of_summary


def basis_text(bases: Sequence[Basis]) -> str:
    """Return what a number is of, once where it is the same in every run."""
    return " / ".join(dict.fromkeys(map(str, bases)))


@dataclass(frozen=True, slots=True)
class Run:
    """One side of a comparison.

    label: how the user named it. origin: what it is (`directory`, `git revision`, ...). params: flat, as written.
    metrics: flat, as in metrics.json. reports: holds robustness/ and summary/; None where only the numbers are at hand.
    notes: what a reader of the comparison must know.
    """

    label: str
    origin: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    reports: Path | None
    notes: tuple[str, ...] = ()

    def assessments(self) -> dict[str, Path]:
        """Return the directory of each assessment that has tensors at hand: the summary, clean, then as in params.yaml."""
        if self.reports is None:
            return {}
        directories = {path.name: path for path in sorted((self.reports / "robustness").glob("*"))}
        directories = {name: path for name, path in directories.items() if (path / METADATA_FILE).is_file()}
        summary = self.reports / "summary"
        if not (summary / METADATA_FILE).is_file():
            return directories
        order = ["clean", *options_of_summary(read_metadata(summary)).assessments, *directories]
        return {"summary": summary, **{name: directories[name] for name in order if name in directories}}

    @property
    def pictures(self) -> str:
        """`report.pictures` of the run."""
        return self.params.get("report.pictures", "shown")

    def bases(self) -> dict[str, Basis]:
        """Return what each metric of this run is of, by its name; of the numbers alone the n that they name."""
        read = {name: read_metadata(path) for name, path in self.assessments().items()}
        groups = {name: Basis.of(metadata) for name, metadata in read.items()}
        n_all = groups["summary"].n if "summary" in groups else None
        if "summary" in read and (layers := layers_in(read["summary"].metrics)):
            groups |= dict.fromkeys(("worst_case", "certified"), Basis.of_layer(layers[0]))
        bases = {}
        for key in self.metrics:
            group, _, metric = key.partition("/")
            n = self.metrics.get(f"{group}/n")
            basis = groups.get(group, Basis(n=None if n is None else int(n)))
            if metric.startswith("accuracy_all"):
                basis = basis._replace(n=n_all, only_first=False)
            bases[key] = basis._replace(n=None) if metric in OF_CLASSES else basis
        return bases

    def curves(self) -> tuple[SecurityCurve, ...]:
        """Return the security curves of its summary; none where it has no summary at hand, or an older one.

        Raises UserError, in one line, where the file is damaged.
        """
        summary = self.assessments().get("summary")
        return read_curves(summary) if summary and (summary / CURVES_FILE).is_file() else ()

    def subject(self) -> tuple[str, str]:
        """Return the short digests of the model and of the assessed samples; empty where no artifacts are at hand."""
        directories = self.assessments()
        if not directories:
            return "", ""
        origin = read_metadata(directories.get("clean", next(iter(directories.values())))).provenance
        return origin.model_digest[:8], origin.dataset_digest[:8]


def run_in(directory: Path, label: str, origin: str = "directory", notes: tuple[str, ...] = ()) -> Run:
    """Return the run whose reports/ is `directory`, or is in it, with the params.yaml beside reports/.

    Raises UserError where there are no results.
    """
    reports = directory / "reports" if (directory / "reports").is_dir() else directory
    params, metrics = _params(reports), _metrics(reports)
    if not params:
        notes = (*notes, "no params.yaml beside the results, so its parameters are not compared")
    run = Run(label, origin, params, metrics, reports, notes)
    if not run.assessments():
        raise UserError(f"{directory} is no directory of results (no robustness/*/{METADATA_FILE})")
    return run


def numbers_in(directory: Path, label: str, origin: str, why: str) -> Run:
    """Return a run of which only params.yaml and reports/metrics.json are at hand; `why` becomes its note."""
    reports = directory / "reports"
    return Run(label, origin, _params(reports), _metrics(reports), None, (why,))


def _params(reports: Path) -> dict[str, str]:
    file = reports.parent / "params.yaml"
    return flat_params(file) if file.is_file() else {}


def _metrics(reports: Path) -> dict[str, float]:
    file = reports / "metrics.json"
    return flatten(read_block(file)) if file.is_file() else {}
