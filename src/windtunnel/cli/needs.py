"""Report the resources that a run needs, for `windtunnel check`: disk and memory, and with --estimate the time of each entry."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from windtunnel.cli.tables import Column, print_table
from windtunnel.params.schema import Params
from windtunnel.reporting.answers import EstimateAnswer, RoomAnswer

if TYPE_CHECKING:
    from windtunnel.core.classifier import Classifier
    from windtunnel.core.dataset import Dataset
    from windtunnel.operations.estimate import Estimate

_COLUMNS = (
    Column("entry", typed=True), Column("samples", right=True), Column("tried", right=True), Column("time", right=True),
    Column("memory", right=True), Column("disk", right=True), Column("not measured"),
)  # fmt: skip
_LONG = 60.0  # seconds from which more workers are worth their start


def needs_of(
    params: Params, classifier: Classifier, assessed: Dataset, train: Dataset | None, console: Console
) -> tuple[list[str], RoomAnswer]:
    """(a line where the disk is too small, what is needed); says how large results and memory will be."""
    from windtunnel.operations.estimate import workers_there
    from windtunnel.operations.sizes import gigabytes, memory_of, no_room, sizes_of, total

    disk, memory = total(sizes_of(params, assessed, train)), memory_of(params, classifier, assessed)
    refused, tight = no_room(params, assessed, train)
    console.print(f"[green]✓[/green] needs: about {gigabytes(disk)} on disk for the results (storage.inputs: "
                  f"{params.storage.inputs}), {gigabytes(memory)} of memory")  # fmt: skip
    if tight:
        console.print(f"[yellow]![/yellow] {escape(tight)}")
    answer = RoomAnswer(disk_bytes=disk, memory_bytes=memory, workers=workers_there(), seconds=None, entries=[])
    return [refused] if refused else [], answer


def print_estimate(
    params: Params,
    classifier: Classifier,
    assessed: Dataset,
    train: Dataset | None,
    console: Console,
    needs: RoomAnswer,
) -> RoomAnswer:
    """`needs` with what a batch of each entry says of all its samples, printed as a table."""
    from windtunnel.operations.estimate import estimates, witness_seconds
    from windtunnel.operations.sizes import gigabytes

    found = list(estimates(params, classifier, assessed, train, needs.workers))
    memory = max([needs.memory_bytes, *(row.memory for row in found)])
    attacks = sum(row.seconds for row in found if row.name.startswith(("attacks.", "queries.")))
    witness = witness_seconds(params, classifier, assessed, attacks)
    seconds = sum(row.seconds for row in found) + witness
    total = ("all of them", "", "", _time(seconds), gigabytes(memory), gigabytes(needs.disk_bytes), "")
    rows = [_row(row) for row in found]
    workers = f"{needs.workers} worker{'s' if needs.workers > 1 else ''}"
    print_table(console, _COLUMNS, [("", [*rows, total])], title=f"from one batch of each, on {workers}")
    if witness:
        console.print(f"of that about {_time(witness)} for the witness of the sanity checks (D15)")
    for row in found:
        if row.advice:
            console.print(f"[yellow]![/yellow] {escape(row.advice)}", soft_wrap=True)
    processors = os.cpu_count() or 1
    if needs.workers == 1 < processors and seconds > _LONG:
        shared = f"WINDTUNNEL_EXECUTOR=processes:{processors} dvc repro"
        console.print(
            f"[yellow]![/yellow] one of {processors} processors does this alone; `{shared}` shares it, with equal results"
        )
    return needs.model_copy(
        update={
            "seconds": seconds,
            "memory_bytes": memory,
            "entries": [
                EstimateAnswer(
                    name=row.name, samples=row.samples, batch=row.batch, seconds=row.seconds, memory_bytes=row.memory,
                    disk_bytes=row.disk, skipped=row.skipped, advice=row.advice,
                )
                for row in found
            ],
        }
    )  # fmt: skip


def _row(row: Estimate) -> tuple[str, ...]:
    from windtunnel.operations.sizes import gigabytes

    disk = gigabytes(row.disk)
    if row.skipped:
        return row.name, str(row.samples), "", "", "", disk, row.skipped
    return row.name, str(row.samples), str(row.batch), _time(row.seconds), gigabytes(row.memory), disk, ""


def _time(seconds: float) -> str:
    """`0:02:07`; with a digit more below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))
