"""Rates over images of a multi-label model that was assessed once for each label, never over pairs of image and label."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from windtunnel.core.statistics import IntervalMethod, binomial_rate
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.metadata import Rate
from windtunnel.reporting.compare.comparison import Comparison, interval_method, outcomes_of
from windtunnel.reporting.compare.runs import Run
from windtunnel.reporting.report.model import Block, Section, Table, Text

LABEL = "model.head.label"


def are_of_labels(runs: Sequence[Run]) -> bool:
    """Return True if every run assesses another label of a multi-label model."""
    labels = {run.params.get(LABEL) for run in runs}
    return len(labels) == len(runs) and None not in labels


def section_of_images(comparison: Comparison) -> Section:
    """Return the section with each assessment's rate for each label, and over the images for which every label holds."""
    return Section("Over images: every label", tuple(_blocks(comparison)))


def _blocks(comparison: Comparison) -> Iterator[Block]:
    runs = comparison.runs
    if others := [key for key, _ in comparison.params if key != LABEL]:
        yield Text(f"Not summed up: the runs also differ in {', '.join(others)}.")
        return
    directories = [run.assessments() for run in runs]
    shared = [name for name in directories[0] if all(name in others for others in directories)]
    rows: list[tuple[str, ...]] = []
    for name in shared:
        rows += _rows(name, [str(run.params[LABEL]) for run in runs], [read_artifacts(d[name]) for d in directories])
    yield Table("", ("assessment", "holds [95 %]", "images"), tuple(rows))
    yield Text(
        "An image holds where its answer is right and the assessment did not change it. Every label: all answers of the image "
        "hold, of the images that were assessed for all labels. Each label is attacked on its own."
    )
    for run, names in zip(runs, directories, strict=True):
        if only := [name for name in names if name not in shared]:
            yield Text(f"{', '.join(only)}: not in every run; {run.params[LABEL]} has it.")


def _rows(name: str, labels: Sequence[str], artifacts: Sequence[Artifacts]) -> Iterator[tuple[str, str, str]]:
    """Yield a row `<entry>.<label>` for each label and one of every label, for each outcome of an assessment."""
    by_label = [outcomes_of(name, each) for each in artifacts]
    for outcome in [outcome for outcome in by_label[0] if all(outcome in others for others in by_label)]:
        holds = [_by_image(each, *of[outcome]) for each, of in zip(artifacts, by_label, strict=True)]
        every, method = set(holds[0]).intersection(*holds[1:]), interval_method(outcome, artifacts[0])
        for label, of_label in zip(labels, holds, strict=True):
            yield f"{outcome}.{label}", *_rate(list(of_label.values()), method)
        yield (
            f"{outcome}, every label",
            *_rate([all(of_label[image] for of_label in holds) for image in every], method),
        )


def _by_image(artifacts: Artifacts, holds: Tensor, assessed: Tensor) -> dict[str, bool]:
    """Return by image whether it holds, bool (N,), of those that were assessed, bool (N,)."""
    rows = zip(artifacts.sample_names, holds.tolist(), assessed.tolist(), strict=True)
    return {image: is_held for image, is_held, is_assessed in rows if is_assessed}


def _rate(holds: Sequence[bool], method: IntervalMethod) -> tuple[str, str]:
    rate = binomial_rate(sum(holds), len(holds), method=method)
    return str(Rate(rate.value, rate.low, rate.high)), str(rate.n)
