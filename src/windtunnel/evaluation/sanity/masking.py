"""Group C, samples that an attack must break: all of them without a bound, or where every image can become grey."""

from typing import Any

import torch

from windtunnel.core.seeds import derive_seed
from windtunnel.evaluation.sanity.check import CheckResult, our_check
from windtunnel.evaluation.sanity.evidence import Evidence, NotApplicable, NotRun
from windtunnel.evaluation.sanity.probes import need_gradients, need_several_answers, pgd
from windtunnel.evaluation.sanity.rates import rate_interval


@our_check("C8")
def unbounded_attack_succeeds(evidence: Evidence, limit: float) -> CheckResult:
    """With epsilon 1 every image can be made any other: an attack with gradients that then fails is not working.

    PGD on the margin at epsilon 1, 100 steps of each of three sizes; any sample that survives flags. 25 samples, or
    `sanity.samples` in the profile full.
    """
    return _survivors_at(evidence, 1.0, evidence.few, allowed=0.0)


@our_check("C9")
def theoretical_ceiling(evidence: Evidence, limit: float) -> CheckResult:
    """At Linf 0.5 every image can be made the same grey, so that robust accuracy above 1/K is impossible.

    PGD on the margin at epsilon 0.5, and what the sweeps measured at 0.5 and above with iterative attacks; flags above
    1/K by more than the 95 % interval.
    """
    samples = evidence.params.sanity.samples
    return _survivors_at(evidence, 0.5, samples, allowed=1 / evidence.subject.dataset.num_classes)


def _survivors_at(evidence: Evidence, epsilon: float, samples: int, allowed: float) -> CheckResult:
    need_gradients(evidence)
    need_several_answers(evidence)
    data, indices = evidence.subject.dataset, evidence.subject.clean_correct.nonzero().flatten()[:samples]
    if not data.is_image:
        raise NotApplicable("tabular data has no grey")
    if not len(indices):
        raise NotApplicable("the model classifies no sample correctly")
    seed = derive_seed(evidence.subject.seed, "ceiling", str(epsilon))
    try:
        alive = torch.ones(len(indices), dtype=torch.bool)
        for step in (epsilon / 10, epsilon / 4, epsilon):
            surviving = alive.nonzero().flatten()
            if len(surviving):
                x, y = data.inputs[indices[surviving]], data.targets[indices[surviving]]
                effort: dict[str, Any] = {"steps": 100, "step_size": step, "seed": seed, "until_broken": True}
                attacked = pgd(evidence.subject.classifier, x, y, epsilon, **effort)
                alive[surviving[attacked.broken]] = False
    except RuntimeError as error:
        raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error
    # Of all assessed samples the misclassified ones are broken anyway; the bound is on those attacked here.
    rate, low, _ = rate_interval(alive)
    flagged = bool(alive.any()) if allowed == 0 else low > allowed
    ids = [evidence.ids[i] for i in indices[alive].tolist()]
    reason = f"{int(alive.sum())} of {len(indices)} survive Linf {epsilon:g}"
    return CheckResult(flagged, rate, n=len(indices), samples=ids if flagged else (), reason=reason)
