"""`windtunnel show`: the results of the last run in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from windtunnel.assessments.sweeps.report import print_report
from windtunnel.cli.tables import Column, print_table, table_console
from windtunnel.core.contracts import Json
from windtunnel.core.epsilons import epsilon_text
from windtunnel.core.errors import UserError
from windtunnel.core.files import METADATA_FILE, read_block
from windtunnel.core.layout import GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.core.metadata import read_metadata
from windtunnel.core.run_times import measured_run_times, run_time_metrics
from windtunnel.evaluation.sanity.findings import Row, counts, in_words, overall, read_sanity, rows_in, with_caveats
from windtunnel.evaluation.summary.class_rows import ENDS, MOST_CLASSES, gap_words, weakest_first
from windtunnel.evaluation.summary.headline import accuracy_key, leading
from windtunnel.evaluation.summary.meanings import MEANING

_SANDWICH = (
    Column("budget", typed=True), Column("certified", right=True), Column("true robust accuracy", right=True),
    Column("worst case", right=True), Column("attacked", right=True), Column("examined", right=True), Column("comes from"),
)  # fmt: skip
_ASSESSMENTS = (
    Column("assessment", typed=True), Column("algorithm", typed=True), Column("n", right=True), Column("accuracy", right=True),
    Column("of what"), Column("other metrics"), Column("caveats"),
)  # fmt: skip
_WHAT = {
    "adversarial_accuracy": "left by the attack", "certified_accuracy": "certified", "corrupted_accuracy": "corrupted",
    "lara": "lara, left in latent space", "clean_accuracy": "clean",
}  # fmt: skip


@click.command()
@click.argument("name", required=False)
@click.option("--caveats", is_flag=True, help="Also print every caveat in full.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
def show(*, name: str | None, caveats: bool, as_json: bool) -> None:
    """Show the sandwich, one row per assessment, and the gate; or every metric of one assessment.

    Assessments stand with those of the same budget: only those compare.

    \b
    Examples:
      windtunnel show
      windtunnel show pgd            all metrics and caveats of attacks.pgd
      windtunnel show --json | jq .assessments.pgd.metrics
    """  # noqa: D301
    console, checks = table_console(), rows_in(read_sanity(SANITY))
    if name:
        metadata = _shown(ROBUSTNESS / name if name != "summary" else SUMMARY, checks)
        if as_json:
            click.echo(json.dumps(metadata, indent=1))
        else:
            _show_one(metadata, console)
        return
    summary = _shown(SUMMARY, [])
    found = sorted(path.parent.name for path in ROBUSTNESS.glob(f"*/{METADATA_FILE}"))
    order = [str(n) for n in _list(_block(summary, "kwargs").get("assessments")) if n in found]
    rows = {n: _shown(ROBUSTNESS / n, checks) for n in ["clean", *order]}
    gate = read_block(GATE) if GATE.is_file() else None
    if as_json:
        from windtunnel.reporting.answers import ShowAnswer

        content = {"summary": summary, "assessments": rows, "checks": [dict(c) for c in checks], "gate": gate}
        click.echo(ShowAnswer.model_validate(content).text())
        return
    for failure in _list(_block(summary, "kwargs").get("hard_failures")):
        console.print(f"[bold red]NOT VALID[/bold red] {escape(str(failure))}", soft_wrap=True)
    _print_sandwich(summary, rows, console)
    _print_weakest_class(_block(summary, "metrics"), console)
    console.print()
    _print_assessments(rows, console)
    console.print()
    _print_words(rows, checks, console)
    if checks:
        number = counts(checks)
        console.print(
            f"sanity: [bold]{overall(number)}[/bold], {in_words(number)}  (windtunnel sanity)", soft_wrap=True
        )
    if caveats:
        for row_name, metadata in {**rows, "summary": summary}.items():
            _print_caveats(row_name, metadata, console)
    if isinstance(gate, dict):
        decision = str(gate.get("decision", "?")).replace("_", " ")
        console.print(f"gate: [bold]{escape(decision)}[/bold]  (windtunnel gate)")


def _print_sandwich(summary: Mapping[str, Json], rows: Mapping[str, Mapping[str, Json]], console: Console) -> None:
    metrics = _block(summary, "metrics")
    lines = []
    for i, layer in enumerate(_list(metrics.get("sandwich"))):
        assert isinstance(layer, dict)
        low, high = layer.get("certified_accuracy"), layer.get("worst_case_accuracy")
        where = _budget(layer)
        # A budget of one entry's own stands here because that entry worked in it, and says so.
        names = [name for name, m in rows.items() if _budget(_block(_block(m, "semantics"), "perturbation")) == where]
        why = "the global budget" if i == 0 else ", ".join(names)
        between = f"{_percent(low or 0.0)} to {_percent(metrics['clean_accuracy'] if high is None else high)}"
        lines.append((where, _rate(layer, "certified_accuracy"), between, _rate(layer, "worst_case_accuracy"),
                      str(layer.get("n_attacked", "")), str(layer.get("n_examined", "")), why))  # fmt: skip
    title = f"Robustness sandwich of {metrics.get('n_samples', '?')} samples, {_rate(metrics, 'clean_accuracy')} right without any change"
    print_table(console, _SANDWICH, [("", lines)], title)


def _print_weakest_class(metrics: Mapping[str, Json], console: Console) -> None:
    """A line for each end of the sandwich: the class that holds least, and how far the best is from it."""
    ends, classes = weakest_first(metrics)
    for i, end in enumerate(ends):
        weakest = min((row[i] for row in classes), key=lambda row: float(str(row["accuracy"])))
        console.print(
            f"weakest of {len(classes)} classes, {ENDS[end]}: [bold]'{escape(str(weakest['class']))}'[/bold], "
            f"{escape(_rate(weakest, 'accuracy'))} of {weakest['n']} samples; the best is {escape(gap_words(metrics, end))} above it",
            soft_wrap=not console.is_terminal,
        )


def _print_classes(metrics: Mapping[str, Json], console: Console) -> None:
    """The classes of a summary, weakest first, as many as one reads; nothing for any other assessment."""
    ends, classes = weakest_first(metrics)
    if not ends:
        return
    columns = (Column("class"), Column("n", right=True), *(Column(ENDS[end], right=True) for end in ends))
    rows = [(str(row[0]["class"]), str(row[0]["n"]), *(_rate(r, "accuracy") for r in row)) for row in classes]
    cut = f", the {MOST_CLASSES} weakest of {len(rows)} (--json has all)" if len(rows) > MOST_CLASSES else ""
    print_table(console, columns, [("", rows[:MOST_CLASSES])], f"Classes at the first budget{cut}")


def _print_assessments(rows: Mapping[str, Mapping[str, Json]], console: Console) -> None:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for name, metadata in rows.items():
        region, metrics = _block(_block(metadata, "semantics"), "perturbation"), _block(metadata, "metrics")
        key = accuracy_key(name, metrics)
        keys = leading(str(metadata.get("family", "")))
        others = ", ".join(f"{k} {_number(metrics[k])}" for k in keys if k in metrics and k != key and name != "clean")
        codes = sorted({str(c["code"]) for c in _list(metadata.get("caveats")) if isinstance(c, dict)})
        n = len(_list(_block(metadata, "kwargs").get("sample_names")))
        group = "without any change" if name == "clean" else _budget(region) or _suite(metadata)
        groups.setdefault(group, []).append(
            (name, f"{metadata['library']} {metadata['algorithm']}", str(n), _rate(metrics, key), _WHAT.get(key or "", ""), others,
             ", ".join(codes))
        )  # fmt: skip
    print_table(console, _ASSESSMENTS, list(groups.items()))


def _suite(metadata: Mapping[str, Json]) -> str:
    severities = [str(s) for s in _list(_block(metadata, "kwargs").get("severities"))]
    over = f", mean of severities {', '.join(severities)}" if severities else ""
    return f"{_block(_block(metadata, 'semantics'), 'perturbation').get('corruption_name', 'no budget')}{over}"


def _print_words(rows: Mapping[str, Mapping[str, Json]], checks: list[Row], console: Console) -> None:
    """What the codes of the caveats and the short names of the metrics stand for, each once."""
    titles = {str(check["id"]): str(check["title"]) for check in checks}
    seen: dict[str, str] = {}
    for name, metadata in rows.items():
        for caveat in _list(metadata.get("caveats")):
            assert isinstance(caveat, dict)
            code, text = str(caveat["code"]), str(caveat["text"])
            seen.setdefault(
                code, f"sanity check: {titles[code]} (windtunnel sanity --explain {code})" if code in titles else text
            )
        metrics = _block(metadata, "metrics")
        for key in leading(str(metadata.get("family", ""))):
            if key in metrics and key in MEANING and name != "clean":
                seen.setdefault(key, MEANING[key])
    for word, meaning in seen.items():
        console.print(f"[bold]{escape(word)}[/bold]: {escape(meaning)}", soft_wrap=not console.is_terminal)


def _show_one(metadata: Mapping[str, Json], console: Console) -> None:
    metrics = _block(metadata, "metrics")
    rows = [
        (key, _number(v) if not isinstance(v, list) else f"{len(v)} values", MEANING.get(key, ""))
        for key, v in metrics.items()
    ]
    where = _budget(_block(_block(metadata, "semantics"), "perturbation"))
    n = len(_list(_block(metadata, "kwargs").get("sample_names")))
    title = (
        f"{metadata['name']}: {metadata['library']} {metadata['algorithm']}{f', {where}' if where else ''}, {n} samples"
    )
    print_table(
        console, (Column("metric", typed=True), Column("value", right=True), Column("meaning")), [("", rows)], title
    )
    _print_classifiers(metrics, console)
    _print_classes(metrics, console)
    if "critical_epsilon_histogram" in metrics:
        print_report(dict(metadata), console)
    _print_caveats(str(metadata["name"]), metadata, console)


def _print_classifiers(metrics: Mapping[str, Json], console: Console) -> None:
    """The metrics of every classifier of a latent assessment, a column each; nothing where there is one."""
    rows = [row for row in _list(metrics.get("models")) if isinstance(row, dict)]
    if not rows:
        return
    columns = (Column("metric", typed=True), *(Column(str(row["model"]), right=True) for row in rows))
    ends = ("_ci_low", "_ci_high")
    keys = dict.fromkeys(key for row in rows for key in row if not key.endswith(ends) and key != "model")
    lines = [(key, *(f"{_number(row[key])}{_limits(row, key)}" if key in row else "-" for row in rows)) for key in keys]
    print_table(console, columns, [("", lines)], "Every classifier on the same codes")


def _limits(row: Mapping[str, Json], key: str) -> str:
    low, high = row.get(f"{key}_ci_low"), row.get(f"{key}_ci_high")
    return f" [{_number(low)}, {_number(high)}]" if low is not None and high is not None else ""


def _print_caveats(name: str, metadata: Mapping[str, Json], console: Console) -> None:
    for caveat in _list(metadata.get("caveats")):
        assert isinstance(caveat, dict)
        line = f"[yellow]{escape(name)}[/yellow] {escape(str(caveat['code']))}: {escape(str(caveat['text']))}"
        console.print(line, soft_wrap=not console.is_terminal)


def _shown(directory: Path, checks: list[Row]) -> dict[str, Json]:
    """An assessment's metadata with the caveats of the checks that flagged it, and what was measured of time, as plain JSON."""
    if not (directory / METADATA_FILE).is_file():
        raise UserError(
            f"{directory / METADATA_FILE}: no such file. Run dvc repro first, or see windtunnel show for the names there are"
        )
    shown: dict[str, Json] = with_caveats(read_metadata(directory), checks).model_dump(mode="json")
    shown["metrics"] = {**_block(shown, "metrics"), **run_time_metrics(measured_run_times(directory) or ())}
    return shown


def _block(metadata: Mapping[str, Json], key: str) -> dict[str, Json]:
    block = metadata.get(key, {})
    return block if isinstance(block, dict) else {}


def _list(value: Json) -> list[Json]:
    return list(value) if isinstance(value, list) else []


def _budget(region: Mapping[str, Json]) -> str:
    """`Linf 8/255`; `L0, no bound`; empty for what is no ball."""
    if "norm" not in region:
        return ""
    return (
        f"{region['norm']} {epsilon_text(float(str(region['epsilon'])))}"
        if "epsilon" in region
        else f"{region['norm']}, no bound"
    )


def _rate(metrics: Mapping[str, Json], key: str | None) -> str:
    if key is None or key not in metrics:
        return "-"
    low, high = metrics.get(f"{key}_ci_low"), metrics.get(f"{key}_ci_high")
    interval = f" [{_percent(low)}, {_percent(high)}]" if low is not None and high is not None else ""
    return f"{_percent(metrics[key])}{interval}"


def _percent(value: Json) -> str:
    return f"{float(str(value)):.1%}"


def _number(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
