"""One assessment: what ran, what limits it, its figures and, in the full layout, every metric."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.files import is_tensor_summary
from windtunnel.params.outcome import Report as Options
from windtunnel.reporting.report.charts.of_visualiser import CHARTS
from windtunnel.reporting.report.collect import Found, picture_files
from windtunnel.reporting.report.guard import ODD_METADATA
from windtunnel.reporting.report.model import Block, Chart, Figure, Finding, Section, Table, Text
from windtunnel.reporting.report.sections.classifiers import classifier_tables
from windtunnel.reporting.report.sections.side_by_side import attack_by_attack, shown_side_by_side
from windtunnel.reporting.report.words import (
    block,
    class_name,
    interval,
    kwargs,
    listed,
    number,
    region_words,
    rows_in,
    semantics,
    short,
)


def assessment_section(artifacts: Artifacts, found: Found, options: Options) -> Section:
    """The subsection of one assessment."""
    blocks = [Text(_what_ran(artifacts)), *caveat_blocks(artifacts), *figure_blocks(artifacts, found, options)]
    blocks += [*_bounds(artifacts), *classifier_tables(artifacts), *attack_by_attack(artifacts, found, options)]
    if options.layout == "full":
        blocks += [*_pairs(found, artifacts.name), *_metrics(artifacts)]
    return Section(artifacts.name, tuple(blocks))


def caveat_blocks(artifacts: Artifacts) -> list[Block]:
    """The caveats of an assessment, with how many samples they concern."""
    return [
        Finding("warning", c.text + (f" ({len(c.samples)} samples)" if c.samples else "")) for c in artifacts.caveats
    ]


def figure_blocks(artifacts: Artifacts, found: Found, options: Options, but: tuple[str, ...] = ()) -> Iterator[Block]:
    """The figures of an assessment, `but` for some: a chart in vectors where there is one, else the picture on disk.

    Pictures that repeat the clean image or the perturbation map are left out where the samples stand side by side.
    """
    left_out = shown_side_by_side(artifacts, found, options)
    pictures = picture_files(artifacts)
    for row in rows_in(artifacts.metadata, "visualisers"):
        title = str(row.get("title") or row.get("name"))
        path = pictures.get(str(row.get("file")))
        if row.get("name") in but:
            continue
        if row.get("empty"):
            yield Text(f"{title}: {row['empty']}")
        elif not (left_out and (row.get("embeds_clean_input") or row.get("embeds_perturbation_map"))):
            # A chart draws what the visualiser draws by default; with options the picture is what was asked for.
            charts = [] if row.get("options") and path else _charts(artifacts, str(row.get("name")), title, found)
            yield from charts
            if path and not charts:
                yield Figure(path, f"{artifacts.name}: {title}")


def _charts(artifacts: Artifacts, visualiser: str, title: str, found: Found) -> list[Chart]:
    children = found.children.get(artifacts.name, {})
    try:
        scenes = [draw(artifacts, children) for draw in CHARTS.get(visualiser, ())]
    except ODD_METADATA:
        return []
    return [Chart(scene, f"{artifacts.name}: {title}") for scene in scenes if scene]


def _what_ran(artifacts: Artifacts) -> str:
    meaning, call = semantics(artifacts), block(artifacts.metadata, "call_kwargs")
    version = artifacts.metadata.get("library_version", "")
    words = [f"{artifacts.metadata['library']} {version} {artifacts.metadata['algorithm']}".replace("  ", " ")]
    if (threat := meaning.get("threat_model")) != "not_applicable":
        words += [short(threat).replace("_", " "), short(meaning.get("objective"))]
    words += [region_words(artifacts), f"{len(artifacts.sample_names)} samples"]
    options = ", ".join(f"{key}={short(value)}" for key, value in call.items() if not is_tensor_summary(value))
    return "; ".join(w for w in words if w) + (f". Called with {options}." if options else ".")


def _bounds(artifacts: Artifacts) -> Iterator[Table]:
    """What a verifier proved of the logits, class by class: the mean over the samples that it bounded."""
    ends = [listed(artifacts.metrics, f"mean_{end}_bound") for end in ("lower", "upper")]
    if all(ends):
        names = artifacts.class_names
        rows = [
            (class_name(names, i), short(low), short(high)) for i, (low, high) in enumerate(zip(*ends, strict=True))
        ]
        of = f"{short(artifacts.metrics.get('n_bounded'))} of {len(artifacts.sample_names)} samples have bounds"
        yield Table(
            f"{artifacts.name}: mean proved bounds of the logits; {of}",
            ("class", "lower", "upper"),
            tuple(rows),
            folded=True,
        )


def _metrics(artifacts: Artifacts) -> Iterator[Table]:
    rows = []
    for key, value in artifacts.metrics.items():
        if key.endswith(("_ci_low", "_ci_high")) or isinstance(value, dict | list):
            continue
        limits = interval(artifacts.metrics, key)
        rows.append((key, short(value), f"[{limits[0]:.4g}, {limits[1]:.4g}]" if limits else ""))
    yield Table(f"Every metric of {artifacts.name}", ("metric", "value", "95 % interval"), tuple(rows), folded=True)
    if options := [(k, short(v)) for k, v in kwargs(artifacts).items() if k not in {"sample_names", "class_names"}]:
        yield Table(f"Options of {artifacts.name}", ("option", "value"), tuple(options), folded=True)


def _pairs(found: Found, name: str) -> Iterator[Table]:
    """The single corruptions of a suite, each with its interval."""
    rows = []
    for child, metadata in found.children.get(name, {}).items():
        metrics = block(metadata, "metrics")
        limits = interval(metrics, "corrupted_accuracy")
        rows.append(
            (
                child,
                f"{number(metrics, 'corrupted_accuracy'):.1%}" if "corrupted_accuracy" in metrics else "-",
                f"[{limits[0]:.1%}, {limits[1]:.1%}]" if limits else "",
                short(metrics.get("prediction_flips")),
                str(len(listed(metadata, "caveats"))),
            )
        )
    if rows:
        header = ("corruption", "accuracy", "95 % interval", "predictions that changed", "caveats")
        yield Table(f"Single corruptions of {name}", header, tuple(rows), folded=True)
