"""Compare the assessments of a section: attacks by accuracy, classes and slices, verifiers by verdicts and reach, budgets."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from windtunnel.assessments.figures.plots import HALF, Bar, Stack, bars, ranks, stacks
from windtunnel.core.contracts import Verdict
from windtunnel.core.statistics import median
from windtunnel.evaluation.summary.class_rows import ENDS, MOST_CLASSES, gap_words, weakest_first, weakest_slices
from windtunnel.evaluation.summary.sandwich_figure import ROLES
from windtunnel.evaluation.summary.security_figure import security_charts
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.basis import leading_metric
from windtunnel.records.metadata import limits
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Chart, Table
from windtunnel.reporting.report.phrases import class_name, listed, number, region, region_words
from windtunnel.reporting.report.sections.statement import layers

_VERDICTS = (("certified", "verified"), ("broken", "falsified"), ("unknown", "unknown"), ("error", "error"))


def damage_blocks(mine: Sequence[Artifacts], inputs: ReportInputs) -> Iterator[Block]:
    """Yield the charts and tables that compare the attacks of a run."""
    yield from _left(mine)
    if inputs.summary is not None:
        yield from _classes(inputs.summary)
        yield from _class_table(inputs.summary)
        yield from _slice_table(inputs.summary)
    yield from known_against_epsilon(inputs)


def _left(mine: Sequence[Artifacts]) -> Iterator[Chart]:
    """Chart the accuracy that each attack left, with its interval."""
    rows = [
        Bar(f"{a.name}, {region_words(a)}", number(a.metrics, key), "broken", limits(a.metrics, key))
        for a in mine
        if (key := leading_metric(a.metadata))
    ]
    if len(rows) < 2:
        return
    clean = number(mine[0].metrics, "clean_accuracy")
    reference = (clean, f"clean {clean:.1%}") if "clean_accuracy" in mine[0].metrics else None
    alt = "; ".join(f"{r.label}: {r.value:.1%}" for r in rows)
    scene = bars(rows, "accuracy under attack, 95 % intervals", alt, reference, width=HALF)
    yield Chart(scene, "What each attack left")


def _classes(summary: Artifacts) -> Iterator[Chart]:
    """Chart, per class, the attacked samples that are not broken, broken and misclassified; the weakest first."""
    layer = layers(summary)[0]
    if layer.worst_case is None:
        return
    targets, clean, verdicts = (summary.tensor(key) for key in ("targets", "clean_predictions", "verdicts"))
    drawn = summary.data.get("drawn")
    if isinstance(drawn, Tensor):
        targets, clean, verdicts = targets[drawn], clean[drawn], verdicts[drawn]
    rows = []
    for k in targets.unique().tolist():
        mine = targets == k
        right = float((clean == k)[mine].double().mean())
        robust = float((verdicts != Verdict.ATTACK_SUCCEEDED)[mine].double().mean())
        shares = (robust, max(0.0, right - robust), 1 - max(right, robust))
        rows.append(Stack(class_name(summary.class_names, int(k)), shares, f" of {int(mine.sum())} attacked samples"))
    if len(rows) < 2:
        return
    rows.sort(key=lambda row: row.shares[0])
    shown, total = rows[:MOST_CLASSES], len(rows)
    key = (("clean", "not broken"), ("broken", "broken"), ("wrong", "misclassified"))
    left_out = f"; the {len(shown)} weakest of {total} classes" if len(shown) < total else ""
    alt = f"Worst case per class; the weakest is {rows[0].label} with {rows[0].shares[0]:.1%} not broken."
    scene = stacks(shown, key, f"share of the class's samples{left_out}", alt)
    yield Chart(scene, f"The worst case per class at {layer.budget}")


def _class_table(summary: Artifacts) -> Iterator[Table]:
    """Each class's worst case and certified accuracy with their intervals, the weakest first, and the gap in the caption."""
    ends, classes = weakest_first(summary.metrics)
    if not ends:
        return
    shown = classes[:MOST_CLASSES]
    left_out = f" The {len(shown)} weakest of {len(classes)} classes." if len(shown) < len(classes) else ""
    gaps = " ".join(
        f"Gap between the best and the weakest class, {ENDS[end]}: {gap_words(summary.metrics, end)}." for end in ends
    )
    caption = f"Per class at the first budget, with 95 % intervals. {gaps}{left_out}"
    rows = tuple((row.name, str(row.n), *map(str, row.rates)) for row in shown)
    yield Table(caption, ("class", "samples", *(ENDS[end] for end in ends)), rows)


def _slice_table(summary: Artifacts) -> Iterator[Table]:
    """Each slice's rates and states, the lowest worst case first."""
    slices = weakest_slices(summary.metrics)
    if not slices:
        return
    left_out = f" The {MOST_CLASSES} weakest of {len(slices)}." if len(slices) > MOST_CLASSES else ""
    caption = f"Per slice at the first budget; each rate's intervals hold for all {len(slices)} slices at once in 95 % of runs "
    states = tuple(state.words for state in ROLES)
    header = ("slice", "samples", "attacked", "clean", "worst case", "certified", *states)
    rows = []
    for row in slices[:MOST_CLASSES]:
        rates = (str(rate or "-") for rate in (row.clean, row.worst_case, row.certified))
        rows.append((row.name, str(row.n), str(row.n_attacked), *rates, *_state_counts(row.states)))
    yield Table(f"{caption}(Bonferroni).{left_out}", header, tuple(rows))


def _state_counts(states: Mapping[str, int]) -> Iterator[str]:
    return (str(states.get(state, "-")) for state in ROLES)


def budgets_table(inputs: ReportInputs) -> Table:
    """Tabulate both ends of the sandwich and the states of all samples at each budget, and who set them."""
    rows = []
    for layer in layers(inputs.summary):
        ends = (str(layer.certified or "-"), str(layer.worst_case or "-"), str(layer.n_certified))
        set_by = listed([*dict.fromkeys([*layer.attacked_by, *layer.certified_by])], 6)
        rows.append((layer.budget, *ends, *_state_counts(layer.states), set_by))
    header = ("budget", "certified", "worst case", "n", *(state.words for state in ROLES), "set by")
    of = "over the n attacked samples (all where no attack ran)"
    title = f"Both bounds of robust accuracy at each budget, {of}, and the states of all samples"
    return Table(title, header, tuple(rows))


def known_against_epsilon(inputs: ReportInputs) -> Iterator[Block]:
    """Per norm, what is known against epsilon: attacked from above, certified from below, and the ends of the sandwich."""
    n = len(inputs.base.sample_names) if inputs.base else 0
    for norm, chart in security_charts(inputs.curves, layers(inputs.summary), n):
        yield Chart(chart, f"Robust accuracy against epsilon, {norm}")


def certificate_blocks(mine: Sequence[Artifacts], inputs: ReportInputs) -> Iterator[Block]:
    """Yield the charts that compare the verifiers of a run."""
    rows = [
        Stack(
            f"{a.name}, {region_words(a)}",
            tuple(number(a.metrics, f"{verdict}_rate") for _, verdict in _VERDICTS),
            f" of {len(a.sample_names)} samples",
        )
        for a in mine
        if all(f"{verdict}_rate" in a.metrics for _, verdict in _VERDICTS)
    ]
    if rows:
        alt = "; ".join(f"{row.label}: verified {row.shares[0]:.1%}, unknown {row.shares[2]:.1%}" for row in rows)
        yield Chart(stacks(rows, _VERDICTS, "share of its samples", alt), "Verdicts of each method")
    for a in mine:
        yield from _reach(a)


def _reach(a: Artifacts) -> Iterator[Chart]:
    """Sorted over the samples: the largest epsilon verified, and the smallest at which an example is known."""
    verified, broken = a.data.get("certified_radius"), a.data.get("broken_radius")
    if not isinstance(verified, Tensor):
        return
    top = float(verified.max())
    curves = [("certified", "verified up to", verified.tolist())]
    if isinstance(broken, Tensor):
        distances = broken[broken.isfinite()]
        top = max(top, float(distances.max()) if len(distances) else 0.0)
        curves.append(("broken", "broken from", broken.clamp(max=top).tolist()))
    where = region(a)
    epsilon = where.epsilon or 0.0
    line = (epsilon, "budget") if 0 < epsilon <= top else None
    alt = f"Certified radius of {len(verified)} samples, sorted: median {median(verified.tolist()) or 0:.3g}."
    scene = ranks(curves, f"epsilon ({where.norm})", alt, top or 1.0, horizontal=line)
    yield Chart(scene, f"{a.name}: certified radii and distances of adversarial examples, over the samples")
