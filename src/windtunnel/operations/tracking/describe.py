"""Describe a run in Markdown, the most important first, since MLflow folds long descriptions."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from windtunnel.core.contracts import Caveat
from windtunnel.core.markdown import escape
from windtunnel.records.basis import Basis, basis_of, leading_metric
from windtunnel.records.metadata import Metadata, rate
from windtunnel.records.sandwich import Layer

# MLflow keeps 5,000 characters of a note in its oldest stores.
MAX_NOTE = 4500


def describe(
    metrics: Mapping[str, float],
    assessments: Mapping[str, Metadata],
    caveats: Sequence[tuple[str, Caveat]],
    failures: Sequence[str],
    pictures: Sequence[Path],
    layer: Layer | None = None,
) -> str:
    """Failures, the sandwich, a row per assessment, the caveats with who has them, links to report and figures.

    `metrics` are those of metrics.json, flat; `assessments` the metadata by name; `layer` the sandwich at the global budget;
    `{run}` stands for the run's id.
    """
    head = not_valid(failures)
    links = [f"[{kind.upper()} report](get-artifact?path=report.{kind}&run_uuid={{run}})" for kind in ("html", "pdf")]
    head += [_sandwich(metrics, layer), "", " · ".join(links)]
    head += ["", "| assessment | algorithm | accuracy [95 %] | of | caveats |", "| --- | --- | --- | --- | --- |"]
    head += [_row(name, metadata) for name, metadata in assessments.items()]
    links = [f"![{p.stem}](get-artifact?path={p.parent.name}/{p.name}&run_uuid={{run}})" for p in pictures]
    tail = "\n".join(["", *links])
    room = MAX_NOTE - len("\n".join(head)) - len(tail) - 80
    return "\n".join([*head, *_caveats(caveats, room)])[: MAX_NOTE - len(tail)] + tail


def not_valid(failures: Iterable[str]) -> list[str]:
    """Return the warnings in Markdown: a line for each reason why the numbers of a run must not be believed."""
    return [f"**NOT VALID**: {escape(failure)}  " for failure in failures]


def _sandwich(metrics: Mapping[str, float], layer: Layer | None) -> str:
    basis, total = Basis.of_layer(layer) if layer else Basis(), metrics.get("clean/n")
    parts = []
    for group in ("certified", "worst_case", "clean"):
        if (value := rate(metrics, f"{group}/accuracy")) is not None:
            n = metrics.get(f"{group}/n")
            sizes = Basis(n=None if n is None else int(n), total=None if total is None else int(total))
            only_first = basis.only_first and group != "clean"
            samples = sizes._replace(only_first=only_first).samples  # empty in a summary of an older version
            parts.append(f"{group.replace('_', ' ')} **{value}**{f' ({samples})' if samples else ''}")
    return f"Accuracy{f' at {basis.budget}' if basis.budget else ''}: {' ≤ '.join(parts)}"


def _row(name: str, metadata: Metadata) -> str:
    key = leading_metric(metadata)
    shown = f"{rate(metadata.metrics, key)} {key.removesuffix('_accuracy')}" if key else "-"
    basis = basis_of(metadata, key or "")
    return f"| {name} | {metadata.library} {metadata.algorithm} | {shown} | {basis} | {len(metadata.caveats) or ''} |"


def _caveats(caveats: Sequence[tuple[str, Caveat]], room: int) -> list[str]:
    """Return a line per caveat with everyone who has it; what does not fit is counted, never cut in the middle."""
    holders: dict[str, list[str]] = {}
    for name, caveat in caveats:
        holders.setdefault(caveat.text, []).append(name)
    lines = [f"- {', '.join(names)}: {text}" for text, names in holders.items()]
    shown_lines: list[str] = []
    for line in lines:
        if len("\n".join([*shown_lines, line])) > room:
            shown_lines.append(f"- and {len(lines) - len(shown_lines)} more: see the report")
            break
        shown_lines.append(line)
    return ["", "**Caveats**", "", *shown_lines] if shown_lines else []
