"""`windtunnel check`: everything that can be refused, refused before hours are spent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape

from windtunnel.boundary.params import load_params
from windtunnel.boundary.params_file import read_params
from windtunnel.cli.needs import NO_ESTIMATE, Measurement
from windtunnel.core.errors import UserError
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.sanity.check import Status
from windtunnel.evaluation.validate import validate
from windtunnel.operations.dvc_files import missing_references, require_whole_files
from windtunnel.operations.project.write import GRAPH
from windtunnel.params.load import check_whole, entries
from windtunnel.params.schema import Params
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.registry.plugins import families
from windtunnel.runtime.supervised import run_watched

if TYPE_CHECKING:
    from windtunnel.cli.seen import Wider
    from windtunnel.core.classifier import Classifier
    from windtunnel.core.dataset import Dataset
    from windtunnel.reporting.answers import RoomAnswer, SeenAnswer

    Seen = tuple[
        list[str], SeenAnswer | None
    ]  # a line per mistake; what the model sees, None where it was asked nothing
    Checked = tuple[list[str], SeenAnswer | None, RoomAnswer | None]  # and what the run needs


@click.command()
@click.option("--params", "path", type=click.Path(path_type=Path), default=PARAMS_FILE, show_default=True)
@click.option(
    "--queries",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Most queries (samples) to send to a Python predict (model.source: function).",
)
@click.option("--estimate", is_flag=True, help="Run one batch of every entry: time, memory and disk of the whole job.")
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), help="Propose samples that fit this time; estimates."
)
@click.option(
    "--width",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Propose samples at which no 95 % interval of a rate is wider, e.g. 0.05; estimates.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
def check(
    *, path: Path, queries: int, estimate: bool, minutes: float | None, width: float | None, as_json: bool
) -> None:
    """Validate params, data, model, and that every assessment can run on them. Exit code 2 if not.

    A model that `train` has yet to make is checked as it will be: untrained, of the same shape.

    \b
    Examples:
      windtunnel check
      windtunnel check --params experiments/wide.yaml
      windtunnel check --estimate
      windtunnel check --minutes 30 --width 0.05
    """  # noqa: D301
    measurement = Measurement(estimate or minutes is not None or width is not None, minutes, width)
    if as_json:
        _as_json(path, queries, measurement)
        return
    mistakes, _, _ = run_watched(_check, path, queries, measurement)
    if mistakes:
        raise UserError("\n".join(mistakes))


def _as_json(path: Path, queries: int, measurement: Measurement) -> None:
    """Print the answer on stdout; exit with code 2 where there is a mistake."""
    from windtunnel.core.errors import USER_ERROR
    from windtunnel.reporting.answers import CheckAnswer

    number = 0
    mistakes: list[str] = []
    look: SeenAnswer | None = None
    needs: RoomAnswer | None = None
    try:
        # What a model of the user's prints is no part of the answer.
        mistakes, look, needs = run_watched(_check, path, queries, measurement, quiet=True)
        number = sum(1 for _ in entries(load_params(path)))
    except UserError as error:
        mistakes = str(error).splitlines()
    click.echo(CheckAnswer(ok=not mistakes, assessments=number, mistakes=mistakes, seen=look, needs=needs).text())
    if mistakes:
        raise SystemExit(USER_ERROR)


def _check(path: Path, queries: int, measurement: Measurement, *, quiet: bool = False) -> Checked:
    """In a process of its own, so that a model which hangs, or ends its process, cannot pass for one that was checked."""
    if quiet:
        os.dup2(2, 1)  # stdout becomes stderr
    console = Console(quiet=quiet)
    require_whole_files()
    raw = read_params(path)
    params = validate(raw, str(path))
    check_whole(path, raw)
    console.print(
        f"[green]✓[/green] {path}: {sum(1 for _ in entries(params))} assessments, budget "
        f"{place_text(params.budget.norm, params.budget.epsilon)}"
    )
    mistakes, look, needs = check_compatibility(params, console, queries, measurement)
    mistakes += missing_references(Path(GRAPH), raw) if path == PARAMS_FILE else []
    if not mistakes:
        console.print("[green]✓[/green] every assessment fits the model and the data")
    if look and look.proposal:
        console.print("\nThe samples say that params.yaml should have:")
        console.print("\n".join(look.proposal), markup=False, highlight=False, soft_wrap=True)
    return mistakes, look, needs


def check_compatibility(
    params: Params, console: Console, queries: int | None = None, measurement: Measurement = NO_ESTIMATE
) -> Checked:
    """Load and describe the data and the model; print a line per assessment that cannot run on them, the model's inputs, and
    the memory and disk space that the run needs.

    queries: how many a Python `predict` may get. measurement: whether to measure a batch of every entry, if none is refused.
    """
    from windtunnel.boundary.data.load import load_dataset
    from windtunnel.boundary.data.slices import read_slices
    from windtunnel.boundary.models.load import preview_classifier
    from windtunnel.boundary.models.views import view_of
    from windtunnel.cli.needs import needs_of, print_estimate, print_queries
    from windtunnel.cli.seen import SECONDS
    from windtunnel.core.dataset import too_many

    view, started = view_of(params.model), time.monotonic()
    assessed, train = load_dataset(params.data, params.seed, view)
    if params.data.slices:
        read_slices(params.data.slices, assessed)
    each = (time.monotonic() - started) / max(len(assessed), 1)

    def wider(n: int) -> Dataset | None:
        if each * n > SECONDS:
            return None
        samples = params.data.samples.model_copy(update={"n": n, "selection": "stratified"})
        return load_dataset(params.data.model_copy(update={"samples": samples}), params.seed, view)[0]

    shape = "x".join(map(str, assessed.inputs.shape[1:]))
    console.print(
        f"[green]✓[/green] data: {len(assessed)} samples of {shape}, {assessed.num_classes} classes"
        + ("" if assessed.labelled else ", no labels: the model's predictions are the reference")
    )
    classifier = preview_classifier(params.model, assessed, train, params.device, params.tracking.uri)
    console.print(f"[green]✓[/green] model: {classifier.source} ({', '.join(sorted(classifier.capabilities))})")
    requested = [
        ("data", params.data.samples.n),
        *((f"{f}.{name}", entry.samples.n) for f, name, entry in entries(params)),
    ]
    for note in filter(None, (too_many(where, n, len(assessed)) for where, n in requested)):
        console.print(f"[yellow]![/yellow] {escape(note)}")
    mistakes = _generator_mistakes(params, assessed, train)
    for family, name, entry in entries(params):
        try:
            preflight = families()[family].preflight()
            notes: Iterable[str] | None = preflight(f"{family}.{name}", entry, params.budget, classifier, assessed)
            for note in notes or ():
                console.print(f"[yellow]![/yellow] {escape(note)}")
        except UserError as error:
            mistakes.append(str(error))
    mistakes += _transfer_mistakes(params, assessed)
    if mistakes and params.model.source == "function":
        return mistakes, None, None  # before a query that may cost money
    queries_of_run = print_queries(params, assessed, console) if params.model.source == "function" else []
    failures, look = check_model(params, classifier, assessed, console, queries, wider)
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
    wider: Wider | None = None,
) -> Seen:
    """Return the sanity checks of group A that need no assessment: a line per failure, and what the model sees; warnings are printed.

    A Python `predict` is asked about as many samples as `queries` allow, and how many queries that is, is said before.
    """
    from windtunnel.boundary.models.backends import PredictFunction
    from windtunnel.cli.seen import show_what_it_sees
    from windtunnel.core.subject import subject_of
    from windtunnel.evaluation.sanity.run import affordable, before_any_assessment, queries_before_any_assessment

    module = classifier.module
    if isinstance(module, PredictFunction):
        assessed = affordable(assessed, queries)
        most = queries_before_any_assessment(len(assessed))
        console.print(
            f"[green]✓[/green] model: will receive at most {most} queries ({len(assessed)} samples); "
            f"--queries sets another limit"
        )
        if params.sanity.profile != "stored":
            console.print(
                f"[green]✓[/green] sanity: the checks of the run will use at most {params.sanity.queries} more queries, "
                f"half of them for the witness; sanity.queries sets another limit"
            )
        if not len(assessed):
            return [], None
    subject = subject_of(classifier, assessed, params.seed)
    findings = before_any_assessment(params, subject)
    if isinstance(module, PredictFunction):
        repeated = f", {module.queries_repeated} queries more in calls that failed" if module.queries_repeated else ""
        console.print(
            f"[green]✓[/green] model: got {module.queries_asked} queries in {module.calls_made} calls{repeated}"
        )
    look = show_what_it_sees(subject, console, wider, params.model)
    flagged = [f for f in findings if f.status in (Status.FAIL, Status.WARN)]
    for finding in flagged:
        if finding.status is Status.WARN:
            console.print(
                f"[yellow]![/yellow] sanity {finding.check.id}, {finding.check.title}: {finding.reason}. {finding.check.remedy}"
            )
    if not flagged:
        console.print(
            f"[green]✓[/green] sanity: {sum(f.status is Status.PASS for f in findings)} checks of model and input passed"
        )
    failures = [
        f"sanity {f.check.id}, {f.check.title}: {f.reason or f.value}. {f.check.remedy}"
        for f in flagged
        if f.status is Status.FAIL
    ]
    return failures, look


def _transfer_mistakes(params: Params, assessed: Dataset) -> list[str]:
    """List the mistakes in the further models that attacks are tried on."""
    from windtunnel.boundary.models.load import named_classifier

    mistakes = []
    for name, entry in params.attacks.items():
        for key, path in entry.transfer_to.items():
            try:
                named_classifier(
                    f"attacks.{name}.transfer_to.{key}", path, assessed, params.device, params.tracking.uri
                )
            except UserError as error:
                mistakes.append(str(error))
    return mistakes


def _generator_mistakes(params: Params, assessed: Dataset, train: Dataset | None) -> list[str]:
    """List the mistakes in `generators` and in the further models of `latent`; empty where nothing uses them."""
    if not params.latent:
        return []
    from windtunnel.assessments.latent.assess import load_models
    from windtunnel.boundary.generators.load import check_generators

    mistakes = []
    if params.generators.source == "none":
        mistakes.append("generators.source: none, but latent has entries; set train, or bring a function")
    generators = None
    try:
        generators = check_generators(params.generators, train, params.device, assessed)
    except UserError as error:
        mistakes.append(str(error))
    for name, entry in params.latent.items():
        try:
            if generators:
                generators.require_length_matters(f"latent.{name}")
            load_models(f"latent.{name}", entry, assessed, params.device, params.tracking.uri)
        except UserError as error:
            mistakes.append(str(error))
    return mistakes
