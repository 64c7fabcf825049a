"""The decision of a sequential gate on disk, and the picture of its confidence sequences beside their thresholds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from windtunnel.assessments.figures.paint import paint
from windtunnel.assessments.figures.plots import Series, lines
from windtunnel.assessments.figures.scene import Scene
from windtunnel.params.resolved import Resolved
from windtunnel.records.files import read_json, replacing
from windtunnel.records.metadata import fitting
from windtunnel.records.sequential_gate import SequentialDecision, SequentialStep
from windtunnel.reporting.report.model import Chart, Section, Text

SEQUENCE_FILE = "gate_sequential.json"  # below reports/, no output of DVC
_AFTER = {"sanity", "summary", "report", "track"}  # stages that decide no outcome of a sample, and no condition


def digests_of(stages: Iterable[Resolved]) -> dict[str, str]:
    """Return, by stage, the digests of what decides the outcomes of the samples and the conditions of the gate."""
    return {stage.label: stage.digest for stage in stages if stage.stage not in _AFTER}


def read_sequence(path: Path) -> SequentialDecision | None:
    """Read the decision of `windtunnel gate --sequential`; None where none is of the data, model, entries and gate resolved now."""
    resolved = (path.parent / "resolved").rglob("*.json")
    answer = fitting(SequentialDecision, read_json(path), str(path), "a sequential decision")
    now = digests_of(fitting(Resolved, read_json(file), str(file), "a resolved stage") for file in resolved)
    return answer if answer.run == now else None


def sequence_section(answer: SequentialDecision) -> Section:
    """Return the report's section on the decision, with a chart for each condition."""
    charts = [sequence_chart([*steps]) for steps in zip(*answer.steps, strict=True)]
    return Section("The sequential gate", (Text(answer.sentence), *(Chart(chart, chart.alt) for chart in charts)))


def save_sequence(answer: SequentialDecision, path: Path) -> None:
    """Write the confidence sequences of a gate's conditions, a chart each, as a PNG at `path`."""
    with replacing(path) as beside:
        paint(answer.sentence, [sequence_chart([*steps]) for steps in zip(*answer.steps, strict=True)], beside)


def sequence_chart(steps: list[SequentialStep]) -> Scene:
    """Return the chart of one condition, from its values after each batch."""
    last = steps[-1]
    points = tuple((float(step.n), step.value) for step in steps)
    interval = tuple(step.interval for step in steps)
    ends = [float(min(points)[0]), float(last.n)]
    floor = Series(
        f"at least {last.threshold:g}", "broken", tuple((x, last.threshold) for x in ends), dots=False, dashed=True
    )
    low, high = last.interval
    alt = f"{last.name} after {last.n} samples: {last.value:.3f} [{low:.3f}, {high:.3f}], at least {last.threshold:g}."
    y_range = (min(0.0, *(low for low, _ in interval)), max(1.0, *(high for _, high in interval)))
    mean = Series("mean, 95 % confidence sequence", "ink", points, interval)
    return lines([floor, mean], "samples", last.name, alt, (0, ends[1]), y_range)
