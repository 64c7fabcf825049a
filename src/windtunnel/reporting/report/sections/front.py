"""Page one: the verdict in words, the headline numbers, the sandwich, the three findings that matter, what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.binomial import binomial_rate
from windtunnel.core.contracts import AssessmentKind
from windtunnel.reporting.report.charts.sandwich import Layer, sandwich
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.model import Chart, Finding, Tile
from windtunnel.reporting.report.words import Row, block, bracket, budget, interval, listed, number, region, rows_in

FINDINGS = 3


def layers(summary: Artifacts | None) -> list[Row]:
    """The budgets of the sandwich, the global one first; empty where there is no summary."""
    return rows_in(summary.metrics, "sandwich") if summary else []


def hard_failures(summary: Artifacts | None) -> list[str]:
    """Why these numbers must not be believed."""
    return [str(line) for line in listed(block(summary.metadata, "kwargs"), "hard_failures")] if summary else []


def subtitle(found: Found) -> str:
    """What was assessed, in a line."""
    if found.summary is None:
        return "no summary: the run is incomplete"
    origin = block(found.summary.metadata, "provenance")
    data = block(found.facts, "data").get("source")
    return f"{origin.get('model_source', 'the model')} on {found.summary.metrics['n_samples']} samples" + (
        f" of {data}" if data else ""
    )


def verdict(summary: Artifacts | None) -> str:
    """The outcome in words that someone who is no expert reads correctly."""
    if summary is None:
        return "There is no summary, so nothing can be said about this model."
    if hard_failures(summary):
        return (
            "The evaluation contradicts itself or fails a hard check. Until that is mended, none of its numbers says anything "
            "about the model."
        )
    row = layers(summary)[0]
    n, clean = int(number(row, "n")), number(summary.metrics, "clean_accuracy")
    sentences = [f"Without any attack the model is right on {clean:.1%} of {n} samples."]
    if "worst_case_accuracy" in row:
        worst = number(row, "worst_case_accuracy")
        sentences.append(
            f"For changes of up to {budget(row)} the answer is wrong, or a change that makes it wrong is known, "
            f"for all but {worst:.1%}; that these {worst:.1%} were not broken by the attacks that ran does not mean that "
            f"nothing can break them."
        )
    if "certified_accuracy" in row:
        sentences.append(
            f"For {number(row, 'certified_accuracy'):.1%} it is proved that no change of that size can alter the answer."
        )
    else:
        sentences.append("Nothing was proved at this budget.")
    return " ".join(sentences)


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
        m = worst_suite.metrics
        low = number(m, "worst_corruption_accuracy")
        yield (
            f"Under {m['worst_corruption']}, the worst corruption of {worst_suite.name}, accuracy falls from "
            f"{number(m, 'clean_accuracy'):.1%} to {low:.1%}.",
            worst_suite,
        )
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
