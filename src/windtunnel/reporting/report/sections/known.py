"""What is known at each budget, and against epsilon: attacked from above, certified from below."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.assessments.figures.axes import plain
from windtunnel.assessments.figures.plots import Series, lines
from windtunnel.evaluation.summary.security import SecurityCurve
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.model import Block, Chart, Table
from windtunnel.reporting.report.sections.verdict import layers
from windtunnel.reporting.report.words import Row, budget, interval, number, percent, short

_ATTACKED = ("broken", "attack-2", "attack-3", "attack-4", "attack-5", "attack-6")
_CERTIFIED = ("certified", "certificate-2", "certificate-3", "certificate-4")


def budgets_table(found: Found) -> Table:
    """Both ends of the sandwich at each budget, and who set them."""
    rows = tuple(
        (
            budget(r), percent(r, "certified_accuracy"), percent(r, "worst_case_accuracy"), short(r.get("n_attacked")),
            short(r.get("n_examined")), ", ".join(dict.fromkeys([*_names(r, "attacked_by"), *_names(r, "certified_by")])),
        )
        for r in layers(found.summary)
    )  # fmt: skip
    header = ("budget", "certified", "worst case", "attacked", "examined", "set by")
    return Table("What is known at each budget; the first is the one of the verdict", header, rows)


def _names(row: Row, key: str) -> list[str]:
    value = row.get(key)
    return [str(v) for v in value] if isinstance(value, list) else []


def known_against_epsilon(found: Found) -> Iterator[Block]:
    """Per norm, what is known against epsilon: attacked from above, certified from below, and the ends of the sandwich."""
    n = len(found.base.sample_names) if found.base else 0
    for norm in dict.fromkeys(curve.norm for curve in found.curves):
        rows = [row for row in layers(found.summary) if row["norm"] == norm]
        mine = [curve for curve in found.curves if curve.norm == norm]
        sides = [[c for c in mine if c.certified is certified] for certified in (False, True)]
        drawn = [one for side in sides for i, curve in enumerate(side) for one in _series(curve, i, n)]
        # Points without a line: between two budgets nothing was measured.
        drawn += [
            Series(
                words,
                role,
                tuple((number(r, "epsilon"), number(r, key)) for r in having),
                _limits(having, key),
                line=False,
            )
            for key, words, role in (
                ("worst_case_accuracy", "worst case of all assessments", "ink"),
                ("certified_accuracy", "certified by any", "clean"),
            )
            if (having := [r for r in rows if key in r])
        ]
        top = max(x for series in drawn for x, _ in series.points)
        alt = f"Accuracy against epsilon under {norm}, up to {plain(top)}."
        yield Chart(
            lines(drawn, f"epsilon ({norm})", "accuracy", alt, (0, top), (0, 1)),
            f"What is known against epsilon, {norm}",
        )


def _series(curve: SecurityCurve, i: int, n: int) -> Iterator[Series]:
    """A line where the curve is known between its points (in steps, or at the points of an epsilon grid), else its points."""
    words = f"{curve.name}, {'certified' if curve.certified else 'attacked'}"
    words += " (of the smoothed model)" if curve.smoothed else ""
    words += f", n = {curve.samples}" if curve.samples != n else ""
    words += f", at least: {curve.out_of_time} samples out of time" if curve.out_of_time else ""
    colours = _CERTIFIED if curve.certified else _ATTACKED
    colour = colours[i % len(colours)]
    points = tuple(zip(curve.epsilons, curve.accuracy, strict=True))
    if curve.steps:
        corners = ((x, y) for (_, y), (x, _) in zip(points, points[1:], strict=False))
        stairs = tuple(p for pair in zip(points, (*corners, points[-1]), strict=True) for p in pair)
        yield Series(words, colour, stairs, dots=False)
        yield Series(words, colour, points, line=False, thin=True, named=False)
    else:
        limits = tuple(zip(curve.low, curve.high, strict=True))
        yield Series(words, colour, points, limits, dashed=curve.certified, line=len(points) > 1, thin=len(points) > 20)


def _limits(rows: list[Row], key: str) -> tuple[tuple[float, float], ...]:
    found = [limits for r in rows if (limits := interval(r, key))]
    return tuple(found) if len(found) == len(rows) else ()
