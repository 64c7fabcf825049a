"""Group C, accuracy against epsilon: does it fall, and does it keep falling?"""

from __future__ import annotations

from torch import Tensor

from windtunnel.evaluation.sanity.check import Outcome, Severity, Tier, check, listing
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.evaluation.sanity.rates import rate_interval, significantly_more


def _curves(evidence: Evidence) -> list[tuple[Assessment, Tensor, Tensor]]:
    """(sweep, epsilons (E,), correct (E, n)) of every sweep."""
    return [
        (p, p.tensor("epsilons"), p.tensor("sweep_predictions") == p.tensor("targets")) for p in evidence.of("sweeps")
    ]


@check(
    "C10", "Accuracy falls with epsilon", Tier.STORED, Severity.WARN,
    source="Carlini et al. 2019",
    remedy="Read the cumulative curve (broken at a smaller epsilon counts as broken); use an iterative attack.",
)  # fmt: skip
def monotone_in_epsilon(evidence: Evidence, limit: float) -> Outcome:
    """A larger ball contains the smaller one, so that accuracy cannot rise.

    Counts samples that were broken at a smaller epsilon and not at a larger; flags where accuracy rises significantly
    (exact McNemar, 5 %). With a single step, which overshoots by design, it is only INFO.
    """
    total, bad, single = 0, [], True
    for assessment, _, right in _curves(evidence):
        falls, rises = right[:-1] & ~right[1:], ~right[:-1] & right[1:]
        total += int(rises.sum())
        if any(significantly_more(int(up.sum()), int(down.sum())) for up, down in zip(rises, falls, strict=True)):
            bad.append(assessment.name)
            single &= assessment.one_step
    severity = Severity.INFO if single else Severity.WARN
    return listing(bad, "accuracy rises with epsilon in", value=total, n=len(evidence.ids), severity=severity)


@check(
    "C11", "No plateau above chance", Tier.STORED, Severity.WARN, threshold=0.005,
    source="Athalye et al. 2018",
    remedy="An attack that gains nothing from a larger budget is stuck: use another loss, more steps or restarts.",
)  # fmt: skip
def no_plateau(evidence: Evidence, limit: float) -> Outcome:
    """More budget must break more samples until accuracy is down to chance.

    Flags a sweep whose last two intervals change accuracy by less than the threshold each while its lower 95 % bound
    is above 1/K.
    """
    chance, bad, ends = 1 / evidence.subject.dataset.num_classes, [], []
    for assessment, _, right in _curves(evidence):
        accuracy = right.double().mean(1)
        _, low, _ = rate_interval(right[-1])
        ends.append(float(accuracy[-1]))
        if len(accuracy) > 3 and bool((accuracy[-3:].diff().abs() < limit).all()) and low > chance:
            bad.append(assessment.name)
    return listing(bad, "flat above chance:", value=max(ends), n=len(ends))
