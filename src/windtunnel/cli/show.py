"""`windtunnel show`: the results of the last run in the terminal."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windtunnel.assessments.sweeps.report import print_report
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import METADATA_FILE, read_block, read_metadata
from windtunnel.core.layout import GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.evaluation.sanity.findings import counts, in_words, overall, read_sanity, rows_in, with_caveats
from windtunnel.evaluation.summary.headline import HEADLINE, accuracy_key


@click.command()
@click.argument("name", required=False)
@click.option("--caveats", is_flag=True, help="Also print every caveat in full.")
def show(*, name: str | None, caveats: bool) -> None:
    """Show the sandwich, one row per assessment, and the gate; or every metric of one assessment.

    \b
    Examples:
      windtunnel show
      windtunnel show pgd            all metrics and caveats of attacks.pgd
    """  # noqa: D301
    console = Console()
    if name:
        metadata = _metadata(ROBUSTNESS / name if name != "summary" else SUMMARY)
        _show_one(with_caveats(metadata, rows_in(read_sanity(SANITY))), console)
        return
    summary = _metadata(SUMMARY)
    for failure in _list(_block(summary, "kwargs").get("hard_failures")):
        console.print(f"[bold red]NOT VALID[/bold red] {escape(str(failure))}")
    console.print(_sandwich(summary))
    found = sorted(path.parent.name for path in ROBUSTNESS.glob(f"*/{METADATA_FILE}"))
    order = [str(n) for n in _list(_block(summary, "kwargs").get("assessments")) if n in found]
    checks = rows_in(read_sanity(SANITY))
    rows = {n: with_caveats(_metadata(ROBUSTNESS / n), checks) for n in ["clean", *order]}
    console.print(_assessments(rows))
    if checks:
        number = counts(checks)
        console.print(f"sanity: [bold]{overall(number)}[/bold], {in_words(number)}  (windtunnel sanity)")
    if caveats:
        for row_name, metadata in {**rows, "summary": summary}.items():
            _print_caveats(row_name, metadata, console)
    if GATE.is_file():
        gate = read_block(GATE)
        console.print(
            f"gate: [bold]{escape(str(gate.get('decision', gate.get('verdict', '?'))))}[/bold]  (windtunnel gate)"
        )


def _sandwich(summary: dict[str, Json]) -> Table:
    metrics = _block(summary, "metrics")
    table = Table(title="Robustness sandwich: certified ≤ true robust accuracy ≤ worst case", header_style="bold")
    for column in ("budget", "certified", "true robust accuracy", "worst case", "clean", "samples"):
        table.add_column(column, justify="left" if column == "budget" else "right")
    clean = _rate(metrics, "clean_accuracy")
    for layer in _list(metrics.get("sandwich")):
        assert isinstance(layer, dict)
        low, high = layer.get("certified_accuracy"), layer.get("worst_case_accuracy")
        between = f"{_percent(low or 0.0)} … {_percent(metrics['clean_accuracy'] if high is None else high)}"
        table.add_row(
            f"{layer['norm']} {layer['epsilon']:.4g}",
            _rate(layer, "certified_accuracy"), between, _rate(layer, "worst_case_accuracy"), clean, str(layer["n"]),
        )  # fmt: skip
    return table


def _assessments(rows: dict[str, dict[str, Json]]) -> Table:
    table = Table(header_style="bold")
    for column in ("assessment", "algorithm", "accuracy", "other headline metrics", "caveats"):
        table.add_column(column, justify="right" if column == "accuracy" else "left")
    for name, metadata in rows.items():
        metrics = _block(metadata, "metrics")
        key = accuracy_key(name, metrics)
        keys = HEADLINE[str(metadata["assessment_kind"])]
        others = ", ".join(f"{k} {_number(metrics[k])}" for k in keys if k in metrics and k != key)
        codes = sorted({str(c["code"]) for c in _list(metadata.get("caveats")) if isinstance(c, dict)})
        accuracy = f"{_rate(metrics, key)} {key.removesuffix('_accuracy')}" if key else "-"
        table.add_row(name, f"{metadata['library']} {metadata['algorithm']}", accuracy, others, ", ".join(codes))
    return table


def _show_one(metadata: dict[str, Json], console: Console) -> None:
    table = Table(title=f"{metadata['name']}: {metadata['library']} {metadata['algorithm']}", header_style="bold")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for key, value in _block(metadata, "metrics").items():
        table.add_row(key, _number(value) if not isinstance(value, list) else f"{len(value)} values")
    console.print(table)
    if "critical_epsilon_histogram" in _block(metadata, "metrics"):
        print_report(metadata, console)
    _print_caveats(str(metadata["name"]), metadata, console)


def _print_caveats(name: str, metadata: dict[str, Json], console: Console) -> None:
    for caveat in _list(metadata.get("caveats")):
        assert isinstance(caveat, dict)
        console.print(f"[yellow]{name}[/yellow] {escape(str(caveat['code']))}: {escape(str(caveat['text']))}")


def _metadata(directory: Path) -> dict[str, Json]:
    path = directory / METADATA_FILE
    if not path.is_file():
        raise UserError(f"{path}: no such file. Run dvc repro first, or see windtunnel show for the names there are")
    return read_metadata(directory)


def _block(metadata: dict[str, Json], key: str) -> dict[str, Json]:
    block = metadata.get(key, {})
    return block if isinstance(block, dict) else {}


def _list(value: Json) -> list[Json]:
    return list(value) if isinstance(value, list) else []


def _rate(metrics: dict[str, Json], key: str | None) -> str:
    if key is None or key not in metrics:
        return "-"
    low, high = metrics.get(f"{key}_ci_low"), metrics.get(f"{key}_ci_high")
    interval = f" [{_percent(low)}, {_percent(high)}]" if low is not None and high is not None else ""
    return f"{_percent(metrics[key])}{interval}"


def _percent(value: Json) -> str:
    return f"{float(str(value)):.1%}"


def _number(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
