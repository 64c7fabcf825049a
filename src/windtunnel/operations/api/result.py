"""Result of an assessment by the Python API: to read, to look at in a notebook, to go through sample by sample, and to keep."""

from __future__ import annotations

import base64
import html
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from windtunnel.assessments.clean.table import VISUALISERS as OF_CLEAN
from windtunnel.assessments.figures.base import VISUALISERS, draw_figures, drawn
from windtunnel.assessments.figures.paint import Plot, plot
from windtunnel.assessments.figures.registry import register_figures, visualisers_of
from windtunnel.boundary.door import in_arguments
from windtunnel.core.contracts import Caveat, Verdict
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.sample_states import SampleState, states_of
from windtunnel.evaluation.gate.decide import flatten
from windtunnel.evaluation.summary.evidence import examples_of
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.files import read_block, read_own
from windtunnel.records.layout import Layout
from windtunnel.registry.plugins import families
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.collect import findings_in
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.model import ReportContent
from windtunnel.reporting.report.pdf import render_pdf
from windtunnel.reporting.report.sections.sanity import warnings_of
from windtunnel.reporting.report.sections.statement import hard_failures

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class EntryResult(Artifacts):
    """The artifacts of one assessment, to look at in a notebook."""

    @classmethod
    def of(cls, artifacts: Artifacts) -> EntryResult:
        """Return the same artifacts with the methods of this class."""
        return cls(artifacts.name, artifacts.directory, artifacts.data, artifacts.metadata, artifacts.numbers)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """The caveats of metadata.json, in which advice names arguments of `assess`."""
        return tuple(replace(caveat, text=in_arguments(caveat.text)) for caveat in super().caveats)

    def plot(self, figure: str | None = None) -> Plot:
        """Return a matplotlib figure: the first that shows something of this assessment, or the visualiser named `figure`.

        Raises UserError, with the visualisers that draw it, for another name.
        """
        register_figures()
        family = self.metadata.family or self.name
        names = OF_CLEAN if family == "clean" else families()[family].visualisers if family in families() else ()
        if family == "summary":
            names = ("SandwichVisualiser",)
        possible = [
            n for n, v in VISUALISERS.items() if self.kind in v.kinds and (not v.families or family in v.families)
        ]
        if figure is not None and figure not in possible:
            raise UserError(unknown_word("plot", figure, possible, what=f"a visualiser of {self.name}"))
        reason = ""
        for visualiser in (VISUALISERS[n] for n in ([figure] if figure else names)):
            drawings, empty = drawn(visualiser(), self)
            if drawings:
                return plot(f"{self.name}: {visualiser.title}", drawings)
            reason = reason or empty
        return plot(self.headline, (), reason or "There is nothing to draw.")

    def broken(self) -> pd.DataFrame:
        """Return the adversarial examples: a row per sample that was broken, none that was misclassified.

        Columns: `label`, `adversarial_prediction` (empty where the logits are not finite), `distance` from the clean input, in the
        norm of the assessment, and `index` of the sample in the tensors.
        """
        import pandas as pd

        classes, targets = self.class_names, self.tensor("targets")
        broken = (self.tensor("clean_predictions") == targets) & examples_of(self)
        broken &= torch.isin(self.tensor("verdicts"), torch.tensor([Verdict.ATTACK_SUCCEEDED, Verdict.FALSIFIED]))
        indices = broken.nonzero().flatten().tolist()
        columns = ("perturbed_predictions", "perturbation_distance")
        answers, distances = (self.tensor(key).tolist() if indices else [] for key in columns)
        return pd.DataFrame(
            {
                "label": [classes[int(targets[i])] for i in indices],
                "adversarial_prediction": [classes[int(answers[i])] if answers[i] >= 0 else "" for i in indices],
                "distance": [float(distances[i]) for i in indices],
                "index": indices,
            },
            index=pd.Index([self.sample_names[i] for i in indices], name="sample"),
        )

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: algorithm, rates with their intervals, and caveats."""
        rows = "".join(
            f"<tr><td>{key.replace('_', ' ')}</td><td>{value}</td></tr>" for key, value in self.rates.items()
        )
        return (
            f"<p><b>{html.escape(self.headline)}</b></p><table>{rows}</table>{_bullets([c.text for c in self.caveats])}"
        )


def _bullets(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>" if lines else ""


@dataclass(frozen=True)
class Result(Mapping[str, Artifacts]):
    """The artifacts of an assessment by name, `clean` and `summary` among them, as `dvc repro` leaves them.

    place: where they lie. folder: the temporary folder that goes when the result goes; None where they were saved.
    """

    params: Params | None
    place: Layout
    folder: tempfile.TemporaryDirectory[str] | None = None

    def __getitem__(self, name: str) -> EntryResult:
        if name not in self._names:
            raise KeyError(unknown_word("result", name, self._names, what="an assessment of this result"))
        directory = self.place.summary if name == "summary" else self.place.robustness / name
        return EntryResult.of(read_artifacts(directory, search=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = sorted(path.name for path in self.place.robustness.iterdir() if path.is_dir())
        order = [name for _, name, _ in entries(self.params)] if self.params else [n for n in names if n != "clean"]
        return ("clean", *order, "summary")

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The numbers of metrics.json, flat: `worst_case/accuracy`, `certified/accuracy`, `pgd/adversarial_accuracy`, ..."""
        return flatten(read_block(self.place.metrics))

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """List what limits these numbers: of the run, of each assessment (`pgd: ...`), and each flagged sanity check."""
        summary = self["summary"]
        lines = [f"This number is not valid: {in_arguments(line)}" for line in hard_failures(summary)]
        lines += [caveat.text for caveat in summary.caveats if caveat.code != "hard_failure"]
        lines += [f"{name}: {c.text}" for name in self if name != "summary" for c in self[name].caveats]
        lines += map(in_arguments, warnings_of(findings_in(self.place.reports / "sanity", [])))
        return tuple(dict.fromkeys(lines))

    @cached_property
    def per_sample(self) -> pd.DataFrame:
        """Return a row per sample.

        Columns: `label`, clean `prediction`, `status` (its `SampleState` at the global budget), the verdict of each assessment,
        and the distance to the nearest adversarial example (NaN: none).
        """
        import pandas as pd

        clean, summary = self["clean"], self["summary"]
        names = clean.class_names
        states = states_of(summary.data, summary.tensor("clean_predictions"), summary.tensor("targets"))
        frame = pd.DataFrame(
            {
                "label": [names[i] for i in clean.tensor("targets").tolist()],
                "prediction": [names[i] if i >= 0 else "" for i in clean.tensor("clean_predictions").tolist()],
                "status": [list(SampleState)[code].value for code in states.tolist()],
            },
            index=pd.Index(clean.sample_names, name="sample"),
        )
        for name in (n for n in self if n not in {"clean", "summary"}):
            artifacts = self[name]
            verdicts = [Verdict(code).name.lower() for code in artifacts.tensor("verdicts").tolist()]
            frame[name] = pd.Series(verdicts, index=list(artifacts.sample_names))
        broken = states == SampleState.BROKEN.code
        frame["nearest_example"] = summary.tensor("perturbation_distance").masked_fill(~broken, torch.nan).tolist()
        return frame

    def broken(self, name: str) -> pd.DataFrame:
        """Return the adversarial examples of an assessment; see `EntryResult.broken`. Raises KeyError for an unknown name."""
        return self[name].broken()

    def plot(self, name: str = "summary", figure: str | None = None) -> Plot:
        """Return a matplotlib figure of an assessment, of the sandwich where none is named; see `EntryResult.plot`."""
        return self[name].plot(figure)

    def summary(self) -> str:
        """Return a few lines: the sentence of the report's first page, the sandwich, and caveats."""
        front = self._report.front
        tiles = [f"  {tile.label}: {tile.value} {tile.interval}".rstrip() for tile in front.tiles]
        limits = [f"  - {in_arguments(finding.text)}" for finding in (*front.alarms, *front.caveats)]
        return "\n".join([front.statement, *tiles, *(["Limits:", *limits] if limits else [])])

    def save(self, directory: Path | str) -> Path:
        """Keep it: the artifacts and figures that `dvc repro` leaves in reports/, below `directory`/reports.

        Raises UserError where something lies there already.
        """
        target = Path(directory) / "reports"
        if target.exists():
            raise UserError(f"{target}: is there already; save into another folder")
        shutil.copytree(self.place.reports, target)
        robustness = target / "robustness"
        register_figures()
        draw_figures(read_artifacts(robustness / "clean"), [VISUALISERS[name]() for name in OF_CLEAN])
        for family, name, entry in entries(self.params) if self.params else ():
            if self[name].metadata.failure is None:
                draw_figures(read_artifacts(robustness / name), visualisers_of(family, name, entry))
        return target

    def report(self, path: Path | str) -> Path:
        """Write the report, a PDF or an HTML file as `path` ends."""
        target, renderers = Path(path), {".pdf": render_pdf, ".html": render_html}
        if target.suffix not in renderers:
            raise UserError(f"report: {target}: ends in neither .pdf nor .html")
        target.parent.mkdir(parents=True, exist_ok=True)
        renderers[target.suffix](self._report, target)
        return target

    @cached_property
    def _report(self) -> ReportContent:
        return build_report(self.place.reports, names=[name for name in self if name not in {"clean", "summary"}])

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the sentence, the sandwich as a picture, and caveats."""
        front = self._report.front
        limits = _bullets([in_arguments(caveat.text) for caveat in (*front.alarms, *front.caveats)])
        picture = base64.b64encode(read_own(self.place.summary / "SandwichVisualiser_0.png")).decode()
        statement = html.escape(front.statement)
        image = f'<img alt="{statement}" style="max-width: 44rem" src="data:image/png;base64,{picture}">'
        return f"<p><b>{statement}</b></p>{image}{limits}"

    def __repr__(self) -> str:
        return self.summary()
