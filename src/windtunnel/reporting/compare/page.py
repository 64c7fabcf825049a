"""A comparison as a page of the report: what became worse first, the curves of both runs, and what flipped, with images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from windtunnel.assessments.figures.axes import plain
from windtunnel.assessments.figures.pictures import Picture, PictureGrid, picture, picture_mode
from windtunnel.assessments.figures.plots import Change, Series, changes, lines
from windtunnel.core.contracts import Verdict
from windtunnel.evaluation.summary.security_figure import CERTIFIED, WORST_CASE, end_at_budgets
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.sandwich import layers_in
from windtunnel.reporting.compare.comparison import Against, Comparison
from windtunnel.reporting.compare.curves import CurvePoint
from windtunnel.reporting.compare.document import document, title
from windtunnel.reporting.compare.paired import Pair
from windtunnel.reporting.compare.runs import Run
from windtunnel.reporting.report.model import Block, Chart, Front, Highlight, ReportContent, Section, Table, Text
from windtunnel.reporting.report.phrases import class_name

MOST_PICTURES = 8  # of one way of flipping: a page that opens at once
_LEVEL = 0.05


def page(comparison: Comparison) -> ReportContent:
    """Return the comparison as a `ReportContent`: its front says what became worse, a section per run what it means and what flipped."""
    parts = document(comparison)
    details = [Section(part.title, (*map(Text, part.lines), *part.tables), detail=True) for part in parts[1:]]
    sections = [_against(comparison.runs[0], against) for against in comparison.against]
    runs = Section(parts[0].title, (*map(Text, parts[0].lines), *parts[0].tables))
    refused = tuple(
        Highlight("warning", f"Not paired: {line}.") for against in comparison.against for line in against.refused
    )
    front = Front(
        subtitle="The same samples in both runs; losses come first",
        facts=(),
        alarms=(),
        statement=" ".join(_sentence(comparison.runs[0].label, against) for against in comparison.against),
        gate=None,
        sanity=None,
        tiles=(),
        sandwich=None,
        threat=(),
        findings=(),
        caveats=refused,
    )
    return ReportContent(title(comparison), front, (*sections, runs, *details), None, ())


def _by_loss(against: Against) -> list[tuple[Pair, float]]:
    """Return the outcomes with their adjusted p-values, what became worst first."""
    return sorted(zip(against.pairs, against.adjusted, strict=True), key=lambda row: row[0].table.difference)


def _sentence(first: str, against: Against) -> str:
    """Describe the significant changes in words."""
    name = against.run.label
    if not against.pairs:
        return f"{name} could not be paired with {first}."
    sure = [(pair, pair.table.difference) for pair, p in _by_loss(against) if p <= _LEVEL and pair.table.difference]
    worse, better = ([(pair, d) for pair, d in sure if (d < 0) is lower] for lower in (True, False))
    if not sure:
        return (
            f"No outcome of {name} differs from that of {first} beyond chance (McNemar's exact test, Holm's correction for "
            f"{len(against.pairs)} outcomes)."
        )
    parts = []
    for verb, rows in (("worse", worse), ("better", better[::-1])):
        if rows:
            named = ", ".join(f"{pair.name} {100 * d:+.1f} points" for pair, d in rows[:3])
            more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
            parts.append(f"{verb} on {named}{more}")
    return f"{name} is {'; '.join(parts)}, beyond chance (McNemar's exact test, Holm's correction for {len(against.pairs)} outcomes)."


def _against(base: Run, against: Against) -> Section:
    first, second, blocks = base.label, against.run.label, list[Block]()
    rows = _by_loss(against)
    if rows:
        drawn = [
            Change(
                pair.name,
                pair.table.difference,
                pair.interval,
                sure=p <= _LEVEL,
                tip=f"{pair.name}: {pair.rates[0]:.1%} in {first}, {pair.rates[1]:.1%} in {second}, p {p:.2g}",
            )
            for pair, p in rows
        ]
        alt = "; ".join(f"{row.label} {100 * row.value:+.1f} points" for row in drawn)
        caption = f"{second} minus {first}, with 95 % intervals; grey where the difference is not significant"
        blocks.append(Chart(changes(drawn, "difference in accuracy, points", alt), caption))
    blocks += _curves(base, against.run, [pair for pair, _ in rows])
    for pair, _ in rows:
        blocks += _flips(pair, first, second)
    return Section(f"{second} against {first}", tuple(blocks))


def _curves(base: Run, other: Run, pairs: Sequence[Pair]) -> Iterator[Block]:
    """Both runs against epsilon, per norm, and each curve that both have."""
    yield from _against_budgets(base, other, pairs)
    first, second = base.label, other.label
    for pair in pairs:
        curve = pair.curve
        if (
            curve is None
            or not any(p.first != p.second for p in curve.points)
            or not all(map(_is_number, curve.points))
        ):
            continue
        xs = [float(p.at) for p in curve.points]
        drawn = [
            Series(label, role, tuple((x, getattr(p, side)) for x, p in zip(xs, curve.points, strict=True)))
            for label, role, side in ((first, "clean", "first"), (second, "broken", "second"))
        ]
        worst = min(curve.points, key=lambda p: p.second - p.first)
        alt = f"Accuracy by {curve.axis}; the largest loss is {100 * (worst.second - worst.first):+.1f} points at {worst.at}."
        yield Chart(
            lines(drawn, curve.axis, "accuracy", alt, (min(0.0, *xs), max(xs))),
            f"{pair.name}: accuracy by {curve.axis}",
        )


def _is_number(point: CurvePoint) -> bool:
    try:
        float(point.at)
    except ValueError:
        return False
    return True


def _against_budgets(base: Run, other: Run, pairs: Sequence[Pair]) -> Iterator[Block]:
    """Yield the worst case and what is certified at each budget of both runs, with the curves of attacks that know one."""
    sides = ((base, "clean"), (other, "broken"))
    points: dict[str, list[Series]] = {}
    summary = next((pair for pair in pairs if pair.first.name == "summary"), None)
    for run, side, role in ((base, summary.first, "clean"), (other, summary.second, "broken")) if summary else ():
        layers = layers_in(side.metrics)
        for norm in dict.fromkeys(layer.norm for layer in layers):
            for end, end_name in ((WORST_CASE, "worst case"), (CERTIFIED, "certified")):
                at, limits = end_at_budgets(layers, norm, end)
                if at:
                    dots = Series(f"{end_name}, {run.label}", role, at, limits, line=False, hollow=end is CERTIFIED)
                    points.setdefault(norm, []).append(dots)
    paired = {pair.first.name for pair in pairs}
    for run, role in sides:
        for curve in run.curves():
            if curve.name in paired and len(curve.epsilons) > 1:
                at = tuple(zip(curve.epsilons, curve.accuracy, strict=True))
                name = f"{curve.name}, {run.label}"
                points.setdefault(curve.norm, []).append(
                    Series(name, role, at, dashed=curve.certified, dots=False, thin=True)
                )
    for under, drawn in points.items():
        # Colour tells the runs apart, and the legend says no more: each mark says on hovering what it is.
        keys = [Series(run.label, role, (), line=False) for run, role in sides]
        top = max(x for series in drawn for x, _ in series.points)
        alt = f"Accuracy of both runs against epsilon under {under}, up to {plain(top)}."
        caption = f"Both runs against epsilon, {under}. Dots: worst case; rings: certified; lines: assessments over an epsilon grid"
        scene = lines(
            [*keys, *(replace(series_drawn, named=False) for series_drawn in drawn)],
            f"epsilon ({under})",
            "accuracy",
            alt,
            (0, top),
            (0, 1),
        )
        yield Chart(scene, caption)


def _flips(pair: Pair, first: str, second: str) -> Iterator[Block]:
    """Yield the samples that flipped in one outcome, lost samples first: names, and pictures of some."""
    for change, rows in ((f"lost in {second}", pair.lost), (f"gained in {second}", pair.gained)):
        if not rows:
            continue
        names = [pair.first.sample_names[i] for i in rows]
        if pair.first.tensor("clean_inputs").ndim != 4 or picture_mode() == "none":
            yield Table(f"{pair.name}, {change} ({len(rows)})", ("samples",), ((", ".join(names[:50]),),))
            continue
        places = [{row: i for i, row in enumerate(run.kept.tolist())} for run in (pair.first, pair.second)]
        shown = [i for i in rows if i in places[0] and i in places[1]][:MOST_PICTURES]
        if not shown:
            yield Table(f"{pair.name}, {change} ({len(rows)})", ("samples",), ((", ".join(names[:50]),),))
            continue
        more = f"; the first {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
        first_artifacts, two = pair.first.pictured, pair.second.pictured
        names = [pair.first.sample_names[i] for i in shown]
        cells = [
            ("clean", tuple(_clean(first_artifacts, places[0][i]) for i in shown)),
            (first, tuple(_perturbed(first_artifacts, places[0][i], first) for i in shown)),
            (second, tuple(_perturbed(two, places[1][i], second) for i in shown)),
        ]
        header = tuple(names)
        yield PictureGrid(
            f"{pair.name}, {change}: {len(rows)} sample{'s' if len(rows) > 1 else ''}{more}",
            header,
            tuple(cells),
            small=True,
        )


def _clean(artifacts: Artifacts, i: int) -> Picture:
    names = artifacts.class_names
    label, predicted = (class_name(names, int(artifacts.tensor(key)[i])) for key in ("targets", "clean_predictions"))
    text = label if label == predicted else f"{label}, predicted {predicted}"
    return picture(artifacts.tensor("clean_inputs")[i], f"{artifacts.sample_names[i]}, clean: {text}", text)


def _perturbed(artifacts: Artifacts, i: int, run: str) -> Picture | None:
    images, answers = artifacts.data.get("perturbed_inputs"), artifacts.data.get("perturbed_predictions")
    verdict = Verdict(int(artifacts.tensor("verdicts")[i])).label.replace("_", " ")
    if (
        isinstance(images, Tensor)
        and isinstance(answers, Tensor)
        and bool(images[i].isfinite().all())
        and int(answers[i]) >= 0
    ):
        predicted = class_name(artifacts.class_names, int(answers[i]))
        return picture(images[i], f"{artifacts.sample_names[i]}, {run}: {predicted}, {verdict}", predicted)
    return None
