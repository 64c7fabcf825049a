"""The answer in one or two sentences that someone who is no expert reads correctly; which ones follows from the case.

Every case has its own words, so that none contradicts its numbers: where everything is decided nothing is said to be
unknown, and where nothing was verified nothing is said to be robust.
"""

from collections.abc import Sequence

from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import number, rate
from windtunnel.records.sandwich import Layer, layers_of, options_of_summary
from windtunnel.reporting.report.phrases import bracket

_PSEUDO_LABELS = "pseudo_labels"


def layers(summary: Artifacts | None) -> tuple[Layer, ...]:
    """Return the budgets of the sandwich, the global one first; empty where there is no summary."""
    return layers_of(summary.metrics) if summary else ()


def hard_failures(summary: Artifacts | None) -> tuple[str, ...]:
    """Why these numbers must not be believed."""
    return options_of_summary(summary.metadata).hard_failures if summary else ()


def statement(summary: Artifacts | None, assessments: int = 0) -> str:
    """Return the sentences of page one. `assessments`: how many there are, for a run that has no summary of them."""
    if summary is None:
        missing = f"There is no summary of the {assessments} assessments" if assessments else "Nothing was assessed"
        return f"{missing}, so nothing is known about this model."
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
    return f"{what} Until this is resolved, its numbers are not valid."


def _one_sample(summary: Artifacts, layer: Layer) -> str:
    start = "Only one sample was assessed, so there are no shares to report:"
    if not number(summary.metrics, "clean_accuracy"):
        return f"{start} it is misclassified on the clean input."
    if not (layer.worst_case or layer.certified):
        return f"{start} its clean input is classified correctly; nothing was attacked or verified at {layer.budget}."
    if layer.worst_case and not layer.worst_case.value:
        what = f"an attack breaks it at {layer.budget}"
    elif layer.certified and layer.certified.value:
        what = f"it is verified at {layer.budget}"
    else:
        what = f"no attack broke it at {layer.budget}, which is no proof"
    return f"{start} its clean input is classified correctly, and {what}."


def _labelled(summary: Artifacts) -> bool:
    return all(c.code != _PSEUDO_LABELS for c in summary.caveats)


def _clean(summary: Artifacts, layer: Layer) -> str:
    if not _labelled(summary):
        return f"There are no labels, so the model's clean predictions on {layer.n} samples serve as labels."
    return f"Clean accuracy is {rate(summary.metrics, 'clean_accuracy')} on {layer.n} samples."


def _measure(summary: Artifacts) -> str:
    return "robust accuracy" if _labelled(summary) else "the share of unchanged predictions"


def _within(summary: Artifacts, layer: Layer) -> str:
    """Return what is known at the global budget."""
    at, attacked, verified = f"At {layer.budget} {_measure(summary)} is", layer.worst_case, layer.certified
    worst, low = attacked.value if attacked else 0.0, verified.value if verified else 0.0
    limits = bracket(attacked.limits) if attacked else ""
    if attacked and layer.n_attacked < layer.n:
        return _partly(layer, _measure(summary))
    if not attacked and not verified:
        return f"{at} unknown: nothing was attacked or verified."
    if attacked and worst == 0:
        return f"{at} 0.0%{limits}: every sample is misclassified or has a known adversarial example."
    if not verified:
        return f"{at} at most {worst:.1%}{limits} (survived every attack). Nothing was verified, so it may be as low as 0%."
    if not attacked:
        return f"{at} at least {verified} (verified). No attack ran at this budget, so the other samples are undecided."
    if low == worst:
        return f"{at} {worst:.1%}{limits}: every sample is verified, broken or misclassified."
    return (
        f"{at} between {verified} (verified) and {attacked} (survived every attack); "
        f"{worst - low:.1%} of the samples are undecided."
    )


def _partly(layer: Layer, measure: str) -> str:
    """Return what is known where the attacks of the global budget drew some of the samples."""
    assert layer.worst_case is not None
    worst, verified = layer.worst_case, layer.certified
    first = " They are the first samples, so this is no unbiased estimate." if layer.only_first else ""
    certified = f"{verified} of them are verified." if verified else "Nothing was verified."
    low, high = layer.certified_all.value if layer.certified_all else 0.0, layer.robust_accuracy_at_most
    return (
        f"{layer.n_attacked} of {layer.n} samples were attacked at {layer.budget}: {measure} of these is at most {worst}.{first} "
        f"{certified} Over all {layer.n} samples it is between {low:.1%} and {high or 0:.1%}."
    )


def _other_budgets(summary: Artifacts) -> str:
    """Return a clause per further budget, with what is known there."""
    others = layers(summary)[1:]
    if not others:
        return ""
    return f"At other budgets: {'; '.join(map(_clause, others))}."


def _clause(layer: Layer) -> str:
    worst, low = layer.worst_case, layer.certified
    if worst and low:
        share = str(worst) if low.value == worst.value else f"{low} to {worst}"
    elif worst:
        share = f"at most {worst}" if worst.value else f"none{bracket(worst.limits)}"
    else:
        share = f"at least {low}" if low else "unknown"
    first = ", the first samples" if layer.only_first else ""
    part = f" of the {layer.n_attacked} attacked{first}" if 0 < layer.n_attacked < layer.n else ""
    return f"{share}{part} at {layer.budget}"
