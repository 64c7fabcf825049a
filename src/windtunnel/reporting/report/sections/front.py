"""Page one: the verdict in words, the headline numbers, the sandwich, the three findings that matter, what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.binomial import binomial_rate
from windtunnel.core.contracts import AssessmentKind
from windtunnel.reporting.report.charts.sandwich import Layer, sandwich
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.model import Chart, Finding, Tile
from windtunnel.reporting.report.sections.verdict import layers
from windtunnel.reporting.report.words import (
    Row,
    block,
    bracket,
    budget,
    interval,
    mean_over,
    number,
    numbers,
    region,
    suite_pairs,
)

FINDINGS = 3


def subtitle(found: Found) -> str:
    """What was assessed, in a line."""
    if found.summary is None:
        return "no summary: the run is incomplete"
    origin = block(found.summary.metadata, "provenance")
    data = block(found.facts, "data").get("source")
    return f"{origin.get('model_source', 'the model')} on {found.summary.metrics['n_samples']} samples" + (
        f" of {data}" if data else ""
    )


def tiles(summary: Artifacts | None) -> Iterator[Tile]:
    """The headline numbers at the global budget."""
    if summary is None:
        return
    row = layers(summary)[0]
    where = budget(row)
    for label, source, key, meaning, role in (
        ("clean accuracy", summary.metrics, "clean_accuracy", "right without any attack", "clean"),
        ("worst-case accuracy", row, "worst_case_accuracy", f"not broken at {where}", "broken"),
        ("certified accuracy", row, "certified_accuracy", f"proved at {where}", "certified"),
    ):
        if key in source:
            limits = interval(source, key)
            yield Tile(label, f"{number(source, key):.1%}", bracket(limits).strip(), meaning, role)
        else:
            yield Tile(label, "-", "", f"not assessed at {where}", "unknown")


def sandwich_chart(summary: Artifacts | None) -> Chart | None:
    """The sandwich per budget; None where there is no summary."""
    if summary is None:
        return None
    clean = number(summary.metrics, "clean_accuracy")
    drawn = []
    for row in layers(summary):
        certified = number(row, "certified_accuracy")
        worst = max(number(row, "worst_case_accuracy", clean), certified)
        limits = interval(row, "certified_accuracy"), interval(row, "worst_case_accuracy")
        drawn.append(Layer(budget(row), certified, worst, max(clean, worst), *limits))
    words = f"The robustness sandwich: what is known of the {summary.metrics['n_samples']} samples at each budget."
    return Chart(sandwich(drawn), words)


def findings(found: Found) -> tuple[Finding, ...]:
    """The findings that matter most, at most three."""
    lines = [line for line, _ in _candidates(found)][:FINDINGS]
    return tuple(Finding("info", line) for line in lines)


def caveats(found: Found, checks_noted: Iterable[str]) -> tuple[Finding, ...]:
    """What limits every number, what limits the findings, and what is missing."""
    general = [c.text for a in (found.summary, found.clean) if a for c in a.caveats if c.code != "hard_failure"]
    named = [a for _, a in list(_candidates(found))[:FINDINGS] if a]
    checks = {str(row["id"]) for row in found.checks or ()}  # their caveats stand here under their own name
    own = [f"{a.name}: {c.text}" for a in named for c in a.caveats if c.text not in general and c.code not in checks]
    lines = dict.fromkeys((*general, *own, *list(checks_noted)[:3], *found.problems))
    return tuple(Finding("warning", line) for line in lines)


def _candidates(found: Found) -> Iterator[tuple[str, Artifacts | None]]:
    """(sentence, the assessment whose caveats limit it), the most important first."""
    summary = found.summary
    if summary is not None:
        row, clean = layers(summary)[0], number(summary.metrics, "clean_accuracy")
        if "certified_accuracy" in row:
            certified = number(row, "certified_accuracy")
            worst = number(row, "worst_case_accuracy", clean)
            text = f"True robust accuracy at {budget(row)} on these samples"
            if worst > certified:
                gap = f"{worst - certified:.1%} of the samples are neither proved nor broken."
                yield f"{text} lies between {certified:.1%} and {worst:.1%}; {gap}", None
            else:
                yield f"{text} is {worst:.1%}: each is proved, broken or misclassified; nothing is left open.", None
        yield from _most_damaging(found.assessments, row)
    suites = [a for a in found.assessments if "worst_corruption" in a.metrics]
    if suites:
        worst_suite = min(suites, key=lambda a: number(a.metrics, "worst_corruption_accuracy"))
        yield _worst_corruption(worst_suite), worst_suite
    if summary is not None:
        yield from _weakest_class(summary)


def _most_damaging(assessments: Iterable[Artifacts], row: Row) -> Iterator[tuple[str, Artifacts]]:
    """The attack of this budget, and of no other, that turned most answers."""
    rates = [
        (number(a.metrics, "attack_success_rate"), a)
        for a in assessments
        if "attack_success_rate" in a.metrics
        and a.metadata["assessment_kind"] == AssessmentKind.EMPIRICAL_ATTACK
        and (region(a).get("norm"), region(a).get("epsilon")) == (row["norm"], row["epsilon"])
    ]
    if rates:
        rate, worst = max(rates, key=lambda pair: pair[0])
        yield (
            f"The most damaging single attack at {budget(row)} is {worst.name} ({worst.metadata['algorithm']}): it turns "
            f"{rate:.1%} of the answers that were right at first.",
            worst,
        )


def _worst_corruption(suite: Artifacts) -> str:
    """The worst corruption of a suite, as a mean over its severities, and the single worst corruption and severity."""
    m, pairs = suite.metrics, suite_pairs(suite)
    clean, low = number(m, "clean_accuracy"), number(m, "worst_corruption_accuracy")
    over = f" ({mean_over(suite)})" if mean_over(suite) else ""
    words = (
        f"Under {m['worst_corruption']}, the worst corruption of {suite.name}, accuracy falls from {clean:.1%} to {low:.1%}{over}, "
        f"on {len(suite.sample_names)} samples"
    )
    if len(pairs) > 1 and "accuracy_by_pair" in m:
        value, (name, severity) = min(zip(numbers(m["accuracy_by_pair"]), pairs, strict=True))
        words += f"; lowest is {name} at severity {severity} with {value:.1%}"
    return f"{words}."


def _weakest_class(summary: Artifacts) -> Iterator[tuple[str, None]]:
    """The class whose samples hold least in the worst case."""
    targets, held = summary.tensor("targets"), summary.tensor("verdicts") != 1
    counts = [(int(held[targets == k].sum()), int((targets == k).sum()), k) for k in targets.unique().tolist()]
    if len(counts) < 2:
        return
    right, n, label = min(counts, key=lambda c: c[0] / c[1])
    rate = binomial_rate(right, n)
    name = summary.class_names[label] if label < len(summary.class_names) else str(label)
    yield (
        f"Class {name} holds least in the worst case: {right} of its {n} samples were not broken, "
        f"{rate.value:.1%}{bracket((rate.low, rate.high))}.",
        None,
    )
