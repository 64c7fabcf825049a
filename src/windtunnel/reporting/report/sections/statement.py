"""The answer in one or two sentences that someone who is no expert reads correctly; which ones follows from the case.

Every case has its own words, so that none contradicts its numbers: where everything is decided nothing is said to be
unknown, and where nothing was verified nothing is said to be robust.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.metadata import number
from windtunnel.core.sandwich import Layer, layers_of, options_of_summary
from windtunnel.reporting.report.words import bracket

_PSEUDO_LABELS = "pseudo_labels"


def layers(summary: Artifacts | None) -> tuple[Layer, ...]:
    """The budgets of the sandwich, the global one first; empty where there is no summary."""
    return layers_of(summary.metrics) if summary else ()


def hard_failures(summary: Artifacts | None) -> tuple[str, ...]:
    """Why these numbers must not be believed."""
    return options_of_summary(summary.metadata).hard_failures if summary else ()


def statement(summary: Artifacts | None, assessments: int = 0) -> str:
    """The sentences of page one. `assessments`: how many there are, for a run that has no summary of them."""
    if summary is None:
        missing = f"There is no summary of the {assessments} assessments" if assessments else "Nothing was assessed"
        return f"{missing}: nothing can be said about this model."
    layer, failures = layers(summary)[0], hard_failures(summary)
    if failures:
        return _invalid(failures)
    if layer.n == 1:
        return _one_sample(summary, layer)
    return " ".join(part for part in (_clean(summary, layer), _within(summary, layer), _other_budgets(summary)) if part)


def _invalid(failures: Sequence[str]) -> str:
    count = "a hard check" if len(failures) == 1 else f"{len(failures)} hard checks"
    contradictions = sum(" is verified by " in line and " and broken by " in line for line in failures)
    if contradictions:
        samples = "one sample is" if contradictions == 1 else f"{contradictions} samples are"
        what = f"The evaluation contradicts itself: {samples} both verified and broken."
    else:
        what = f"The evaluation fails {count}."
    return f"{what} Until that is resolved, none of its numbers says anything about the model."


def _one_sample(summary: Artifacts, layer: Layer) -> str:
    start = "Only one sample was assessed, so there are no shares to report:"
    if not number(summary.metrics, "clean_accuracy"):
        return f"{start} it is misclassified without any change."
    if not (layer.worst_case or layer.certified):
        return f"{start} it is classified correctly without any change; nothing was tried within {layer.budget}."
    if layer.worst_case and not layer.worst_case.value:
        what = f"is misclassified under a change within {layer.budget} that was found"
    elif layer.certified and layer.certified.value:
        what = f"is verified to stay so under every change within {layer.budget}"
    else:
        what = f"was not broken within {layer.budget}, which proves nothing"
    return f"{start} it is classified correctly without any change, and {what}."


def _labelled(summary: Artifacts) -> bool:
    return all(c.code != _PSEUDO_LABELS for c in summary.caveats)


def _clean(summary: Artifacts, layer: Layer) -> str:
    if not _labelled(summary):
        return f"There are no labels, so the model's own answers on {layer.n} samples are taken as correct."
    return f"Without any change the model is right on {number(summary.metrics, 'clean_accuracy'):.1%} of {layer.n} samples."


def _within(summary: Artifacts, layer: Layer) -> str:
    """What is known at the global budget."""
    where, right = (
        f"Under every change within {layer.budget}",
        "keeps its answer" if not _labelled(summary) else "stays right",
    )
    attacked, verified = layer.worst_case, layer.certified
    worst, low = attacked.value if attacked else 0.0, verified.value if verified else 0.0
    limits = bracket(attacked.limits) if attacked else ""
    if attacked and layer.n_attacked < layer.n:
        return _partly(layer, right)
    if not attacked and not verified:
        return f"Nothing was attacked and nothing was verified within {layer.budget}: its robustness is not known."
    if attacked and worst == 0:
        return f"Within {layer.budget} it {right} on none: every sample is misclassified or has a known adversarial example{limits}."
    if not verified:
        return (
            f"{where} it {right} on at most {worst:.1%}{limits}: the others are broken or misclassified. Nothing was verified, so "
            f"the true share may be as low as 0%."
        )
    if not attacked:
        return (
            f"{where} it {right} on at least {verified}, which is verified. No attack ran "
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


def _partly(layer: Layer, right: str) -> str:
    """State what is known where the attacks of the global budget drew some of the samples."""
    assert layer.worst_case is not None
    worst, verified = layer.worst_case, layer.certified
    first = " These are the first samples, so that this is no estimate for all." if layer.only_first else ""
    sentence = (
        f"{layer.n_attacked} of {layer.n} samples were attacked within {layer.budget}: it {right} on at most {worst} of these."
        f"{first}"
    )
    sentence += f" Of the same samples {verified} are verified." if verified else " Nothing was verified."
    low, high = layer.certified_all.value if layer.certified_all else 0.0, layer.robust_accuracy_at_most
    return f"{sentence} Of all {layer.n} it {right} on at least {low:.1%} and at most {high or 0:.1%}."


def _other_budgets(summary: Artifacts) -> str:
    """A clause per further budget, with what is known there."""
    others = layers(summary)[1:]
    if not others:
        return ""
    return f"At other budgets: {'; '.join(map(_clause, others))}."


def _clause(layer: Layer) -> str:
    worst, low = layer.worst_case, layer.certified
    if worst and low:
        share = f"{worst.value:.1%}" if low.value == worst.value else f"{low.value:.1%} to {worst.value:.1%}"
    elif worst:
        share = f"at most {worst.value:.1%}" if worst.value else "none"
    else:
        share = f"at least {low.value:.1%}" if low else "nothing is known"
    part = f" of the {layer.n_attacked} attacked" if 0 < layer.n_attacked < layer.n else ""
    return f"{share}{part} at {layer.budget}"
