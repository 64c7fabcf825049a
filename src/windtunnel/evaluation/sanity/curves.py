"""Group C, accuracy against epsilon: does it fall, and does it keep falling?"""

from torch import Tensor

from windtunnel.core.contracts import Norm
from windtunnel.evaluation.sanity.check import CheckResult, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.evaluation.sanity.rates import rate_interval, significantly_more

LOST = 3  # samples: that none of so many expected is lost has a chance of 5 % (Poisson)


def _curves(evidence: Evidence) -> list[tuple[Assessment, Tensor, Tensor]]:
    """(sweep, epsilons (E,), correct (E, n)) of every sweep."""
    return [
        (p, p.tensor("epsilons"), p.tensor("sweep_predictions") == p.tensor("targets")) for p in evidence.of("sweeps")
    ]


@our_check("C10")
def monotone_in_epsilon(evidence: Evidence, limit: float) -> CheckResult:
    """A larger ball contains the smaller one, so that accuracy cannot rise.

    Counts samples that were broken at a smaller epsilon and not at a larger; flags where accuracy rises significantly
    (exact McNemar, 5 % over all steps of a sweep). With a single step, which overshoots by design, it is only INFO.
    """
    total, bad, single = 0, [], True
    for assessment, _, right in _curves(evidence):
        falls, rises = right[:-1] & ~right[1:], ~right[:-1] & right[1:]
        total += int(rises.sum())
        steps = zip(rises, falls, strict=True)
        if any(significantly_more(int(up.sum()), int(down.sum()), len(rises)) for up, down in steps):
            bad.append(assessment.name)
            single &= assessment.one_step
    severity = Severity.INFO if single else Severity.WARN
    return listing(bad, "accuracy rises with epsilon in", value=total, n=len(evidence.ids), severity=severity)


@our_check("C11")
def no_plateau(evidence: Evidence, limit: float) -> CheckResult:
    """More budget must break more samples until accuracy is down to chance.

    Flags a sweep whose last two intervals change accuracy by less than the threshold each while its lower 95 % bound is above
    1/K, where it was to fall: as fast as before it would have lost three samples or more (no fall is then one chance in twenty),
    or the sweep ends at half of the value range in Linf, where every image can be grey. A sweep that ends before anything
    breaks is F5's business.
    """
    chance, bad, ends = 1 / evidence.subject.dataset.num_classes, [], []
    low_value, high_value = evidence.subject.dataset.value_range
    for assessment, epsilons, right in _curves(evidence):
        accuracy = right.double().mean(1)
        _, low, _ = rate_interval(right[-1])
        ends.append(float(accuracy[-1]))
        if len(accuracy) < 4 or bool((accuracy[-3:].diff().abs() >= limit).any()) or low <= chance:
            continue
        first, third_last, last = (float(epsilons[i]) for i in (0, -3, -1))
        lost = int(right[0].sum()) - int(right[-3].sum())
        expected = lost * (last - third_last) / (third_last - first)
        grey = assessment.semantics.perturbation.norm == Norm.LINF and last >= (high_value - low_value) / 2
        if expected >= LOST or grey:
            bad.append(assessment.name)
    return listing(bad, "flat above chance:", value=max(ends), n=len(ends))
