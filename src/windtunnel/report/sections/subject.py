"""What was tested: the model and data card, the threat model, and the budgets with all that is known at each."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.core.artifacts import Artifacts
from windtunnel.params.outcome import Report as Options
from windtunnel.report.charts.axes import plain
from windtunnel.report.charts.plots import Series, lines
from windtunnel.report.collect import Found
from windtunnel.report.model import Block, Chart, Section, Table, Text
from windtunnel.report.sections.assessment import figure_blocks
from windtunnel.report.sections.front import layers
from windtunnel.report.words import Row, budget, interval, number, numbers, percent, region, rows_in, semantics, short

_FACTS = {
    "data": ("source", "n", "shape", "class_names", "labelled", "value_range_of_source", "samples", "digest"),
    "model": (
        "source",
        "architecture",
        "recipe",
        "factory",
        "function",
        "original",
        "input_shape",
        "num_classes",
        "sha256",
    ),
}


def subject_section(found: Found, options: Options) -> Section:
    """The section `What was tested`."""
    blocks: list[Block] = []
    for what, keys in _FACTS.items():
        facts = found.facts[what]
        if rows := tuple((key.replace("_", " "), short(facts[key])) for key in keys if key in facts):
            blocks.append(Table(f"The {what}", ("what", "value"), rows))
    threat = Section("Threat model and budgets", tuple(_threat(found, options)))
    return Section("What was tested", tuple(blocks), (threat,))


def _threat(found: Found, options: Options) -> Iterator[Block]:
    yield Text(
        "Certified accuracy ≤ true robust accuracy ≤ worst-case accuracy, at each budget. A budget allows every change of an "
        "input, on [0, 1] pixels, whose size under the norm is at most epsilon. Intervals are at 95 %: Wilson's for rates, "
        "Clopper-Pearson's for certified claims."
    )
    rows = tuple(
        (
            budget(r),
            percent(r, "certified_accuracy"),
            percent(r, "worst_case_accuracy"),
            short(r.get("n_attacked")),
            short(r.get("n_examined")),
            ", ".join(
                map(str, {**dict.fromkeys(_names(r, "attacked_by")), **dict.fromkeys(_names(r, "certified_by"))})
            ),
        )
        for r in layers(found.summary)
    )
    header = ("budget", "certified", "worst case", "attacked", "examined", "set by")
    yield Table("What is known at each budget; the first is the one of the verdict", header, rows)
    yield Table(
        "What the adversary of each assessment sees and wants",
        ("assessment", "threat model", "objective", "region", "random"),
        tuple(
            (
                a.name,
                short(semantics(a).get("threat_model")).replace("_", " "),
                short(semantics(a).get("objective")),
                _where(a),
                short(semantics(a).get("stochastic")),
            )
            for a in found.assessments
        ),
        folded=True,
    )
    drawn = [str(row.get("name")) for row in rows_in(found.summary.metadata, "visualisers")] if found.summary else []
    if found.summary:
        yield from figure_blocks(found.summary, found, options, but=("SandwichVisualiser",))
    if "SecurityCurvesVisualiser" not in drawn:
        yield from _curves(found)


def _where(artifacts: Artifacts) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {short(value)}" for key, value in region(artifacts).items())


def _names(row: Row, key: str) -> list[str]:
    value = row.get(key)
    return [str(v) for v in value] if isinstance(value, list) else []


def _curves(found: Found) -> Iterator[Block]:
    """What is known against epsilon, per norm: the curves of sweeps, and the two ends of the sandwich where there are several."""
    by_norm: dict[str, list[Row]] = {}
    for row in layers(found.summary):
        by_norm.setdefault(str(row["norm"]), []).append(row)
    for norm, rows in by_norm.items():
        rows = sorted(rows, key=lambda r: number(r, "epsilon"))
        # Points without a line: between two budgets nothing was measured.
        drawn = [
            Series(
                words, role, tuple((number(r, "epsilon"), number(r, key)) for r in mine), _limits(mine, key), line=False
            )
            for key, words, role in (
                ("worst_case_accuracy", "worst case of all assessments", "broken"),
                ("certified_accuracy", "certified accuracy", "certified"),
            )
            if (mine := [r for r in rows if key in r])
        ]
        for a in found.assessments:
            if "accuracy_curve" in a.metrics and region(a).get("norm") == norm:
                points = zip(numbers(a.metrics["epsilons"]), numbers(a.metrics["accuracy_curve"]), strict=True)
                drawn.append(Series(f"{a.name} ({a.metadata['algorithm']})", "corrupted", tuple(points)))
        if sum(len(s.points) for s in drawn) > 2:
            top = max(x for s in drawn for x, _ in s.points)
            alt = f"Accuracy against epsilon under {norm}, up to {plain(top)}."
            yield Chart(
                lines(drawn, f"epsilon ({norm})", "accuracy", alt, (0, top), (0, 1)),
                f"What is known against epsilon, {norm}",
            )


def _limits(rows: list[Row], key: str) -> tuple[tuple[float, float], ...]:
    found = [limits for r in rows if (limits := interval(r, key))]
    return tuple(found) if len(found) == len(rows) else ()
