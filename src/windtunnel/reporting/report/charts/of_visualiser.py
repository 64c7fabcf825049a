"""Vector charts in place of pictures: what a visualiser draws from numbers, the report draws from the same numbers.

A row of CHARTS stands for the picture of that visualiser: charts, each of which is nothing where the artifacts do not hold its numbers
(then the picture is shown). A visualiser without a row, or one that draws images, keeps its picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from windtunnel.assessments.figures.axes import HALF, plain
from windtunnel.assessments.figures.plots import (
    Bar,
    Series,
    Stack,
    bars,
    columns,
    intervals,
    lines,
    matrix,
    ranks,
    stacks,
)
from windtunnel.assessments.figures.scene import Scene
from windtunnel.core.artifacts import Artifacts
from windtunnel.core.binomial import binomial_interval
from windtunnel.core.contracts import Json, Verdict
from windtunnel.reporting.report.words import (
    Row,
    block,
    class_name,
    interval,
    number,
    numbers,
    rows_in,
    short,
    suite_pairs,
)

Children = Mapping[str, Row]
Draw = Callable[[Artifacts, Children], "Scene | None"]
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
    return bars(
        drawn, f"clean accuracy per class, 95 % intervals{left_out}", "Clean accuracy of each class.", width=HALF
    )


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
        ("never flips at these epsilons", survivors, "unknown"),
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
        Series("never flips at these epsilons", "certified", never, line=False),
    ]
    alt = "Clean confidence against critical epsilon; top left is confidently wrong soonest." + _groups(a)
    return lines(
        [s for s in series if s.points],
        "critical epsilon",
        "clean confidence (max softmax)",
        alt,
        (0, 1.1 * largest),
        (0, 1.02),
    )


def _groups(a: Artifacts) -> str:
    """How many samples flip earliest and last longest, and how sure the model was of them."""
    words = {"earliest": "flip earliest", "longest": "last longest"}
    return "".join(
        f" {short(a.metrics[f'n_{group}'])} {what}, mean confidence {number(a.metrics, f'confidence_{group}'):.1%}."
        for group, what in words.items()
        if f"confidence_{group}" in a.metrics and f"n_{group}" in a.metrics
    )


def _class_accuracy(a: Artifacts, _: Children) -> Scene | None:
    classes = rows_in(a.metrics, "per_class_at_median_epsilon")
    if not classes:
        return None
    rows = [
        Bar(f"{name}, n {short(row.get('n'))}", number(row, "accuracy"), "broken", interval(row, "accuracy"))
        for name, row in zip(a.class_names, classes, strict=True)
    ]
    shown = sorted(rows, key=lambda r: r.value)[:_MOST_CLASSES] if len(rows) > _MOST_CLASSES else rows
    label = f"top-1 accuracy per class at the median epsilon, {number(a.metrics, 'median_epsilon'):.4g}, 95 % intervals"
    return bars(shown, label, label, width=HALF)


def _verdicts(a: Artifacts, _: Children) -> Scene | None:
    roles = {"verified": "certified", "falsified": "broken", "unknown": "unknown", "error": "error"}
    late = int(number(a.metrics, "timeouts"))
    words = {"unknown": f"unknown, {late} out of time"} if late else {}
    rows = [Bar(words.get(name, name), number(a.metrics, f"{name}_rate"), role, interval(a.metrics, f"{name}_rate"))
            for name, role in roles.items() if f"{name}_rate" in a.metrics]  # fmt: skip
    if not rows:
        return None
    n = a.metrics.get("n_samples", len(a.sample_names))
    return bars(
        rows, f"share of {n} samples, 95 % intervals", "; ".join(f"{r.label} {r.value:.1%}" for r in rows), width=HALF
    )


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
                value_format=plain, axis_format=plain, width=HALF)  # fmt: skip


def _certified_curve(a: Artifacts, _: Children) -> Scene | None:
    m = a.metrics
    if "certified_curve" not in m:
        return None
    x = numbers(m["curve_epsilons"])
    limits = zip(numbers(m["certified_curve_ci_low"]), numbers(m["certified_curve_ci_high"]), strict=True)
    certified = tuple(zip(x, numbers(m["certified_curve"]), strict=True))
    # What ran out of time is no finding about the model: the curve is what was verified until then.
    late = int(number(m, "timeouts"))
    words = (
        f"certified, at least: {late} of {len(a.sample_names)} samples out of time" if late else "certified, 95 % band"
    )
    drawn = [Series(words, "unknown" if late else "certified", certified, tuple(limits), dashed=late > 0, thin=True)]
    if "empirical_curve" in m:
        attacked = tuple(zip(x, numbers(m["empirical_curve"]), strict=True))
        drawn.append(Series("left by PGD", "broken", attacked, dashed=True, thin=True))
    name = "average_certified_radius"
    mean = f"{number(m, name):.4g}" if name in m else f"at least {number(m, f'{name}_at_least'):.4g}"
    alt = f"Certified accuracy against epsilon; mean certified radius {mean}."
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


def _what_a_success_took(key: str, words: str) -> Draw:
    def draw(a: Artifacts, _: Children) -> Scene | None:
        values = a.metrics.get(f"{key}_succ")
        return (
            _histogram(numbers(values), words, f"{key}_succ_median", a) if isinstance(values, list) and values else None
        )

    return draw


def _histogram(values: list[float], words: str, median_key: str, a: Artifacts) -> Scene:
    low, high = min(0.0, *values), max(*values, 1e-9)
    counts, _ = np.histogram(values, bins=20, range=(low, high))
    middle = float(np.median(values)) if median_key not in a.metrics else number(a.metrics, median_key)
    alt = f"{words} of {len(values)} samples: median {plain(middle)}, largest {plain(high)}."
    return columns(counts.tolist(), (low, high), f"{words}; median {plain(middle)}", alt, "broken")


def _latent_accuracies(a: Artifacts, _: Children) -> Scene | None:
    if "lra" not in a.metrics:
        return None
    names = {"clean_accuracy": "as they are", "lra": "reconstructed, LRA", "lga": "generated, LGA",
             "lara": "attacked, LARA", "laga": "attacked, LAGA"}  # fmt: skip
    roles = {"clean_accuracy": "clean", "lara": "broken", "laga": "broken"}
    rows = [Bar(words, number(a.metrics, key), roles.get(key, "accent"), interval(a.metrics, key))
            for key, words in names.items() if key in a.metrics]  # fmt: skip
    alt = "; ".join(f"{r.label} {r.value:.1%}" for r in rows)
    return bars(rows, f"accuracy; attacked within {number(a.metrics, 'rho'):g} in latent space", alt, width=HALF)


def _latent_noise(a: Artifacts, _: Children) -> Scene | None:
    m = a.metrics
    if "noise_levels" not in m:
        return None
    drawn = []
    for side, role in (("reconstruction", "clean"), ("generation", "corrupted")):
        if f"llna_{side}_curve" not in m:
            continue
        known = [(float(str(x)), float(str(y)), float(str(low)), float(str(high))) for x, y, low, high in zip(
            _list(a, "noise_levels"), *(_list(a, f"llna_{side}_curve{end}") for end in ("", "_ci_low", "_ci_high")), strict=True)
            if y is not None]  # fmt: skip
        drawn.append(Series(side, role, tuple(k[:2] for k in known), tuple((k[2], k[3]) for k in known)))
    if not any(s.points for s in drawn):
        return None
    alt = "Accuracy under latent noise (LLNA): " + "; ".join(
        f"{s.label} {s.points[-1][1]:.1%} at the largest" for s in drawn
    )
    return lines(
        drawn, "size of the latent noise", "accuracy (LLNA)", alt, (0, max(x for s in drawn for x, _ in s.points))
    )


def _latent_sizes(a: Artifacts, _: Children) -> Scene | None:
    distances, made = a.data.get("perturbation_distance"), a.data.get("generated")
    if not isinstance(distances, Tensor) or not isinstance(made, dict):
        return None
    sides = [
        ("clean", "reconstructed (LARS is the mean)", distances),
        ("corrupted", "generated (LAGS is the mean)", made["distances"]),
    ]
    found = [(role, words, values[values.isfinite()].tolist()) for role, words, values in sides]
    found = [one for one in found if one[2]]
    if not found:
        return None
    top = max(max(values) for _, _, values in found)
    horizontal = (number(a.metrics, "rho"), "bound of LARA and LAGA") if "rho" in a.metrics else None
    alt = "Smallest change of a code that changes the answer, sorted; the share below a bound is what an attack of that size breaks."
    return ranks(found, "smallest change found (latent norm)", alt, top, horizontal=horizontal)


def _flips(a: Artifacts, _: Children) -> Scene | None:
    pairs, predictions = suite_pairs(a), a.data.get("corruption_predictions")
    if not pairs or not isinstance(predictions, Tensor):
        return None
    targets, clean = a.tensor("targets"), a.tensor("clean_predictions")
    right, was_right, moved = predictions == targets, clean == targets, predictions != clean
    kinds = (moved & was_right, moved & ~was_right & ~right, moved & right)
    rows = []
    for name in dict.fromkeys(c for c, _ in pairs):
        mine = [i for i, (c, _) in enumerate(pairs) if c == name]
        rows.append(Stack(name, tuple(float(kind[mine].double().mean()) for kind in kinds)))
    rows.sort(key=lambda row: -sum(row.shares))
    key = (("broken", "right to wrong"), ("unknown", "wrong to another wrong"), ("certified", "wrong to right"))
    alt = f"Share of answers that a corruption changes; most: {rows[0].label}, {sum(rows[0].shares):.1%}."
    return stacks(rows, key, "share of the samples, mean of the severities", alt, max(0.05, sum(rows[0].shares)))


def _minimal_severity(a: Artifacts, _: Children) -> Scene | None:
    minimal = a.data.get("minimal_severity")
    if not isinstance(minimal, Tensor) or "severities" not in a.metrics:
        return None
    severities = [int(s) for s in numbers(a.metrics["severities"])]
    wrong = a.tensor("clean_predictions") != a.tensor("targets")
    counts = [int(((minimal == s) & ~wrong).sum()) for s in (*severities, 6)]
    names = [*(f"severity {s}" for s in severities), "none of them"]
    rows = [
        Bar(name, n, "certified" if name == "none of them" else "corrupted")
        for name, n in zip(names, counts, strict=True)
    ]
    alt = "Samples by the mildest severity that breaks them: " + ", ".join(f"{r.label} {int(r.value)}" for r in rows)
    return bars(rows, f"samples broken first at; {int(wrong.sum())} more are misclassified anyway", alt, top=max(1, *counts),
                value_format=plain, axis_format=plain, width=HALF)  # fmt: skip


def _pinned_bounds(a: Artifacts, _: Children) -> Scene | None:
    bounds = a.data.get("output_bounds")
    if not isinstance(bounds, dict) or not bool(bounds["lower"].isfinite().any()):
        return None
    lower, upper, targets, verdicts = bounds["lower"], bounds["upper"], a.tensor("targets"), a.tensor("verdicts")
    known = lower.isfinite().all(1).nonzero().flatten().tolist()[:4]
    panels = []
    for i in known:
        target = int(targets[i])
        order = [target, *(c for c in upper[i].argsort(descending=True).tolist() if c != target)]
        rows = [(class_name(a.class_names, c), float(lower[i, c]), float(upper[i, c]), "broken" if c == target else "clean")
                for c in sorted(order[:20])]  # fmt: skip
        panels.append((f"{a.sample_names[i]}: {Verdict(int(verdicts[i])).label}", rows))
    return intervals(panels, "logit; the target in orange", "Output bounds per class of single samples.")


def _margins(a: Artifacts, _: Children) -> Scene | None:
    margins = a.data.get("lower_margins")
    if not isinstance(margins, Tensor) or not bool(margins.isfinite().any()):
        return None
    known = margins[margins.isfinite()].tolist()
    low, high = min(0.0, *known), max(0.0, *known)
    above = sum(v > 0 for v in known)
    alt = f"Verified margins of {len(known)} samples, sorted: {above} are above 0, which proves the sample."
    return ranks([("certified", f"verified margin; above 0 the sample is verified ({above} of {len(known)})", known)],
                 "smallest margin over the other classes", alt, high, low, (0.0, "verified above this line"))  # fmt: skip


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
    return bars(rows, label, alt, (clean, f"clean {clean:.1%}"), width=HALF)


def _severities(a: Artifacts, _: Children) -> Scene | None:
    m, pairs = a.metrics, suite_pairs(a)
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
    pairs = suite_pairs(a)
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
        grid, names, [str(s) for s in severities], "severity", "corruption", alt, CIVIDIS, lambda v: f"{v:.1%}", tips
    )


def _list(a: Artifacts, key: str) -> list[Json]:
    value = a.metrics.get(key)
    return value if isinstance(value, list) else []


CHARTS: dict[str, tuple[Draw, ...]] = {
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
    "PredictionFlipsVisualiser": (_flips,),
    "MinimalSeverityVisualiser": (_minimal_severity,),
    "OutputBoundsPinnedVisualiser": (_pinned_bounds,),
    "OutputBoundsMarginHeatmapVisualiser": (_margins,),
    "QueryHistogramsVisualiser": (
        _what_a_success_took("queries", "queries of a success"),
        _what_a_success_took("l0_dists", "values changed (L0)"),
        _what_a_success_took("l2_dists", "L2 distance"),
    ),
    "LatentMetricsVisualiser": (_latent_accuracies, _latent_noise),
    "LatentDistributionsVisualiser": (_latent_sizes,),
}
