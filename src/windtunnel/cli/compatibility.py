"""Load the data and the model; print what does not fit them, what the model sees, and what the run needs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.markup import escape
from torch import Tensor

from windtunnel.assessments.figures.pictures import picture_mode
from windtunnel.assessments.latent.assess import load_models
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.data.slices import read_slices
from windtunnel.boundary.data.sources import turned_pictures
from windtunnel.boundary.generators.load import check_generators
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.load import UNTRAINED, named_classifier, preview_classifier
from windtunnel.boundary.models.of_libraries import RANDOM_WEIGHTS
from windtunnel.boundary.models.preprocess import as_yaml, joined
from windtunnel.boundary.models.views import view_of
from windtunnel.cli.output import OK, WARN, counted, headings, print_table
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset, too_many
from windtunnel.core.errors import UserError
from windtunnel.core.machine import usable_processors
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.input_conventions.corrections import (
    MEASURED,
    Suspicion,
    invisible_channels,
    own_size_suspicion,
    suspicion,
)
from windtunnel.evaluation.input_conventions.first_layer import twice_normalised
from windtunnel.evaluation.input_conventions.look import chosen, picture, rows
from windtunnel.evaluation.sanity.check import Status
from windtunnel.evaluation.sanity.run import affordable, before_any_assessment, queries_before_any_assessment
from windtunnel.operations import estimate as estimation
from windtunnel.operations.estimate import Estimate, gigabytes
from windtunnel.params.load import entries
from windtunnel.params.model import Model
from windtunnel.params.schema import Params
from windtunnel.records.layout import REPORTS
from windtunnel.registry.family import PlannedRun
from windtunnel.registry.plugins import families, model_source, model_sources
from windtunnel.reporting.answers import EstimateAnswer, PlanAnswer, QueriesAnswer, RoomAnswer, SeenAnswer

_NUMBERS = ("samples", "tried", "widest interval", "time", "memory", "disk")
_COLUMNS = headings(
    "entry", "samples", "tried", "time", "memory", "disk", "not measured", typed=("entry",), right=_NUMBERS
)
_PLAN = headings("entry", "samples", "widest interval", "time", typed=("entry",), right=_NUMBERS)
_QUERIES = headings(
    "stage or entry", "samples", "at most", "price", typed=("stage or entry",), right=("samples", "at most", "price")
)
_SAMPLES = headings("sample", "label", "prediction", "confidence", "input", right=("confidence", "input"))
_LONG = 60.0  # seconds from which more workers are worth their start
PICTURE = REPORTS / "check.png"
# Where 50 samples tell nothing, more are asked about, as many as take about so long.
_SECONDS, _MOST = 8.0, 1000
_MOST_LARGER = 4  # images of their own size that have more pixels than so many times the resized ones are not tried
# (how many samples, whether at the size that they are stored in) -> so many of the same source; None where loading them is
# not quick, or they are given at their own size anyway.
Reload = Callable[[int, bool], Dataset | None]
# A line per mistake; what the model sees, None where it was asked nothing; and what the run needs.
Checked = tuple[list[str], SeenAnswer | None, RoomAnswer | None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurements that `check` makes. estimate: one batch of every entry. minutes, width: for which it proposes samples."""

    estimate: bool = False
    minutes: float | None = None
    width: float | None = None


NO_ESTIMATE = Measurement()


def check_compatibility(
    params: Params, console: Console, queries: int | None = None, measurement: Measurement = NO_ESTIMATE
) -> Checked:
    """Load and describe the data and the model; print a line per assessment that cannot run on them, the model's inputs, and
    the memory and disk space that the run needs.

    queries: how many a Python `predict` may get. measurement: whether to measure a batch of every entry, if none is refused.
    """
    view, started = view_of(params.model), time.monotonic()
    assessed, train = load_dataset(params.data, params.seed, view)
    if params.data.slices:
        read_slices(params.data.slices, assessed)
    each = (time.monotonic() - started) / max(len(assessed), 1)

    def reload(n: int, at_own_size: bool) -> Dataset | None:
        has_own_transforms = view is not None and params.data.size is None and params.data.crop is None
        if each * n > _SECONDS or (at_own_size and not (has_own_transforms and params.model.path)):
            return None
        samples = params.data.samples.model_copy(update={"n": n, "selection": "stratified"})
        channels = assessed.inputs.shape[1] if at_own_size else params.data.channels
        data = params.data.model_copy(update={"samples": samples, "channels": channels})
        return load_dataset(data, params.seed, None if at_own_size else view)[0]

    shape = "x".join(map(str, assessed.inputs.shape[1:]))
    console.print(
        f"{OK} data: {len(assessed)} samples of {shape}, {assessed.num_classes} classes"
        + ("" if assessed.labelled else ", no labels: the model's predictions are the reference")
    )
    classifier = preview_classifier(params.model, assessed, train, params.device, params.tracking.uri)
    console.print(f"{OK} model: {classifier.source} ({', '.join(sorted(classifier.capabilities))})")
    requested = [(f"{family}.{name}", entry.samples.n) for family, name, entry in entries(params)]
    counts = [too_many(where, n, len(assessed)) for where, n in [("data", params.data.samples.n), *requested]]
    for note in filter(None, [turned_pictures(params.data, assessed.ids), *counts]):
        console.print(f"{WARN} {escape(note)}")
    mistakes = _generator_mistakes(params, assessed, train)
    for family, name, entry in entries(params):
        with _collected(mistakes):
            plan = PlannedRun(f"{family}.{name}", entry, params.budget, classifier, assessed)
            for note in families()[family].preflight(plan):
                console.print(f"{WARN} {escape(note)}")
    mistakes += _transfer_mistakes(params, assessed)
    if mistakes and params.model.source == "function":
        return mistakes, None, None  # before a query that may cost money
    queries_of_run = print_queries(params, assessed, console) if params.model.source == "function" else []
    failures, look = check_model(params, classifier, assessed, console, queries, reload)
    mistakes += failures
    refused, needs = needs_of(params, classifier, assessed, train, console)
    needs = needs.model_copy(update={"queries": queries_of_run})
    mistakes += refused
    if measurement.estimate and not mistakes:
        needs = print_estimate(params, classifier, assessed, train, console, needs, measurement)
    return mistakes, look, needs


def check_model(
    params: Params,
    classifier: Classifier,
    assessed: Dataset,
    console: Console,
    queries: int | None = None,
    reload: Reload | None = None,
) -> tuple[list[str], SeenAnswer | None]:
    """Return the sanity checks of group A that need no assessment: a line per failure, and what the model sees; warnings are printed.

    A Python `predict` is asked about as many samples as `queries` allow, and how many queries that is, is said before.
    """
    module, n = classifier.module, len(assessed)
    if isinstance(module, PredictFunction):
        assessed = affordable(assessed, queries)
        most = queries_before_any_assessment(len(assessed))
        console.print(
            f"{OK} model: will receive at most {most} queries ({counted(len(assessed), 'sample')}); --queries sets another limit"
        )
        if params.sanity.profile != "stored":
            console.print(
                f"{OK} sanity: the checks of the run will use at most {params.sanity.queries} more queries, "
                f"half of them for the witness; sanity.queries sets another limit"
            )
        if not len(assessed):
            return [], None
    subject = subject_of(classifier, assessed, params.seed)
    findings = before_any_assessment(params, subject, is_part=len(assessed) < n)
    if isinstance(module, PredictFunction):
        repeated = f", {module.queries_repeated} queries more in calls that failed" if module.queries_repeated else ""
        console.print(f"{OK} model: got {module.queries_asked} queries in {module.calls_made} calls{repeated}")
    look = show_what_it_sees(subject, console, reload, params.model)
    flagged = [f for f in findings if f.status in (Status.FAIL, Status.WARN)]
    for finding in flagged:
        if finding.status is Status.WARN:
            console.print(f"{WARN} sanity {finding.id}, {finding.title}: {finding.reason}. {finding.remedy}")
    if not flagged:
        console.print(f"{OK} sanity: {sum(f.status is Status.PASS for f in findings)} checks of model and input passed")
    failures = [
        f"sanity {f.id}, {f.title}: {f.reason or f.value}. {f.remedy}" for f in flagged if f.status is Status.FAIL
    ]
    return failures, look


@contextmanager
def _collected(mistakes: list[str]) -> Iterator[None]:
    """Append the line of a UserError in the block to `mistakes`, and go on."""
    try:
        yield
    except UserError as error:
        mistakes.append(str(error))


def _transfer_mistakes(params: Params, assessed: Dataset) -> list[str]:
    """List the mistakes in the further models that attacks are tried on."""
    mistakes: list[str] = []
    for name, entry in params.attacks.items():
        for key, path in entry.transfer_to.items():
            where = f"attacks.{name}.transfer_to.{key}"
            with _collected(mistakes):
                named_classifier(where, path, assessed, params.device, params.tracking.uri)
    return mistakes


def _generator_mistakes(params: Params, assessed: Dataset, train: Dataset | None) -> list[str]:
    """List the mistakes in `generators` and in the further models of `latent`; empty where nothing uses them."""
    mistakes: list[str] = []
    if not params.latent:
        return mistakes
    if params.generators.source == "none":
        mistakes.append("generators.source: none, but latent has entries; set train, or bring a function")
    generators = None
    with _collected(mistakes):
        generators = check_generators(params.generators, train, params.device, assessed)
    for name, entry in params.latent.items():
        with _collected(mistakes):
            if generators:
                generators.require_length_matters(f"latent.{name}")
            load_models(f"latent.{name}", entry, assessed, params.device, params.tracking.uri)
    return mistakes


def print_queries(params: Params, assessed: Dataset, console: Console) -> list[QueriesAnswer]:
    """Print and return the most queries that each stage of a run sends to a Python predict, and what they cost at model.price."""
    shape, n_samples = tuple(assessed.inputs.shape[1:]), len(assessed)
    answers = [QueriesAnswer(name="clean", samples=n_samples, most=n_samples)]
    for family, name, entry in entries(params):
        n = min(entry.samples.n or n_samples, n_samples)
        most = families()[family].most_rows(entry, shape, n)
        answers.append(QueriesAnswer(name=f"{family}.{name}", samples=n, most=most))
    if params.sanity.profile != "stored":
        answers.append(QueriesAnswer(name="sanity", samples=n_samples, most=params.sanity.queries))
    total = sum(answer.most or 0 for answer in answers)

    def cells(most: int | None) -> tuple[str, ...]:
        price = f"{most * params.model.price:,.2f}" if params.model.price and most is not None else ""
        return ("no limit" if most is None else f"{most:,}", price)

    rows = [(answer.name, str(answer.samples), *cells(answer.most)) for answer in answers]
    print_table(console, _QUERIES, [("", [*rows, ("all of them", "", *cells(total))])], title="queries of a whole run")
    if unbounded := [answer.name for answer in answers if answer.most is None]:
        names = escape(", ".join(unbounded))
        advice = "max_queries of an entry of `queries` sets one"
        console.print(f"{WARN} without a limit, and not in the sum: {names}; {advice}", soft_wrap=True)
    return answers


def needs_of(
    params: Params, classifier: Classifier, assessed: Dataset, train: Dataset | None, console: Console
) -> tuple[list[str], RoomAnswer]:
    """Return (a line where the disk is too small, what is needed); says how large results and memory will be."""
    disk = estimation.total(estimation.sizes_of(params, assessed, train))
    memory = estimation.memory_of(params, classifier, assessed)
    refused, tight = estimation.no_room(params, assessed, train)
    console.print(
        f"{OK} needs: about {gigabytes(disk)} on disk for the results (storage.inputs: "
        f"{params.storage.inputs}), {gigabytes(memory)} of memory"
    )
    if tight:
        console.print(f"{WARN} {escape(tight)}")
    workers = estimation.workers_there()
    answer = RoomAnswer(disk_bytes=disk, memory_bytes=memory, workers=workers, seconds=None, entries=[])
    return [refused] if refused else [], answer


def print_estimate(
    params: Params,
    classifier: Classifier,
    assessed: Dataset,
    train: Dataset | None,
    console: Console,
    needs: RoomAnswer,
    measurement: Measurement = NO_ESTIMATE,
) -> RoomAnswer:
    """`needs` with what a batch of each entry says of all its samples, printed as a table, and with the proposed samples."""
    estimated = list(estimation.estimates(params, classifier, assessed, train, needs.workers))
    memory = max([needs.memory_bytes, *(row.memory_bytes for row in estimated)])
    checks = estimation.checks_cost(params, classifier, assessed, estimated)
    seconds = sum(row.seconds for row in estimated) + (checks.seconds if checks else 0.0)
    total = ("all of them", "", "", _time(seconds), gigabytes(memory), gigabytes(needs.disk_bytes), "")
    rows = [_row(row) for row in estimated]
    title = f"from one batch of each, on {counted(needs.workers, 'worker')}"
    print_table(console, _COLUMNS, [("", [*rows, total])], title=title)
    if checks:
        console.print(f"of that the sanity checks: {checks}", soft_wrap=True)
    for row in estimated:
        if row.advice:
            console.print(f"{WARN} {escape(row.advice)}", soft_wrap=True)
    processors = usable_processors()
    if needs.workers == 1 < processors and seconds > _LONG:
        shared = f"WINDTUNNEL_EXECUTOR=processes:{processors} dvc repro"
        console.print(
            f"{WARN} one of {processors} processors does this alone; `{shared}` shares it, with equal results"
        )
    attacks = estimation.attack_seconds(estimated)
    surcharge = checks.witness * checks.each / attacks if checks and attacks else 0.0
    planned = _print_plan(params, estimated, assessed, console, measurement, surcharge)
    answers = [EstimateAnswer.model_validate(row, from_attributes=True) for row in estimated]
    return needs.model_copy(update={"plan": planned, "seconds": seconds, "memory_bytes": memory, "entries": answers})


def _print_plan(
    params: Params,
    estimated: list[Estimate],
    assessed: Dataset,
    console: Console,
    measurement: Measurement,
    surcharge: float,
) -> list[PlanAnswer]:
    """Print and return the samples of each entry for the minutes and the width; nothing where neither is given."""
    if measurement.minutes is None and measurement.width is None:
        return []
    available, selections = len(assessed), {f"{f}.{n}": entry.samples.selection for f, n, entry in entries(params)}
    seconds = measurement.minutes and measurement.minutes * 60
    planned = estimation.plan(estimated, available, seconds, measurement.width, surcharge)
    rows = [(p.name, str(p.samples), f"{p.width:.3f}", _time(p.seconds)) for p in planned]
    total = ("all of them", "", "", _time(sum(p.seconds for p in planned)))
    print_table(console, _PLAN, [("", [*rows, total])], title="proposed samples")
    if unmeasured := [row.name for row in estimated if row.skipped]:
        console.print(f"{WARN} without a proposal, since not measured: {escape(', '.join(unmeasured))}")
    if measurement.width and available < (needed := estimation.samples_for(measurement.width)):
        console.print(
            f"{WARN} width {measurement.width:g} needs {needed} samples, and the data has {available}; raise data.samples.n"
        )
    changed = [p for p in planned if p.samples != next(row.samples for row in estimated if row.name == p.name)]
    console.print("\nLines for params.yaml:" if changed else "params.yaml has these samples already.")
    lines: dict[str, list[str]] = {}
    for p in changed:
        family, name = p.name.split(".", 1)
        # A part that is drawn by `first` gives no valid interval.
        selection = selections[p.name]
        drawn = selection if selection != "first" or p.samples == available else "stratified"
        lines.setdefault(family, []).append(f"  {name}:\n    samples: {{n: {p.samples}, selection: {drawn}}}")
    for family, of_family in lines.items():
        console.print("\n".join([f"{family}:", *of_family]), markup=False, highlight=False, soft_wrap=True)
    return planned


def _row(row: Estimate) -> tuple[str, ...]:
    disk = gigabytes(row.disk_bytes)
    if row.skipped:
        return row.name, str(row.samples), "", "", "", disk, row.skipped
    return row.name, str(row.samples), str(row.batch), _time(row.seconds), gigabytes(row.memory_bytes), disk, ""


def _time(seconds: float) -> str:
    """`0:02:07`; with a digit more below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))


def show_what_it_sees(
    subject: Subject, console: Console, reload: Reload | None = None, model: Model | None = None
) -> SeenAnswer:
    """Print the table, the accuracy and a line per suspicion, write the picture, and return all of it.

    reload: for further samples, and for images of their own size. model: as params.yaml has it, for lines to paste.
    A `predict` function is not called.
    """
    classifier, data = subject.classifier, subject.dataset
    trained = classifier.digest != UNTRAINED and RANDOM_WEIGHTS not in classifier.caveats
    table = rows(data, subject.clean_logits)
    cells = [(r.name, r.label, r.prediction, f"{r.confidence:.0%}", f"{r.low:.3g} to {r.high:.3g}") for r in table]
    title = "what the model sees, after preparation" + ("" if trained else "; it is not trained")
    print_table(console, _SAMPLES, [("", cells)], title)
    has_picture = data.is_image and picture_mode() != "none"
    if has_picture:
        picture(data, table, PICTURE)
        console.print(f"{OK} the same as a picture: {PICTURE}")
    few = chosen(data)
    low, high = float(data.inputs.min()), float(data.inputs.max())
    look = SeenAnswer(
        samples=table,
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
    guess = 1 / data.num_classes
    is_guess = (
        accuracy.low <= guess and accuracy.value < (1 + guess) / 2
    )  # 3 of 3 are no guess, though their interval is wide
    console.print(
        f"{WARN if is_guess else OK} clean accuracy {accuracy.value:.1%} \\[{accuracy.low:.1%}, {accuracy.high:.1%}] on "
        f"{counted(len(few), 'sample')}{f', as by guessing among {data.num_classes} classes' if is_guess else ''}; "
        f"inputs span {low:.3g} to {high:.3g}"
    )
    of_size = _size_suspicion(subject, reload) if reload else None
    suspicion = of_size or suspicion_of(subject, reload)
    lines = [suspicion.line if suspicion else ""]
    if not isinstance(classifier.module, PredictFunction):
        lines.append(twice_normalised(classifier))
        lines.append("" if of_size else invisible_channels(classifier, data.subset(few), suspicion))
    look.suspicions = [line for line in lines if line]
    if of_size:
        look.proposal = ["data:", f"  resize: {list(of_size.size)}"]
    elif suspicion and model:
        look.proposal = _proposal(suspicion, model, tuple(data.inputs.shape[1:]))
    for line in look.suspicions:
        console.print(f"{WARN} {escape(line)}")
    return look


def _size_suspicion(subject: Subject, reload: Reload) -> Suspicion | None:
    """Compare images of their own size with those that the transforms of the model's library resized; None if they are not better."""
    with suppress(UserError):  # images of several sizes
        resized = subject.dataset.inputs[0].numel()
        smallest = reload(1, True)
        if smallest and smallest.inputs.numel() <= _MOST_LARGER * resized and (data := reload(MEASURED, True)):
            scaled = reload(MEASURED, False)
            return own_size_suspicion(subject.classifier, scaled, data) if scaled else None
    return None


def suspicion_of(subject: Subject, reload: Reload | None = None) -> Suspicion | None:
    """On 50 samples, and where they tell nothing on as many as are quick."""
    if isinstance(subject.classifier.module, PredictFunction):  # its answers may cost money
        return _on(subject, chosen(subject.dataset), calls_model=False)
    few, started = chosen(subject.dataset), time.monotonic()
    suspicion = _on(subject, few, calls_model=True)
    each = (time.monotonic() - started) / max(len(few), 1)
    more = min(_MOST, int(_SECONDS / max(each, 1e-6)))
    if suspicion or more <= MEASURED:
        return suspicion
    if reload and len(subject.dataset) < more and (data := reload(more, False)):
        subject = subject_of(subject.classifier, data, subject.seed)
    return _on(subject, chosen(subject.dataset, more), calls_model=True)


def _on(subject: Subject, samples: Tensor, *, calls_model: bool) -> Suspicion | None:
    return suspicion(
        subject.classifier if calls_model else None, subject.dataset.subset(samples), subject.clean_logits[samples]
    )


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
