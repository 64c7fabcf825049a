"""`windtunnel show`: the results of the last run in the terminal."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from windtunnel.assessments.latent.tables import ClassifierMetrics
from windtunnel.assessments.sweeps.report import print_report
from windtunnel.cli.output import headings, print_line, print_table, table_console
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.core.sample_states import SampleState
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.gate.table import sentence
from windtunnel.evaluation.sanity.findings import with_caveats
from windtunnel.evaluation.summary.class_rows import ENDS, MOST_CLASSES, gap_words, weakest_first
from windtunnel.evaluation.summary.headline import leading
from windtunnel.evaluation.summary.meanings import meanings_of
from windtunnel.records.basis import basis_of, leading_metric, leading_words
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.findings import FindingRecord, counts, in_words, overall, read_findings
from windtunnel.records.gate import gate_json, read_gate
from windtunnel.records.layout import GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.records.metadata import Metadata, Metrics, Rate, Region, limits, rate, read_metadata, severities_of
from windtunnel.records.run_times import measured_run_times, run_time_metrics
from windtunnel.records.sandwich import layers_of, options_of_summary
from windtunnel.records.tables import table

_NUMBERS = ("certified", "worst case", "n", "of all samples", *(state.words for state in SampleState))
_SANDWICH = headings("budget", *_NUMBERS, "comes from", typed=("budget",), right=_NUMBERS)
_TYPED = ("assessment", "algorithm")
_ASSESSMENTS = headings(
    *_TYPED, "n", "accuracy", "metric", "other metrics", "caveats", typed=_TYPED, right=("n", "accuracy")
)


@click.command()
@click.argument("name", required=False)
@click.option("--caveats", is_flag=True, help="Also print every caveat in full.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
def show(*, name: str | None, caveats: bool, as_json: bool) -> None:
    """Show the sandwich, one row per assessment, and the gate; or every metric of one assessment.

    Assessments are grouped by budget: only those of one budget compare.

    \b
    Examples:
      windtunnel show
      windtunnel show pgd            all metrics and caveats of attacks.pgd
      windtunnel show --json | jq .assessments.pgd.metrics
    """  # noqa: D301
    console, checks = table_console(), read_findings(SANITY)
    if name:
        metadata = _shown(ROBUSTNESS / name if name != "summary" else SUMMARY, checks)
        if as_json:
            click.echo(json.dumps(metadata.model_dump(mode="json"), indent=1))
        else:
            _show_one(metadata, console)
        return
    summary = _shown(SUMMARY, ())
    options = options_of_summary(summary)
    available = {path.parent.name for path in ROBUSTNESS.glob(f"*/{METADATA_FILE}")}
    rows = {
        n: _shown(ROBUSTNESS / n, checks)
        for n in ["clean", *(n for n in (*options.assessments, *options.failed) if n in available)]
    }
    gate = read_gate(GATE) if GATE.is_file() else None
    if as_json:
        from windtunnel.reporting.answers import ShowAnswer

        gate_content = gate_json(gate) if gate else None
        click.echo(ShowAnswer(summary=summary, assessments=rows, checks=[*checks], gate=gate_content).text())
        return
    for failure in options.hard_failures:
        print_line(console, f"[bold red]NOT VALID[/bold red] {escape(failure)}")
    _print_sandwich(summary, rows, console)
    _print_weakest_class(summary.metrics, console)
    console.print()
    _print_assessments(rows, console)
    console.print()
    _print_words(rows, checks, console)
    if checks:
        number = counts(checks)
        line = f"sanity: [bold]{overall(number)}[/bold], {in_words(number)}  (windtunnel sanity)"
        print_line(console, line)
    if caveats:
        for row_name, metadata in {**rows, "summary": summary}.items():
            _print_caveats(row_name, metadata, console)
    if gate:
        print_line(console, f"gate: [bold]{escape(sentence(gate))}[/bold]  (windtunnel gate)")


def _print_sandwich(summary: Metadata, rows: Mapping[str, Metadata], console: Console) -> None:
    clean, lines, notes = rate(summary.metrics, "clean_accuracy"), [], []
    for i, layer in enumerate(layers_of(summary.metrics)):
        # A budget of one entry's own stands here because that entry worked in it, and says so.
        ball = Region(norm=layer.norm, epsilon=layer.epsilon)
        names = [name for name, m in rows.items() if _budget(m.semantics.perturbation) == _budget(ball)]
        low, high = layer.certified_all.value if layer.certified_all else 0.0, layer.robust_accuracy_at_most
        between = f"{low:.1%} to {high:.1%}" if high is not None else "-"
        counts_of_states = (str(layer.states.get(state, "-")) for state in SampleState)
        numbers = (_text(layer.certified), _text(layer.worst_case), str(layer.n_certified), between, *counts_of_states)
        lines.append((_budget(ball), *numbers, "the global budget" if i == 0 else ", ".join(names)))
        if layer.only_first:
            drawn = ", ".join(draw.key for draw in layer.draws)
            notes.append(f"{_budget(ball)}: {drawn} took the first samples, which is no unbiased estimate for all")
    title = f"Robustness sandwich of {summary.metrics.get('n_samples', '?')} samples, {_text(clean)} correct on clean inputs"
    print_table(console, _SANDWICH, [("", lines)], title)
    for note in notes:
        print_line(console, f"[yellow]{escape(note)}[/yellow]")


def _print_weakest_class(metrics: Metrics, console: Console) -> None:
    """Print a line for each bound of the sandwich: the weakest class, and its distance from the best."""
    ends, classes = weakest_first(metrics)
    at = "".join(f" at {_budget(Region(norm=first.norm, epsilon=first.epsilon))}" for first in layers_of(metrics)[:1])
    for i, end in enumerate(ends):
        weakest = min(classes, key=lambda row: row.rates[i].value)
        print_line(
            console,
            f"weakest of {len(classes)} classes{at}, {ENDS[end]}: [bold]'{escape(weakest.name)}'[/bold], "
            f"{escape(str(weakest.rates[i]))} of {weakest.n} samples; the best class is higher by {escape(gap_words(metrics, end))}",
        )


def _print_classes(metrics: Metrics, console: Console) -> None:
    """Print the classes of a summary, weakest first, as many as one reads; nothing for any other assessment."""
    ends, classes = weakest_first(metrics)
    if not ends:
        return
    numbers = ("n", *(ENDS[end] for end in ends))
    columns = headings("class", *numbers, right=numbers)
    rows = [(row.name, str(row.n), *map(str, row.rates)) for row in classes]
    cut = f", the {MOST_CLASSES} weakest of {len(rows)} (--json has all)" if len(rows) > MOST_CLASSES else ""
    print_table(console, columns, [("", rows[:MOST_CLASSES])], f"Classes at the first budget{cut}")


def _print_assessments(rows: Mapping[str, Metadata], console: Console) -> None:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for name, metadata in rows.items():
        metrics, key = metadata.metrics, leading_metric(metadata)
        further = [k for k in leading(metadata.family) if k in metrics and k != key and name != "clean"]
        codes = sorted({caveat.code for caveat in metadata.caveats})
        group = "clean inputs" if name == "clean" else _budget(metadata.semantics.perturbation) or _suite(metadata)
        algorithm, n = f"{metadata.library} {metadata.algorithm}", str(len(metadata.kwargs.sample_names))
        meaning = "failed: no result" if metadata.failure else leading_words(metadata)
        result, others = (
            _text(rate(metrics, key) if key else None),
            [f"{k} {_with_limits(metrics, k)}" for k in further],
        )
        row = (name, algorithm, n, result, meaning, ", ".join(others), ", ".join(codes))
        groups.setdefault(group, []).append(row)
    print_table(console, _ASSESSMENTS, list(groups.items()))


def _suite(metadata: Metadata) -> str:
    severities = severities_of(metadata.kwargs)
    over = f", mean of severities {', '.join(map(str, severities))}" if severities else ""
    return f"{metadata.semantics.perturbation.corruption_name or 'no budget'}{over}"


def _print_words(rows: Mapping[str, Metadata], checks: Sequence[FindingRecord], console: Console) -> None:
    """Explain the codes of the caveats and the short names of the metrics, each once."""
    titles = {check.id: check.title for check in checks}
    texts: dict[str, str] = {}
    for name, metadata in rows.items():
        for caveat in metadata.caveats:
            explained = f"sanity check: {titles.get(caveat.code)} (windtunnel sanity --explain {caveat.code})"
            texts.setdefault(caveat.code, explained if caveat.code in titles else caveat.text)
        meanings = meanings_of(metadata.family)
        for key in leading(metadata.family):
            if key in metadata.metrics and key in meanings and name != "clean":
                texts.setdefault(key, meanings[key])
    for word, meaning in texts.items():
        print_line(console, f"[bold]{escape(word)}[/bold]: {escape(meaning)}")


def _show_one(metadata: Metadata, console: Console) -> None:
    meanings, metrics, rows = meanings_of(metadata.family), metadata.metrics, []
    for key in _without_ends(metrics):
        value = metrics[key]
        text = f"{len(value)} values" if isinstance(value, list) else _with_limits(metrics, key)
        rows.append((key, text, str(basis_of(metadata, key)), meanings.get(key, "")))
    where, n = _budget(metadata.semantics.perturbation), len(metadata.kwargs.sample_names)
    title = f"{metadata.name}: {metadata.library} {metadata.algorithm}{f', {where}' if where else ''}, {n} samples"
    columns = headings("metric", "value [interval]", "of", "meaning", typed=("metric",), right=("value [interval]",))
    print_table(console, columns, [("", rows)], title)
    _print_classifiers(metrics, console)
    _print_classes(metrics, console)
    if "critical_epsilon_histogram" in metrics:
        print_report(metadata, console)
    _print_caveats(metadata.name, metadata, console)


def _print_classifiers(metrics: Metrics, console: Console) -> None:
    """Print the metrics of every classifier of a latent assessment, a column each; nothing where there is one."""
    rows = table(tuple[ClassifierMetrics, ...], metrics, "models")
    if not rows:
        return
    models = [row.model for row in rows]
    columns = headings("metric", *models, typed=("metric",), right=models)
    keys = dict.fromkeys(key for row in rows for key in _without_ends(row.numbers))
    lines = [(key, *(_with_limits(row.numbers, key) if key in row.numbers else "-" for row in rows)) for key in keys]
    print_table(console, columns, [("", lines)], "Every classifier on the same codes")


def _without_ends(metrics: Mapping[str, Json]) -> list[str]:
    """Return the names of the metrics, without the ends of intervals, which stand beside their metric."""
    # `accuracy_ci_low` is the contract's second name of the end that clean or corrupted accuracy has.
    ends = {f"{key}{end}" for key in (*metrics, "accuracy") for end in ("_ci_low", "_ci_high")}
    return [key for key in metrics if key not in ends]


def _with_limits(metrics: Mapping[str, Json], key: str) -> str:
    ends = limits(metrics, key)
    return _number(metrics[key]) + (f" [{_number(ends[0])}, {_number(ends[1])}]" if ends else "")


def _print_caveats(name: str, metadata: Metadata, console: Console) -> None:
    for caveat in metadata.caveats:
        line = f"[yellow]{escape(name)}[/yellow] {escape(caveat.code)}: {escape(caveat.text)}"
        print_line(console, line)


def _shown(directory: Path, checks: Sequence[FindingRecord]) -> Metadata:
    """Return an assessment's metadata with the caveats of the checks that flagged it, and its run times."""
    if not (directory / METADATA_FILE).is_file():
        raise UserError(
            f"{directory / METADATA_FILE}: no such file. Run dvc repro first, or see windtunnel show for the names there are"
        )
    metadata = with_caveats(read_metadata(directory), checks)
    measured = run_time_metrics(measured_run_times(directory) or ())
    return metadata.model_copy(update={"metrics": {**metadata.metrics, **measured}})


def _budget(region: Region) -> str:
    """`Linf 8/255`; `L0, no bound`; empty if the region is no ball."""
    if region.norm is None:
        return ""
    limits = f"{region.norm}, no bound" if region.epsilon is None else place_text(region.norm, region.epsilon)
    return limits + region.around


def _text(value: Rate | None) -> str:
    return str(value) if value else "-"


def _number(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
