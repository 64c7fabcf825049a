"""Compare the attacks: accuracy per budget, queries, how far a broken sample is moved, which classes fall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from windtunnel.assessments.figures.plots import HALF, Bar, Stack, bars, stacks
from windtunnel.core.contracts import Verdict
from windtunnel.evaluation.summary.class_rows import ENDS, MOST_CLASSES, gap_words, weakest_first, weakest_slices
from windtunnel.evaluation.summary.sandwich_figure import ROLES
from windtunnel.evaluation.summary.security_figure import security_charts
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.basis import leading_metric
from windtunnel.records.metadata import limits
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Chart, Table
from windtunnel.reporting.report.phrases import class_name, listed, number, region_words
from windtunnel.reporting.report.sections.statement import layers


def damage_blocks(mine: Sequence[Artifacts], inputs: ReportInputs) -> Iterator[Block]:
    """Yield the charts that compare the attacks of a run."""
    if chart := _left(mine):
        yield chart
    yield from _classes(inputs)
    yield from _class_table(inputs)
    yield from _slice_table(inputs)
    yield from known_against_epsilon(inputs)


def _left(mine: Sequence[Artifacts]) -> Chart | None:
    """Return the accuracy that each attack left, with its interval."""
    rows = []
    for a in mine:
        key = leading_metric(a.metadata)
        if key:
            name = f"{a.name}, {region_words(a)}"
            rows.append(Bar(name, number(a.metrics, key), "broken", limits(a.metrics, key)))
    if len(rows) < 2:
        return None
    clean = number(mine[0].metrics, "clean_accuracy")
    reference = (clean, f"clean {clean:.1%}") if "clean_accuracy" in mine[0].metrics else None
    alt = "; ".join(f"{r.label}: {r.value:.1%}" for r in rows)
    return Chart(
        bars(rows, "accuracy under attack, 95 % intervals", alt, reference, width=HALF), "What each attack left"
    )


def _classes(inputs: ReportInputs) -> Iterator[Chart]:
    """Chart, per class, the attacked samples that are not broken, broken and misclassified; the weakest first."""
    if inputs.summary is None or layers(inputs.summary)[0].worst_case is None:
        return
    targets, clean = (inputs.summary.tensor(key) for key in ("targets", "clean_predictions"))
    is_robust = inputs.summary.tensor("verdicts") != Verdict.ATTACK_SUCCEEDED
    drawn = inputs.summary.data.get("drawn")
    if isinstance(drawn, Tensor):
        targets, clean, is_robust = targets[drawn], clean[drawn], is_robust[drawn]
    rows = []
    for k in targets.unique().tolist():
        mine = targets == k
        right, clean_share = float((clean == k)[mine].double().mean()), float(is_robust[mine].double().mean())
        name = class_name(inputs.summary.class_names, int(k))
        rows.append(
            Stack(
                name,
                (clean_share, max(0.0, right - clean_share), 1 - max(right, clean_share)),
                f" of {int(mine.sum())} attacked samples",
            )
        )
    if len(rows) < 2:
        return
    rows.sort(key=lambda row: row.shares[0])
    shown, total = rows[:MOST_CLASSES], len(rows)
    key = (("clean", "not broken"), ("broken", "broken"), ("wrong", "misclassified"))
    left_out = f"; the {len(shown)} weakest of {total} classes" if len(shown) < total else ""
    alt = f"Worst case per class; the weakest is {rows[0].label} with {rows[0].shares[0]:.1%} not broken."
    yield Chart(
        stacks(shown, key, f"share of the class's samples{left_out}", alt),
        f"The worst case per class at {layers(inputs.summary)[0].budget}",
    )


def _class_table(inputs: ReportInputs) -> Iterator[Table]:
    """Each class's worst case and certified accuracy with their intervals, the weakest first, and the gap in the caption."""
    metrics = inputs.summary.metrics if inputs.summary else {}
    ends, classes = weakest_first(metrics)
    if not ends:
        return
    shown = classes[:MOST_CLASSES]
    left_out = f" The {len(shown)} weakest of {len(classes)} classes." if len(shown) < len(classes) else ""
    rows = tuple((row.name, str(row.n), *map(str, row.rates)) for row in shown)
    gaps = " ".join(
        f"Gap between the best and the weakest class, {ENDS[end]}: {gap_words(metrics, end)}." for end in ends
    )
    yield Table(
        f"Per class at the first budget, with 95 % intervals. {gaps}{left_out}",
        ("class", "samples", *(ENDS[end] for end in ends)),
        rows,
    )


def _slice_table(inputs: ReportInputs) -> Iterator[Table]:
    """Each slice's rates and states, the lowest worst case first."""
    rows = weakest_slices(inputs.summary.metrics if inputs.summary else {})
    if not rows:
        return
    left_out = f" The {MOST_CLASSES} weakest of {len(rows)}." if len(rows) > MOST_CLASSES else ""
    yield Table(
        f"Per slice at the first budget; each rate's intervals hold for all {len(rows)} slices at once in 95 % of runs "
        f"(Bonferroni).{left_out}",
        ("slice", "samples", "attacked", "clean", "worst case", "certified", *(state.words for state in ROLES)),
        tuple(
            (
                row.name,
                str(row.n),
                str(row.n_attacked),
                *(str(rate or "-") for rate in (row.clean, row.worst_case, row.certified)),
                *(str(row.states.get(state, "-")) for state in ROLES),
            )
            for row in rows[:MOST_CLASSES]
        ),
    )


def budgets_table(inputs: ReportInputs) -> Table:
    """Tabulate both ends of the sandwich and the states of all samples at each budget, and who set them."""
    rows = tuple(
        (
            layer.budget,
            str(layer.certified or "-"),
            str(layer.worst_case or "-"),
            str(layer.n_attacked),
            *(str(layer.states.get(state, "-")) for state in ROLES),
            listed([*dict.fromkeys([*layer.attacked_by, *layer.certified_by])], 6),
        )
        for layer in layers(inputs.summary)
    )
    header = ("budget", "certified", "worst case", "n", *(state.words for state in ROLES), "set by")
    title = "Both bounds of robust accuracy at each budget, over the n attacked samples, and the states of all samples"
    return Table(title, header, rows)


def known_against_epsilon(inputs: ReportInputs) -> Iterator[Block]:
    """Per norm, what is known against epsilon: attacked from above, certified from below, and the ends of the sandwich."""
    n = len(inputs.base.sample_names) if inputs.base else 0
    for norm, chart in security_charts(inputs.curves, layers(inputs.summary), n):
        yield Chart(chart, f"Robust accuracy against epsilon, {norm}")
