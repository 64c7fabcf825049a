"""The outcome in one or two sentences that someone who is no expert reads correctly; which ones follows from the case.

Every case has its own words, so that none contradicts its numbers: where everything is decided nothing is said to be
unknown, and where nothing was verified nothing is said to be robust.
"""

from __future__ import annotations

from windtunnel.core.artifacts import Artifacts
from windtunnel.reporting.report.words import Row, bracket, budget, interval, kwargs, listed, number, rows_in

_PSEUDO_LABELS = "pseudo_labels"


def layers(summary: Artifacts | None) -> list[Row]:
    """The budgets of the sandwich, the global one first; empty where there is no summary."""
    return rows_in(summary.metrics, "sandwich") if summary else []


def hard_failures(summary: Artifacts | None) -> list[str]:
    """Why these numbers must not be believed."""
    return [str(line) for line in listed(kwargs(summary), "hard_failures")] if summary else []


def verdict(summary: Artifacts | None, assessments: int = 0) -> str:
    """The sentences of page one. `assessments`: how many there are, for a run that has no summary of them."""
    if summary is None:
        missing = f"There is no summary of the {assessments} assessments" if assessments else "Nothing was assessed"
        return f"{missing}: nothing can be said about this model."
    row, failures = layers(summary)[0], hard_failures(summary)
    if failures:
        return _invalid(failures)
    if number(row, "n") == 1:
        return _one_sample(summary, row)
    return " ".join(part for part in (_clean(summary, row), _within(summary, row), _other_budgets(summary)) if part)


def _invalid(failures: list[str]) -> str:
    count = "a hard check" if len(failures) == 1 else f"{len(failures)} hard checks"
    contradictions = sum(" is verified by " in line and " and broken by " in line for line in failures)
    if contradictions:
        samples = "one sample is" if contradictions == 1 else f"{contradictions} samples are"
        what = f"The evaluation contradicts itself: {samples} both verified and broken."
    else:
        what = f"The evaluation fails {count}."
    return f"{what} Until that is resolved, none of its numbers says anything about the model."


def _one_sample(summary: Artifacts, row: Row) -> str:
    start = "Only one sample was assessed, so there are no shares to report:"
    if not number(summary.metrics, "clean_accuracy"):
        return f"{start} it is misclassified without any change."
    if not {"worst_case_accuracy", "certified_accuracy"} & row.keys():
        return f"{start} it is classified correctly without any change; nothing was tried within {budget(row)}."
    if not number(row, "worst_case_accuracy", 1.0):
        what = f"is misclassified under a change within {budget(row)} that was found"
    elif number(row, "certified_accuracy"):
        what = f"is verified to stay so under every change within {budget(row)}"
    else:
        what = f"was not broken within {budget(row)}, which proves nothing"
    return f"{start} it is classified correctly without any change, and {what}."


def _labelled(summary: Artifacts) -> bool:
    return all(c.code != _PSEUDO_LABELS for c in summary.caveats)


def _clean(summary: Artifacts, row: Row) -> str:
    n = int(number(row, "n"))
    if not _labelled(summary):
        return f"There are no labels, so the model's own answers on {n} samples are taken as correct."
    return f"Without any change the model is right on {number(summary.metrics, 'clean_accuracy'):.1%} of {n} samples."


def _within(summary: Artifacts, row: Row) -> str:
    """What is known at the global budget."""
    where, right = (
        f"Under every change within {budget(row)}",
        "keeps its answer" if not _labelled(summary) else "stays right",
    )
    attacked, verified = "worst_case_accuracy" in row, "certified_accuracy" in row
    worst, low = number(row, "worst_case_accuracy"), number(row, "certified_accuracy")
    limits = bracket(interval(row, "worst_case_accuracy"))
    if not attacked and not verified:
        return f"Nothing was attacked and nothing was verified within {budget(row)}: its robustness is not known."
    if attacked and worst == 0:
        return f"Within {budget(row)} it {right} on none: every sample is misclassified or has a known adversarial example{limits}."
    if not verified:
        return (
            f"{where} it {right} on at most {worst:.1%}{limits}: the others are broken or misclassified. Nothing was verified, so "
            f"the true share may be as low as 0%."
        )
    if not attacked:
        return (
            f"{where} it {right} on at least {low:.1%}{bracket(interval(row, 'certified_accuracy'))}, which is verified. No attack ran "
            f"at this budget, so what holds of the others is not known."
        )
    if low == worst:
        return (
            f"{where} it {right} on {worst:.1%}{limits}: each of these is verified, and each of the others is broken or misclassified. "
            f"Nothing is left open at this budget."
        )
    return (
        f"{where} it {right} on at least {low:.1%}, which is verified, and on at most {worst:.1%}, which no attack that ran broke; "
        f"{worst - low:.1%} of the samples are open."
    )


def _other_budgets(summary: Artifacts) -> str:
    """A clause per further budget, with what is known there."""
    others = layers(summary)[1:]
    if not others:
        return ""
    return f"At other budgets: {'; '.join(map(_clause, others))}."


def _clause(row: Row) -> str:
    worst, low = number(row, "worst_case_accuracy"), number(row, "certified_accuracy")
    if "worst_case_accuracy" in row and "certified_accuracy" in row:
        share = f"{worst:.1%}" if low == worst else f"{low:.1%} to {worst:.1%}"
    elif "worst_case_accuracy" in row:
        share = f"at most {worst:.1%}" if worst else "none"
    else:
        share = f"at least {low:.1%}"
    return f"{share} at {budget(row)}"
