"""Show the model's inputs, for `windtunnel check`: a few samples as a table and a picture, the clean accuracy, and suspected mistakes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from torch import Tensor

from windtunnel.assessments.figures.pictures import picture_mode
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.load import UNTRAINED
from windtunnel.boundary.models.of_libraries import RANDOM_WEIGHTS
from windtunnel.boundary.models.preprocess import as_yaml, joined
from windtunnel.cli.output import headings, print_table
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.input_conventions.corrections import Suspicion, invisible_channels, suspicion
from windtunnel.evaluation.input_conventions.first_layer import twice_normalised
from windtunnel.evaluation.input_conventions.look import MEASURED, chosen, picture, rows
from windtunnel.params.model import Model
from windtunnel.records.layout import REPORTS
from windtunnel.registry.plugins import model_source, model_sources
from windtunnel.reporting.answers import SampleAnswer, SeenAnswer

PICTURE = REPORTS / "check.png"
# Where 50 samples tell nothing, more are asked about, as many as take about so long.
SECONDS, _MOST = 8.0, 1000
# How many samples -> so many of the same source, None where loading them is not quick.
Wider = Callable[[int], Dataset | None]
_COLUMNS = headings("sample", "label", "prediction", "confidence", "input", right=("confidence", "input"))


def show_what_it_sees(
    subject: Subject, console: Console, wider: Wider | None = None, model: Model | None = None
) -> SeenAnswer:
    """Print the table, the accuracy and a line per suspicion, write the picture, and return all of it.

    wider: further samples, for where those of `subject` are few. model: as params.yaml has it, for lines to paste.
    A `predict` function is not called.
    """
    classifier, data = subject.classifier, subject.dataset
    trained = classifier.digest != UNTRAINED and RANDOM_WEIGHTS not in classifier.caveats
    table = rows(data, subject.clean_logits)
    cells = [(r.name, r.label, r.prediction, f"{r.confidence:.0%}", f"{r.low:.3g} to {r.high:.3g}") for r in table]
    print_table(
        console,
        _COLUMNS,
        [("", cells)],
        "what the model sees, after preparation" + ("" if trained else "; it is not trained"),
    )
    has_picture = data.is_image and picture_mode() != "none"
    if has_picture:
        picture(data, table, PICTURE)
        console.print(f"[green]✓[/green] the same as a picture: {PICTURE}")
    few = chosen(data)
    low, high = float(data.inputs.min()), float(data.inputs.max())
    look = SeenAnswer(
        samples=[SampleAnswer(**asdict(row)) for row in table],
        picture=str(PICTURE) if has_picture else None,
        clean_accuracy=None,
        measured_on=len(few),
        input_range=(low, high),
        suspicions=[],
    )
    if not (trained and data.labelled):
        return look
    accuracy = binomial_rate(int(subject.clean_correct[few].sum()), len(few))
    look.clean_accuracy = accuracy.value
    console.print(
        f"[green]✓[/green] clean accuracy {accuracy.value:.1%} \\[{accuracy.low:.1%}, {accuracy.high:.1%}] on {len(few)} samples; "
        f"inputs span {low:.3g} to {high:.3g}"
    )
    suspicion = suspicion_of(subject, wider)
    lines = [_line(suspicion), _twice(classifier), _channels(subject, suspicion)]
    look.suspicions = [line for line in lines if line]
    look.proposal = _proposal(suspicion, model, tuple(data.inputs.shape[1:])) if suspicion and model else []
    for line in look.suspicions:
        console.print(f"[yellow]![/yellow] {escape(line)}")
    return look


def suspicion_of(subject: Subject, wider: Wider | None = None) -> Suspicion | None:
    """On 50 samples, and where they tell nothing on as many as are quick."""
    if isinstance(subject.classifier.module, PredictFunction):  # its answers may cost money
        return _on(subject, chosen(subject.dataset), calls_model=False)
    few, started = chosen(subject.dataset), time.monotonic()
    suspicion = _on(subject, few, calls_model=True)
    each = (time.monotonic() - started) / max(len(few), 1)
    more = min(_MOST, int(SECONDS / max(each, 1e-6)))
    if suspicion or more <= MEASURED:
        return suspicion
    if wider and len(subject.dataset) < more and (data := wider(more)):
        subject = subject_of(subject.classifier, data, subject.seed)
    return _on(subject, chosen(subject.dataset, more), calls_model=True)


def _on(subject: Subject, samples: Tensor, *, calls_model: bool) -> Suspicion | None:
    return suspicion(
        subject.classifier if calls_model else None, subject.dataset.subset(samples), subject.clean_logits[samples]
    )


def _channels(subject: Subject, suspicion: Suspicion | None) -> str:
    if isinstance(subject.classifier.module, PredictFunction):
        return ""
    return invisible_channels(subject.classifier, subject.dataset.subset(chosen(subject.dataset)), suspicion)


def _proposal(suspicion: Suspicion, model: Model, shape: tuple[int, ...]) -> list[str]:
    """Return the lines of params.yaml that correct the mistake; none if the source has its own preprocessing."""
    brings_its_own = model.source == "train" or (model.source in model_sources() and model_source(model.source).view)
    if suspicion.preprocess is None or brings_its_own:
        return []
    first, *others = (
        as_yaml(joined(cure, model.preprocess, shape))
        for cure in (suspicion.preprocess, *(r for _, r in suspicion.rivals))
    )
    names = [name for name, _ in suspicion.rivals]
    return [
        "model:",
        f"  preprocess: {first}",
        *(f"  # or, as good but for chance ({name}): {other}" for name, other in zip(names, others, strict=True)),
    ]


def _line(suspicion: Suspicion | None) -> str:
    return suspicion.line if suspicion else ""


def _twice(classifier: Classifier) -> str:
    return "" if isinstance(classifier.module, PredictFunction) else twice_normalised(classifier)
