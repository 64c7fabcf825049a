"""Report the resources that a run needs, for `windtunnel check`: disk and memory, and with --estimate the time of each entry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from windtunnel.cli.output import headings, print_table
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.registry.plugins import families
from windtunnel.reporting.answers import EstimateAnswer, PlanAnswer, QueriesAnswer, RoomAnswer

if TYPE_CHECKING:
    from windtunnel.core.classifier import Classifier
    from windtunnel.core.dataset import Dataset
    from windtunnel.operations.estimate import Estimate

_NUMBERS = ("samples", "tried", "widest interval", "time", "memory", "disk")
_COLUMNS = headings(
    "entry", "samples", "tried", "time", "memory", "disk", "not measured", typed=("entry",), right=_NUMBERS
)
_PLAN = headings("entry", "samples", "widest interval", "time", typed=("entry",), right=_NUMBERS)
_QUERIES = headings(
    "stage or entry", "samples", "at most", "price", typed=("stage or entry",), right=("samples", "at most", "price")
)
_LONG = 60.0  # seconds from which more workers are worth their start


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurements that `check` makes. estimate: one batch of every entry. minutes, width: for which it proposes samples."""

    estimate: bool = False
    minutes: float | None = None
    width: float | None = None


NO_ESTIMATE = Measurement()


def print_queries(params: Params, assessed: Dataset, console: Console) -> list[QueriesAnswer]:
    """Print and return the most queries that each stage of a run sends to a Python predict, and what they cost at model.price."""
    shape, n_samples = tuple(assessed.inputs.shape[1:]), len(assessed)
    answers = [QueriesAnswer(name="clean", samples=n_samples, most=n_samples)]
    for family, name, entry in entries(params):
        n, most_rows = min(entry.samples.n or n_samples, n_samples), families()[family].most_rows
        answers.append(
            QueriesAnswer(name=f"{family}.{name}", samples=n, most=most_rows()(entry, shape, n) if most_rows else None)
        )
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
        console.print(f"[yellow]![/yellow] without a limit, and not in the sum: {names}; {advice}", soft_wrap=True)
    return answers


def needs_of(
    params: Params, classifier: Classifier, assessed: Dataset, train: Dataset | None, console: Console
) -> tuple[list[str], RoomAnswer]:
    """Return (a line where the disk is too small, what is needed); says how large results and memory will be."""
    from windtunnel.operations.estimate import workers_there
    from windtunnel.operations.sizes import gigabytes, memory_of, no_room, sizes_of, total

    disk, memory = total(sizes_of(params, assessed, train)), memory_of(params, classifier, assessed)
    refused, tight = no_room(params, assessed, train)
    console.print(
        f"[green]✓[/green] needs: about {gigabytes(disk)} on disk for the results (storage.inputs: "
        f"{params.storage.inputs}), {gigabytes(memory)} of memory"
    )
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
    measurement: Measurement = NO_ESTIMATE,
) -> RoomAnswer:
    """`needs` with what a batch of each entry says of all its samples, printed as a table, and with the proposed samples."""
    from windtunnel.operations.estimate import attack_seconds, checks_cost, estimates
    from windtunnel.operations.sizes import gigabytes

    estimated = list(estimates(params, classifier, assessed, train, needs.workers))
    memory = max([needs.memory_bytes, *(row.memory for row in estimated)])
    checks = checks_cost(params, classifier, assessed, estimated)
    seconds = sum(row.seconds for row in estimated) + (checks.seconds if checks else 0.0)
    total = ("all of them", "", "", _time(seconds), gigabytes(memory), gigabytes(needs.disk_bytes), "")
    rows = [_row(row) for row in estimated]
    workers = f"{needs.workers} worker{'s' if needs.workers > 1 else ''}"
    print_table(console, _COLUMNS, [("", [*rows, total])], title=f"from one batch of each, on {workers}")
    if checks:
        console.print(f"of that the sanity checks: {checks}", soft_wrap=True)
    for row in estimated:
        if row.advice:
            console.print(f"[yellow]![/yellow] {escape(row.advice)}", soft_wrap=True)
    processors = os.cpu_count() or 1
    if needs.workers == 1 < processors and seconds > _LONG:
        shared = f"WINDTUNNEL_EXECUTOR=processes:{processors} dvc repro"
        console.print(
            f"[yellow]![/yellow] one of {processors} processors does this alone; `{shared}` shares it, with equal results"
        )
    attacks = attack_seconds(estimated)
    surcharge = checks.witness * checks.each / attacks if checks and attacks else 0.0
    planned = _print_plan(params, estimated, assessed, console, measurement, surcharge)
    return needs.model_copy(
        update={
            "plan": planned,
            "seconds": seconds,
            "memory_bytes": memory,
            "entries": [
                EstimateAnswer(
                    name=row.name,
                    samples=row.samples,
                    batch=row.batch,
                    seconds=row.seconds,
                    memory_bytes=row.memory,
                    disk_bytes=row.disk,
                    skipped=row.skipped,
                    advice=row.advice,
                )
                for row in estimated
            ],
        }
    )


def _print_plan(
    params: Params,
    estimated: list[Estimate],
    assessed: Dataset,
    console: Console,
    measurement: Measurement,
    surcharge: float,
) -> list[PlanAnswer]:
    """Print and return the samples of each entry for the minutes and the width; nothing where neither is given."""
    from windtunnel.operations.planning import plan, samples_for

    if measurement.minutes is None and measurement.width is None:
        return []
    available, selections = len(assessed), {f"{f}.{n}": entry.samples.selection for f, n, entry in entries(params)}
    planned = plan(estimated, available, measurement.minutes and measurement.minutes * 60, measurement.width, surcharge)
    rows = [(p.name, str(p.samples), f"{p.width:.3f}", _time(p.seconds)) for p in planned]
    total = ("all of them", "", "", _time(sum(p.seconds for p in planned)))
    print_table(console, _PLAN, [("", [*rows, total])], title="proposed samples")
    if unmeasured := [row.name for row in estimated if row.skipped]:
        console.print(f"[yellow]![/yellow] without a proposal, since not measured: {escape(', '.join(unmeasured))}")
    if measurement.width and available < (needed := samples_for(measurement.width)):
        console.print(
            f"[yellow]![/yellow] width {measurement.width:g} needs {needed} samples, and the data has {available}; raise data.samples.n"
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
    return [PlanAnswer(name=p.name, samples=p.samples, width=p.width, seconds=p.seconds) for p in planned]


def _row(row: Estimate) -> tuple[str, ...]:
    from windtunnel.operations.sizes import gigabytes

    disk = gigabytes(row.disk)
    if row.skipped:
        return row.name, str(row.samples), "", "", "", disk, row.skipped
    return row.name, str(row.samples), str(row.batch), _time(row.seconds), gigabytes(row.memory), disk, ""


def _time(seconds: float) -> str:
    """`0:02:07`; with a digit more below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))
