"""Vector charts in place of pictures: what a visualiser draws from numbers, the report draws from the same numbers.

A row of CHARTS stands for the picture of that visualiser: charts, each of which is nothing where the artifacts do not hold its numbers
(then the picture is shown). A visualiser without a row, or one that draws images, keeps its picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.binomial import binomial_interval
from windtunnel.core.contracts import Json
from windtunnel.reporting.report.charts.axes import plain
from windtunnel.reporting.report.charts.plots import Bar, Series, bars, columns, lines, matrix
from windtunnel.reporting.report.charts.scene import Scene
from windtunnel.reporting.report.words import Row, block, interval, kwargs, number, numbers, rows_in

Children = Mapping[str, Row]
BLUES = ("#f2f6fb", "#dbe7f4", "#c0d6ec", "#9cc2e2", "#72a9d4", "#4a8ec4", "#2a72b0", "#145596", "#0a3a72")
CIVIDIS = (
    "#00204d",
    "#0e2f69",
    "#31446b",
    "#4e576c",
    "#666970",
    "#7d7c78",
    "#958f78",
    "#aea371",
    "#c8b866",
    "#e4cf5b",
    "#ffea46",
)
_MOST_CLASSES, _MOST_LABELLED, _MOST_POINTS = 40, 20, 1000


def _confusion(a: Artifacts, _: Children) -> Scene | None:
    grid = [numbers(row) for row in _list(a, "confusion_matrix")]
    names = [str(row["class"]) for row in rows_in(a.metrics, "per_class")]
    if not grid or len(grid) > _MOST_LABELLED:
        return None
    tips = [[f"{name} classified as {other}: {int(v)} samples" for other, v in zip(names, row, strict=True)]
            for name, row in zip(names, grid, strict=True)]  # fmt: skip
    off = sum(map(sum, grid)) - sum(grid[i][i] for i in range(len(grid)))
    alt = f"Confusion matrix of {len(names)} classes; {int(off)} samples are off the diagonal."
    return matrix(
        grid, names, names, "predicted class", "true class", alt, BLUES, lambda v: f"{int(v)}" if v else "", tips
    )


def _reliability(a: Artifacts, _: Children) -> Scene | None:
    bins = block(a.metrics, "reliability")
    if not bins:
        return None
    rows = list(zip(*(numbers(bins[key]) for key in ("confidence", "accuracy", "count")), strict=True))
    drawn = [(confidence, accuracy, int(n)) for confidence, accuracy, n in rows if n]
    limits = tuple(binomial_interval(round(accuracy * n), n) for _, accuracy, n in drawn)
    series = (
        Series("perfect calibration", "soft", ((0, 0), (1, 1)), dashed=True, dots=False),
        Series("accuracy of the samples of a bin of confidence, with 95 % intervals", "clean",
               tuple((x, y) for x, y, _ in drawn), limits, line=False),
    )  # fmt: skip
    alt = f"Accuracy against confidence; expected calibration error {number(a.metrics, 'ece'):.3f}."
    return lines(series, "confidence (max softmax)", "accuracy", alt, (0, 1), (0, 1.02))


def _per_class(a: Artifacts, _: Children) -> Scene | None:
    rows = [row for row in rows_in(a.metrics, "per_class") if "accuracy" in row]
    if not rows:
        return None
    shown = sorted(rows, key=lambda r: number(r, "accuracy"))[:_MOST_CLASSES] if len(rows) > _MOST_CLASSES else rows
    drawn = [Bar(str(r["class"]), number(r, "accuracy"), "clean", interval(r, "accuracy")) for r in shown]
    left_out = f"; the {len(shown)} least accurate of {len(rows)}" if len(shown) < len(rows) else ""
    return bars(drawn, f"clean accuracy per class, 95 % intervals{left_out}", "Clean accuracy of each class.")


def _degradation(a: Artifacts, _: Children) -> Scene | None:
    m = a.metrics
    if "accuracy_curve" not in m:
        return None
    x = numbers(m["epsilons"])
    limits: tuple[tuple[float, float], ...] = ()
    if "accuracy_curve_ci_low" in m:
        limits = tuple(zip(numbers(m["accuracy_curve_ci_low"]), numbers(m["accuracy_curve_ci_high"]), strict=True))
    drawn = [
        Series(
            "broken here or before, 95 % band",
            "broken",
            tuple(zip(x, numbers(m["accuracy_curve"]), strict=True)),
            limits,
        )
    ]
    raw = m.get("accuracy_curve_raw")
    if raw and raw != m["accuracy_curve"]:
        drawn.append(Series("at this epsilon alone", "soft", tuple(zip(x, numbers(raw), strict=True)), dashed=True))
    median = [(number(m, "median_epsilon"), "median epsilon")] if "median_epsilon" in m else []
    alt = f"Accuracy against epsilon: {number(m, 'clean_accuracy'):.1%} clean, {drawn[0].points[-1][1]:.1%} at {plain(x[-1])}."
    return lines(drawn, "epsilon", "top-1 accuracy", alt, (0, x[-1]), (0, 1.0), vertical=median)


def _critical(a: Artifacts, _: Children) -> Scene | None:
    critical, counts = a.data.get("critical_epsilon"), a.metrics.get("critical_epsilon_histogram")
    if critical is None or isinstance(critical, dict) or not counts:
        return None
    survivors = float((~critical.isfinite()).sum())
    largest = numbers(a.metrics["epsilons"])[-1]
    alt = f"Smallest epsilon that flips each prediction, up to {plain(largest)}; {int(survivors)} samples never flip."
    return columns(
        numbers(counts),
        (0, largest),
        "critical epsilon",
        alt,
        "broken",
        ("never flips in this menu", survivors, "unknown"),
    )


def _confidence(a: Artifacts, _: Children) -> Scene | None:
    critical, confidence = a.data.get("critical_epsilon"), a.data.get("clean_confidence")
    if critical is None or confidence is None or isinstance(critical, dict) or isinstance(confidence, dict):
        return None
    if len(critical) > _MOST_POINTS:
        return None
    largest = numbers(a.metrics["epsilons"])[-1]
    pairs = list(zip(critical.tolist(), confidence.tolist(), strict=True))
    flips = tuple((x, y) for x, y in pairs if x <= largest)
    never = tuple((1.06 * largest, y) for x, y in pairs if not x <= largest)
    series = [
        Series("flips", "broken", flips, line=False),
        Series("never flips in this menu", "certified", never, line=False),
    ]
    alt = "Clean confidence against critical epsilon; top left is confidently wrong soonest."
    return lines(
        [s for s in series if s.points],
        "critical epsilon",
        "clean confidence (max softmax)",
        alt,
        (0, 1.1 * largest),
        (0, 1.02),
    )


def _class_accuracy(a: Artifacts, _: Children) -> Scene | None:
    values = a.metrics.get("per_class_accuracy_at_median_epsilon")
    if not values:
        return None
    rows = list(zip(a.class_names, numbers(values), strict=True))
    shown = sorted(rows, key=lambda r: r[1])[:_MOST_CLASSES] if len(rows) > _MOST_CLASSES else rows
    label = f"top-1 accuracy per class at the median epsilon, {number(a.metrics, 'median_epsilon'):.4g}"
    return bars([Bar(name, v, "broken") for name, v in shown], label, label)


def _verdicts(a: Artifacts, _: Children) -> Scene | None:
    roles = {"verified": "certified", "falsified": "broken", "unknown": "unknown", "error": "error"}
    rows = [Bar(name, number(a.metrics, f"{name}_rate"), role, interval(a.metrics, f"{name}_rate"))
            for name, role in roles.items() if f"{name}_rate" in a.metrics]  # fmt: skip
    if not rows:
        return None
    n = a.metrics.get("n_samples", len(a.sample_names))
    return bars(rows, f"share of {n} samples, 95 % intervals", "; ".join(f"{r.label} {r.value:.1%}" for r in rows))


def _run_times(a: Artifacts, _: Children) -> Scene | None:
    seconds = a.data.get("runtime_per_sample")
    if seconds is None or isinstance(seconds, dict) or not bool((seconds > 0).any()):
        return None
    powers = seconds[seconds > 0].double().log10()
    low, high = float(powers.min().floor()), float(powers.max().floor()) + 1
    counts = powers.histc(bins=20, min=low, max=high).tolist()
    median = float(seconds.double().median())
    alt = f"Run times of {len(seconds)} samples, median {median:.3g} s, longest {float(seconds.max()):.3g} s."
    return columns(counts, (low, high), f"log10 of the seconds of a sample; median {median:.3g} s", alt, "accent")


def _decided_by(a: Artifacts, _: Children) -> Scene | None:
    decided = block(a.metrics, "decided_by")
    if not decided:
        return None
    counts = {name: number(decided, name) for name in decided}
    counts["not decided"] = len(a.sample_names) - sum(counts.values())
    roles = {"clean": "wrong", "attack": "broken", "not decided": "unknown"}
    rows = [Bar(name, n, roles.get(name, "certified")) for name, n in counts.items() if n or name != "not decided"]
    alt = "Samples decided by each step: " + ", ".join(f"{r.label} {int(r.value)}" for r in rows)
    return bars(rows, "samples decided by each step, in the order of the cascade", alt, top=max(counts.values()) or 1,
                value_format=plain, axis_format=plain)  # fmt: skip


def _certified_curve(a: Artifacts, _: Children) -> Scene | None:
    m = a.metrics
    if "certified_curve" not in m:
        return None
    x = numbers(m["curve_epsilons"])
    limits = zip(numbers(m["certified_curve_ci_low"]), numbers(m["certified_curve_ci_high"]), strict=True)
    certified = tuple(zip(x, numbers(m["certified_curve"]), strict=True))
    drawn = [Series("certified, 95 % band", "certified", certified, tuple(limits), thin=True)]
    if "empirical_curve" in m:
        attacked = tuple(zip(x, numbers(m["empirical_curve"]), strict=True))
        drawn.append(Series("left by PGD", "broken", attacked, dashed=True, thin=True))
    alt = f"Certified accuracy against epsilon; mean certified radius {number(m, 'average_certified_radius'):.4g}."
    return lines(drawn, "epsilon", "accuracy", alt, (0, x[-1]), (0, 1))


def _success_against_queries(a: Artifacts, _: Children) -> Scene | None:
    m = a.metrics
    if not m.get("query_budgets"):
        return None
    x = numbers(m["query_budgets"])
    limits = zip(numbers(m["success_rate_curve_ci_low"]), numbers(m["success_rate_curve_ci_high"]), strict=True)
    points = tuple(zip(x, numbers(m["success_rate_curve"]), strict=True))
    alt = f"Attack success rate against queries: {points[-1][1]:.1%} within {plain(x[-1])}."
    drawn = [Series("images broken within so many queries, 95 % band", "broken", points, tuple(limits), thin=True)]
    return lines(drawn, "queries", "attack success rate", alt, (0, x[-1]), (0, 1))


def _corruptions(a: Artifacts, _: Children) -> Scene | None:
    m = a.metrics
    by = block(m, "accuracy_by_corruption")
    if by:
        rows = [Bar(str(c), number(by, c), "corrupted") for c in sorted(by, key=lambda c: number(by, c))]
        label = f"accuracy on {len(a.sample_names)} samples, mean of the severities"
    elif "corrupted_accuracy" in m:
        rows = [Bar(a.name, number(m, "corrupted_accuracy"), "corrupted", interval(m, "corrupted_accuracy"))]
        label = f"accuracy on {len(a.sample_names)} samples"
    else:
        return None
    clean = number(m, "clean_accuracy")
    alt = f"Accuracy per corruption against {clean:.1%} clean; the lowest is {rows[0].label} with {rows[0].value:.1%}."
    return bars(rows, label, alt, (clean, f"clean {clean:.1%}"))


def _severities(a: Artifacts, _: Children) -> Scene | None:
    m, pairs = a.metrics, _pairs(a)
    if not pairs or "accuracy_by_pair" not in m or "accuracy_by_severity" not in m:
        return None
    accuracy, zero = numbers(m["accuracy_by_pair"]), number(m, "severity_0_accuracy", number(m, "clean_accuracy"))
    drawn = []
    for name in dict.fromkeys(c for c, _ in pairs):
        points = tuple((s, v) for (c, s), v in zip(pairs, accuracy, strict=True) if c == name)
        drawn.append(Series(name, "soft", ((0, zero), *points), thin=True, named=False))
    severities = numbers(m["severities"])
    mean = ((0.0, zero), *zip(severities, numbers(m["accuracy_by_severity"]), strict=True))
    drawn.append(Series("mean; thin lines are single corruptions", "corrupted", mean))
    alt = f"Mean accuracy against severity: {zero:.1%} at 0, {mean[-1][1]:.1%} at {plain(severities[-1])}."
    return lines(
        drawn, "severity (0: 8-bit rounding alone)", "accuracy", alt, (0, severities[-1]), (0, 1), [0, *severities]
    )


def _corruption_map(a: Artifacts, children: Children) -> Scene | None:
    pairs = _pairs(a)
    if not pairs or "accuracy_by_pair" not in a.metrics:
        return None
    accuracy = dict(zip(pairs, numbers(a.metrics["accuracy_by_pair"]), strict=True))
    names, severities = list(dict.fromkeys(c for c, _ in pairs)), sorted({s for _, s in pairs})
    if len(accuracy) != len(names) * len(severities):
        return None
    grid = [[accuracy[c, s] for s in severities] for c in names]

    def tip(name: str, severity: int) -> str:
        limits = interval(block(children.get(f"{name}-{severity}", {}), "metrics"), "corrupted_accuracy")
        words = f" [{limits[0]:.1%}, {limits[1]:.1%}]" if limits else ""
        return f"{name}, severity {severity}: {accuracy[name, severity]:.1%}{words}"

    tips = [[tip(c, s) for s in severities] for c in names]
    alt = "Accuracy per corruption and severity."
    return matrix(
        grid, names, [str(s) for s in severities], "severity", "corruption", alt, CIVIDIS, lambda v: f"{v:.0%}", tips
    )


def _pairs(a: Artifacts) -> list[tuple[str, int]]:
    found = kwargs(a).get("corruptions")
    rows = found if isinstance(found, list) else []
    return [(str(r[0]), int(str(r[1]))) for r in rows if isinstance(r, list) and len(r) == 2]


def _list(a: Artifacts, key: str) -> list[Json]:
    value = a.metrics.get(key)
    return value if isinstance(value, list) else []


CHARTS: dict[str, tuple[Callable[[Artifacts, Children], Scene | None], ...]] = {
    "ConfusionMatrixVisualiser": (_confusion,),
    "ReliabilityVisualiser": (_reliability,),
    "PerClassAccuracyVisualiser": (_per_class,),
    "DegradationCurveVisualiser": (_degradation,),
    "CriticalEpsilonVisualiser": (_critical,),
    "ConfidenceVisualiser": (_confidence,),
    "ClassAccuracyVisualiser": (_class_accuracy,),
    "VerdictSummaryVisualiser": (_verdicts, _run_times),
    "DecidedByVisualiser": (_decided_by,),
    "CertifiedCurveVisualiser": (_certified_curve,),
    "SuccessAgainstQueriesVisualiser": (_success_against_queries,),
    "CorruptionAccuracyVisualiser": (_corruptions,),
    "SeverityCurveVisualiser": (_severities,),
    "CorruptionHeatmapVisualiser": (_corruption_map,),
}
