"""Group C, models with randomness of their own: were they attacked and evaluated over it?"""

from dataclasses import replace

import torch
from torch import Tensor

from windtunnel.core.seeds import seeded
from windtunnel.evaluation.sanity.check import CheckResult, our_check
from windtunnel.evaluation.sanity.evidence import Evidence, NotApplicable
from windtunnel.evaluation.sanity.model import is_random
from windtunnel.evaluation.sanity.probes import linf_ball, pgd, several_passes

EOT_PASSES = 20


def _only_random(evidence: Evidence) -> None:
    if not is_random(evidence):
        raise NotApplicable("the forward pass is deterministic (A2)")


@our_check("C15")
def eot_adds_nothing(evidence: Evidence, limit: float) -> CheckResult:
    """For a random model the gradient of one draw is noise, and an attack that follows it is weak.

    Only where A2 finds randomness: PGD with one gradient a step against PGD with the mean of 20, both evaluated by the mean
    logits of 20 passes; flags where the latter breaks more by more than the threshold.
    """
    _only_random(evidence)
    region, _ = linf_ball(evidence)
    data, indices = evidence.subject.dataset, evidence.probe_indices()[:50]
    x, y = data.inputs[indices], data.targets[indices]

    def broken(passes: int) -> float:
        step_size = region.epsilon / 8
        attacked = pgd(
            evidence.subject.classifier, x, y, region.epsilon, steps=20, step_size=step_size, seed=0, passes=passes
        )
        mean = torch.stack(several_passes(evidence.subject.classifier, attacked.examples, EOT_PASSES)).mean(0)
        return float((~evidence.subject.classifier.criterion.is_correct(mean, y)).double().mean())

    gap = broken(EOT_PASSES) - broken(1)
    return CheckResult(gap > limit, gap, n=len(indices), reason=f"EOT breaks {gap:.1%} more")


@our_check("C16")
def works_when_frozen(evidence: Evidence, limit: float) -> CheckResult:
    """With its random stream fixed a random model is deterministic, and an attack must break it at a large budget.

    Only where A2 finds randomness: every pass is seeded alike, PGD at epsilon 0.5; flags where more than the threshold
    of the samples survive.
    """
    _only_random(evidence)
    classifier, data, indices = evidence.subject.classifier, evidence.subject.dataset, evidence.probe_indices()[:50]

    class Frozen(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with seeded(0):
                logits: Tensor = classifier.module(x)
            return logits

    frozen = replace(classifier, module=Frozen())
    attacked = pgd(frozen, data.inputs[indices], data.targets[indices], 0.5, steps=50, step_size=0.05, seed=0)
    alive = float((~attacked.broken).double().mean())
    return CheckResult(alive > limit, alive, n=len(indices), reason=f"{alive:.0%} survive Linf 0.5")


@our_check("C17")
def success_over_draws(evidence: Evidence, limit: float) -> CheckResult:
    """A random model evaluated by one draw gives a number that the next draw does not confirm.

    Only where A2 finds randomness: the stored examples of each attack are evaluated five times; flags where the standard
    deviation of robust accuracy, or its distance from the stored one, is above the threshold.
    """
    _only_random(evidence)
    worst, bad = 0.0, []
    for assessment in map(evidence.pictured, evidence.attacks()):
        examples, targets = assessment.tensor("perturbed_inputs"), assessment.tensor("targets")
        robust = torch.stack(
            [assessment.right & (evidence.subject.classifier.predict(examples, targets) == targets) for _ in range(5)]
        )
        rates = robust.double().mean(1)
        stored = float((assessment.right & ~assessment.succeeded).double().mean())
        off = max(float(rates.std()), abs(float(rates.mean()) - stored))
        worst = max(worst, off)
        if off > limit:
            bad.append(assessment.name)
    return CheckResult(
        bool(bad), worst, n=5, assessments=bad, reason=f"robust accuracy is off by {worst:.1%} when evaluated again"
    )
