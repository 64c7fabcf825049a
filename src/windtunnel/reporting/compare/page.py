"""A comparison as text and as a page of the report: regressions first, the curves of both runs, and the samples that changed, with images.

`document` is built once, as sections of tables and lines, and rendered for the terminal, a pull request and a browser.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from windtunnel.assessments.figures.pictures import Picture, PictureGrid, picture, picture_mode, pictures_as
from windtunnel.assessments.figures.plots import Change, Series, changes, lines, plain
from windtunnel.core.contracts import Verdict
from windtunnel.evaluation.summary.security_figure import CERTIFIED, WORST_CASE, end_at_budgets
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import Rate
from windtunnel.records.sandwich import layers_in
from windtunnel.reporting.compare.comparison import Against, Comparison, CurveDifference, CurvePoint, Pair
from windtunnel.reporting.compare.images import are_of_labels, section_of_images
from windtunnel.reporting.compare.runs import Run, basis_text
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.model import Block, Chart, Front, Highlight, ReportContent, Section, Table, Text
from windtunnel.reporting.report.phrases import class_name, clean_words, listed

MAX_NAMES, MAX_SETTINGS = 12, 6
MOST_PICTURES = 8  # for each direction of change, so that the page loads quickly
_LEVEL = 0.05


def document(comparison: Comparison) -> list[Section]:
    """Return the sections in the order in which a reviewer asks: what was compared, what changed, to what effect, by chance?"""
    runs = tuple((run.label, run.origin, *run.subject(), "; ".join(run.notes)) for run in comparison.runs)
    first = comparison.runs[0].label
    if are_of_labels(comparison.runs):
        results = [section_of_images(comparison)]
    else:
        results = [
            Section(f"The same samples: {against.run.label} against {first}", tuple(_paired(first, against)))
            for against in comparison.against
        ]
    return [
        Section("Runs", (Table("", ("run", "what it is", "model", "samples", "note"), runs),)),
        Section("Parameters that differ", (_params(comparison),)),
        Section("Metrics that differ", tuple(_metrics(comparison))),
        *results,
    ]


def title(comparison: Comparison) -> str:
    """`eps-b against main`."""
    first, *others = (run.label for run in comparison.runs)
    return f"{', '.join(others)} against {first}"


def _params(comparison: Comparison) -> Block:
    if not all(run.params for run in comparison.runs):
        return Text("Not compared: a run has no params.yaml.")
    if not comparison.params:
        return Text("None.")
    rows = tuple((key, *("" if v is None else v for v in values)) for key, values in comparison.params)
    return Table("", ("parameter", *(run.label for run in comparison.runs)), rows)


def _metrics(comparison: Comparison) -> Iterator[Block]:
    changes_of = [_change] if len(comparison.runs) == 2 else []
    rows = tuple(
        (
            name,
            basis_text(comparison.bases[name]),
            *map(_rate, comparison.rates[name]),
            *(change(*values) for change in changes_of),
        )
        for name, values in comparison.metrics
        if not name.endswith(("_ci_low", "_ci_high"))
    )
    if not rows:
        yield Text("None.")
        return
    labels = (f"{run.label} [95 %]" for run in comparison.runs)
    yield Table("", ("metric", "of", *labels, *("change" for _ in changes_of)), rows)
    if comparison.equal_metrics:
        yield Text(f"{comparison.equal_metrics} other metrics are equal.")


def _paired(first: str, against: Against) -> Iterator[Block]:
    """Yield the paired statistics of a run against the first; what could not be paired is said."""
    second, pairs = against.run.label, against.pairs
    if pairs:
        rows = tuple(_row(pair, adjusted) for pair, adjusted in zip(pairs, against.adjusted, strict=True))
        columns = ("difference, points [95 %]", "gained", "lost", "p", "p (Holm)")
        yield Table("", ("outcome", "of", f"{first} [95 %]", f"{second} [95 %]", *columns), rows)
    for pair in pairs:
        if pair.curve and pair.curve.moves:
            yield _curve(pair.name, first, second, pair.curve)
    for line in against.refused:
        yield Text(f"Not paired: {line}.")
    if not pairs:
        yield Text("Nothing could be paired, so there are no paired statistics.")
        return
    yield Text(
        f"Share of samples without a failure; gained: only in {second}, lost: only in {first}. p: McNemar's exact test that "
        f"flips either way are equally likely, and the same after Holm's correction for {len(pairs)} outcomes; interval: "
        f"Newcombe's for paired samples; of each run Wilson's, for certificates Clopper-Pearson's."
    )
    for pair in pairs:
        yield from _settings(pair)
    for pair in pairs:
        for label, indices in ((second, pair.gained), (first, pair.lost)):
            if indices:
                names = listed([pair.first.sample_names[i] for i in indices], MAX_NAMES)
                yield Text(f"{pair.name}, correct only in {label} ({len(indices)}): {names}")


def _row(pair: Pair, adjusted: float) -> tuple[str, ...]:
    limits = zip(pair.rates, pair.limits, strict=True)
    rates = (f"{rate:.1%} [{low:.1%}, {high:.1%}]" for rate, (low, high) in limits)
    flipped = (str(len(pair.gained)), str(len(pair.lost)))
    difference = _difference(pair.table.difference, *pair.interval)
    return (pair.name, basis_text(pair.bases), *rates, difference, *flipped, f"{pair.p_value:.2g}", f"{adjusted:.2g}")


def _difference(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _settings(pair: Pair) -> Iterator[Text]:
    """Yield a line where an outcome was assessed with other settings; each one is named once, by the last part of its path."""
    names = list(dict.fromkeys(path.rsplit(".", 1)[-1] for path in pair.settings))
    if names:
        yield Text(f"{pair.name} was assessed with another {listed(names, MAX_SETTINGS)}.")


def _curve(name: str, first: str, second: str, curve: CurveDifference) -> Table:
    rows = tuple(_point(point) for point in (*curve.points, curve.overall))
    caption = f"{name}: accuracy by {curve.axis}, paired bootstrap over the samples, intervals pointwise"
    return Table(caption, (curve.axis, first, second, "difference, points [95 %]"), rows)


def _point(point: CurvePoint) -> tuple[str, ...]:
    difference = _difference(point.second - point.first, point.low, point.high)
    return point.at, f"{point.first:.1%}", f"{point.second:.1%}", difference


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{rate.value:.4g}" + (f" [{rate.limits[0]:.3g}, {rate.limits[1]:.3g}]" if rate.limits else "")


def _change(first: float | None, second: float | None) -> str:
    return "" if first is None or second is None else f"{second - first:+.4g}"


def markdown(heading: str, sections: Sequence[Section]) -> str:
    """GitHub's Markdown; what is in a cell stays in it."""
    return "\n".join(_lines(heading, sections)) + "\n"


def _lines(heading: str, sections: Sequence[Section]) -> Iterator[str]:
    yield f"## {_escape(heading)}"
    for section in sections:
        yield from ("", f"### {_escape(section.title)}")
        for block in section.blocks:
            yield ""
            if isinstance(block, Table):
                yield from _table(block)
            elif isinstance(block, Text):
                yield _escape(block.text)


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield from (f"**{_escape(table.caption)}**", "")
    yield _markdown_row(table.header)
    yield "|" + " --- |" * len(table.header)
    for row in table.rows:
        yield _markdown_row(row)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell).replace("|", "\\|") for cell in cells) + " |"


def _escape(text: str) -> str:
    for character in "\\`*_<>[]":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def page(comparison: Comparison) -> ReportContent:
    """Return the comparison as a `ReportContent`: the front lists regressions, a section per run the samples that changed."""
    first, runs = comparison.runs[0], comparison.against
    about, *details = document(comparison)
    if are_of_labels(comparison.runs):
        front = Front(
            "Each run assesses one label", f"{len(comparison.runs)} labels of one model, each attacked on its own."
        )
        return ReportContent(title(comparison), front, (details.pop(), about, *map(_detail, details)))
    front = Front(
        subtitle="The same samples in both runs; losses come first",
        statement=" ".join(_sentence(first.label, against) for against in runs),
        caveats=tuple(Highlight("warning", f"Not paired: {line}.") for run in runs for line in run.refused),
    )
    sections = (*(_against(first, run) for run in runs), about, *map(_detail, details))
    return ReportContent(title(comparison), front, sections)


def _detail(part: Section) -> Section:
    """Return a section among the details: what explains its tables stands before them."""
    return replace(part, detail=True, blocks=tuple(sorted(part.blocks, key=lambda block: not isinstance(block, Text))))


def render_comparison(comparison: Comparison, path: Path) -> None:
    """Write `comparison` as one self-contained HTML file in the style of the report."""
    with pictures_as(run.pictures for run in comparison.runs):
        render_html(page(comparison), path)


def _by_loss(against: Against) -> list[tuple[Pair, float]]:
    """Return the outcomes with their adjusted p-values, what became worst first."""
    return sorted(zip(against.pairs, against.adjusted, strict=True), key=lambda row: row[0].table.difference)


def _sentence(first: str, against: Against) -> str:
    """Describe the significant changes in words."""
    name = against.run.label
    if not against.pairs:
        return f"{name} could not be paired with {first}."
    test = f"McNemar's exact test, Holm's correction for {len(against.pairs)} outcomes"
    sure = [(pair.name, pair.table.difference) for pair, p in _by_loss(against) if p <= _LEVEL]
    worse, better = [row for row in sure if row[1] < 0], [row for row in sure[::-1] if row[1] > 0]
    if not worse and not better:
        return f"No outcome of {name} differs from that of {first} beyond chance ({test})."
    parts = [
        f"{verb} on {listed([f'{outcome} {100 * change:+.1f} points' for outcome, change in rows], 3)}"
        for verb, rows in (("worse", worse), ("better", better))
        if rows
    ]
    return f"{name} is {'; '.join(parts)}, beyond chance ({test})."


def _against(base: Run, against: Against) -> Section:
    first, second, rows = base.label, against.run.label, _by_loss(against)
    pairs, blocks = [pair for pair, _ in rows], list[Block]()
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
    blocks += _against_budgets(base, against.run, pairs)
    blocks += [_both(pair.name, pair.curve, first, second) for pair in pairs if pair.curve and pair.curve.moves]
    for pair in pairs:
        for change, indices in ((f"lost in {second}", pair.lost), (f"gained in {second}", pair.gained)):
            if indices:
                blocks.append(_flipped(pair, change, indices, (first, second)))
    return Section(f"{second} against {first}", tuple(blocks))


def _both(name: str, curve: CurveDifference, first: str, second: str) -> Chart:
    """Chart the curves of both runs on the same samples."""
    xs, points = [float(p.at) for p in curve.points], curve.points
    drawn = [
        Series(first, "clean", tuple((x, p.first) for x, p in zip(xs, points, strict=True))),
        Series(second, "broken", tuple((x, p.second) for x, p in zip(xs, points, strict=True))),
    ]
    worst = min(points, key=lambda p: p.second - p.first)
    alt = (
        f"Accuracy by {curve.axis}; the largest loss is {100 * (worst.second - worst.first):+.1f} points at {worst.at}."
    )
    scene = lines(drawn, curve.axis, "accuracy", alt, (min(0.0, *xs), max(xs)))
    return Chart(scene, f"{name}: accuracy by {curve.axis}")


def _against_budgets(base: Run, other: Run, pairs: Sequence[Pair]) -> Iterator[Block]:
    """Yield the worst case and what is certified at each budget of both runs, with the curve over epsilon of each attack that has one."""
    sides = ((base, "clean"), (other, "broken"))
    points: dict[str, list[Series]] = {}
    summary = next((pair for pair in pairs if pair.first.name == "summary"), None)
    for (run, role), side in zip(sides, (summary.first, summary.second), strict=True) if summary else ():
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
                line = Series(f"{curve.name}, {run.label}", role, at, dashed=curve.certified, dots=False, thin=True)
                points.setdefault(curve.norm, []).append(line)
    for under, drawn in points.items():
        # Colour tells the runs apart, and the legend says no more: each mark says on hovering what it is.
        keys = [Series(run.label, role, (), line=False) for run, role in sides]
        top = max(x for series in drawn for x, _ in series.points)
        alt = f"Accuracy of both runs against epsilon under {under}, up to {plain(top)}."
        caption = f"Both runs against epsilon, {under}. Dots: worst case; rings: certified; lines: assessments over an epsilon grid"
        unnamed = (replace(series, named=False) for series in drawn)
        yield Chart(lines([*keys, *unnamed], f"epsilon ({under})", "accuracy", alt, (0, top)), caption)


def _flipped(pair: Pair, change: str, indices: Sequence[int], labels: tuple[str, str]) -> Block:
    """Return the samples that flipped one way in one outcome: pictures of some, else their names."""
    names, n = pair.first.sample_names, len(indices)
    rows_of = [{sample: row for row, sample in enumerate(run.kept.tolist())} for run in (pair.first, pair.second)]
    shown = [i for i in indices if all(i in rows for rows in rows_of)][:MOST_PICTURES]
    if not shown or pair.first.tensor("clean_inputs").ndim != 4 or picture_mode() == "none":
        return Table(f"{pair.name}, {change} ({n})", ("samples",), ((", ".join(names[i] for i in indices[:50]),),))
    more = f"; the first {len(shown)} of {n}" if n > len(shown) else ""
    first, second = pair.first.pictured, pair.second.pictured
    cells: list[tuple[str, tuple[Picture | None, ...]]] = [
        ("clean", tuple(_clean(first, rows_of[0][i]) for i in shown))
    ]
    for run, label, rows in zip((first, second), labels, rows_of, strict=True):
        cells.append((label, tuple(_perturbed(run, rows[i], label) for i in shown)))
    caption = f"{pair.name}, {change}: {n} sample{'s' if n > 1 else ''}{more}"
    return PictureGrid(caption, tuple(names[i] for i in shown), tuple(cells), small=True)


def _clean(artifacts: Artifacts, i: int) -> Picture:
    text = clean_words(artifacts, i)
    return picture(artifacts.tensor("clean_inputs")[i], f"{artifacts.sample_names[i]}, clean: {text}", text)


def _perturbed(artifacts: Artifacts, i: int, run: str) -> Picture | None:
    images, answers = artifacts.data.get("perturbed_inputs"), artifacts.data.get("perturbed_predictions")
    if not isinstance(images, Tensor) or not isinstance(answers, Tensor):
        return None
    if int(answers[i]) < 0 or not images[i].isfinite().all():
        return None
    verdict = Verdict(int(artifacts.tensor("verdicts")[i])).label.replace("_", " ")
    predicted = class_name(artifacts.class_names, int(answers[i]))
    return picture(images[i], f"{artifacts.sample_names[i]}, {run}: {predicted}, {verdict}", predicted)
