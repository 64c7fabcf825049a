"""`windtunnel batches`: the batch size of every entry, measured once and written into params.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from windtunnel.cli.tables import Column, print_table, table_console
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.layout import PARAMS_FILE
from windtunnel.core.watched import run_watched

if TYPE_CHECKING:
    from windtunnel.operations.batch_sizes import Choice
    from windtunnel.params.schema import Params

_COLUMNS = (
    Column("entry", typed=True), Column("before", right=True), Column("after", right=True), Column("tried", right=True),
    Column("s/sample", right=True), Column("memory", right=True), Column("other results", right=True), Column("because"),
)  # fmt: skip


@click.command()
@click.argument("names", metavar="[ENTRY]...", nargs=-1)
@click.option("--params", "path", type=click.Path(path_type=Path), default=PARAMS_FILE, show_default=True)
@click.option("--force", is_flag=True, help="Also entries whose batch_size is in params.yaml already.")
@click.option("--dry-run", is_flag=True, help="Measure and show; write nothing.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="Of the memory of the device (of a GPU, else of the machine) that there is for each worker, what a batch may take.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="The most that one trial should take.",
)
def batches(*, names: tuple[str, ...], path: Path, force: bool, dry_run: bool, share: float, seconds: float) -> None:
    """Measure the batch size that suits each entry on this machine, and write it into params.yaml.

    The largest power of two that the memory holds, as long as a larger one is faster. It is measured once: written, it is recorded
    in what is resolved, and the same on every machine. A size that is in params.yaml stays.

    \b
    Examples:
      windtunnel batches --dry-run
      windtunnel batches
      windtunnel batches pgd crown --force --share 0.8
    """  # noqa: D301
    from windtunnel.operations.batch_sizes import write_sizes

    found, title = run_watched(_measured, path, names, force=force, share=share, seconds=seconds)
    console = table_console()
    print_table(console, _COLUMNS, [("", [_row(one) for one in found])], title=title)
    if drawn := [one.name for one in found if one.is_another and (one.random or one.different)]:
        text = "draws at random for a batch, or looks at all of it: another size gives other results, as another seed would"
        console.print(escape(f"{', '.join(drawn)}: {text}"), soft_wrap=True)
    if dry_run:
        return
    written = write_sizes(path, found)
    other = sum(one.is_another for one in found)
    text = f"written for {written} {'entry' if written == 1 else 'entries'}, another one than before for {other}"
    console.print(escape(f"{path}: batch_size is {text}; dvc repro computes these"), soft_wrap=True)


def _measured(
    path: Path, names: tuple[str, ...], *, force: bool, share: float, seconds: float
) -> tuple[list[Choice], str]:
    """(what suits each entry, on what) in a process of its own, so that a model which hangs, or ends its process, is told of."""
    import torch

    from windtunnel.boundary.data.load import load_dataset
    from windtunnel.boundary.models.load import preview_classifier
    from windtunnel.boundary.models.views import view_of
    from windtunnel.core.batches import progress_bar
    from windtunnel.evaluation.validate import validate
    from windtunnel.operations.batch_sizes import Limits, choices
    from windtunnel.operations.estimate import workers_there
    from windtunnel.operations.sizes import gigabytes
    from windtunnel.operations.trial import memory_of_a_worker
    from windtunnel.params.load import entries, read_params

    params = validate(read_params(path), str(path))
    _require_known(names, params)
    assessed, train = load_dataset(params.data, params.seed, view_of(params.model))
    classifier = preview_classifier(params.model, assessed, train, params.device, params.tracking.uri)
    workers = workers_there()
    if workers > 1:
        torch.set_num_threads(1)  # as each of them
    limits = Limits(int(share * memory_of_a_worker(classifier.device, workers)), seconds)
    found = []
    with progress_bar() as progress:
        bar = progress.add_task("batches", total=len(names) or sum(1 for _ in entries(params)))
        for one in choices(params, classifier, assessed, limits, only=names, force=force):
            found.append(one)
            progress.advance(bar)
    title = f"on {classifier.device.type}, at most {gigabytes(limits.memory)} for each of {workers} worker{'s' if workers > 1 else ''}"
    return found, title


def _row(one: Choice) -> tuple[str, ...]:
    from windtunnel.operations.sizes import gigabytes

    before = str(one.before) if one.written else f"({one.before})"
    if one.after is None:
        return one.name, before, "stays", str(one.tried or ""), "", "", "", one.why
    other = f"{one.different} of {one.compared}" if one.compared else ""
    return one.name, before, str(one.after), str(one.tried), f"{one.seconds:.2g}", gigabytes(one.memory), other, one.why


def _require_known(names: tuple[str, ...], params: Params) -> None:
    from windtunnel.params.load import entries

    known = [name for _, name, _ in entries(params)]
    for name in names:
        if name not in known:
            raise UserError(unknown_word("batches", name, known, what="an entry of params.yaml"))
