"""Picture of a sequential gate: the confidence sequence of each condition against the samples, beside its threshold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.assessments.figures.paint import paint
from windtunnel.assessments.figures.plots import Series, lines
from windtunnel.assessments.figures.scene import Scene
from windtunnel.records.files import replacing

if TYPE_CHECKING:
    from windtunnel.reporting.answers import SequentialConditionAnswer, SequentialGateAnswer


def save_sequence(answer: SequentialGateAnswer, title: str, path: Path) -> None:
    """Write the confidence sequences of a gate's conditions, a chart each, as a PNG at `path`."""
    with replacing(path) as beside:
        paint(title, [sequence_chart([*steps]) for steps in zip(*answer.steps, strict=True)], beside)


def sequence_chart(steps: list[SequentialConditionAnswer]) -> Scene:
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
    return lines(
        [floor, Series("mean, 95 % confidence sequence", "ink", points, interval)],
        "samples",
        last.name,
        alt,
        (0, ends[1]),
        y_range,
    )
