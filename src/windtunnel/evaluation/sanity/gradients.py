"""Group C, gradients: is there a way to follow, does it lead anywhere, and does an attack that must succeed do so?"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from windtunnel.core.classifier import forward_samples
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.core.statistics import binomial_interval, median
from windtunnel.evaluation.sanity import probes
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, Severity, our_check
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.model import is_random, need_deterministic
from windtunnel.evaluation.sanity.probes import PgdEffort
from windtunnel.evaluation.sanity.rates import discordant, rate_interval, significantly_more

EIGHT_255 = 8 / 255
POINTS = 600  # of all samples: their mean is known to two points or better
HAIR = 1e-3  # of the range: small for a network, and large for float32
TOLD = 1e-4  # of the largest logit: a smaller change drowns in rounding
EOT_PASSES, DRAWS = 20, 5  # gradients that are averaged at each step; evaluations of a stored example
AVERAGED = 50  # samples on which a random model is attacked, at most


def _gradients(evidence: Evidence, loss: str) -> tuple[Tensor, Tensor]:
    """Return two masks: the gradient of `loss` is zero everywhere, and it is finite, at every sample; both bool (N,)."""
    data, criterion = evidence.data, evidence.classifier.criterion
    functions = {"cross entropy": criterion.loss, "margin": criterion.margin_loss}

    def compute() -> tuple[Tensor, Tensor]:
        zero, finite = [], []
        size = forward_samples(data.inputs)
        for x, y in zip(data.inputs.split(size), data.targets.split(size), strict=True):
            gradient = probes.known_gradients(evidence, x, y, functions[loss]).flatten(1)
            zero.append((gradient == 0).all(1))
            finite.append(gradient.isfinite().all(1))
        return torch.cat(zero), torch.cat(finite)

    return evidence.once(f"gradient {loss}", compute)


@our_check("C1")
def no_zero_gradients(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient attack makes no progress if the input gradient of the loss is exactly zero: it stands still.

    The gradient of cross entropy at every clean input; flags for any sample without one, and says whether the margin
    (best wrong logit less the own) has one there. The value is the share of samples without.
    """
    zero, _ = _gradients(evidence, "cross entropy")
    if not zero.any():
        return CheckResult(flagged=False, value=0.0, n=len(zero))
    both = zero & _gradients(evidence, "margin")[0]
    kind = "also of the margin" if both.any() else "not of the margin: the loss saturates, so use DLR"
    reason = f"cross entropy has no gradient for {int(zero.sum())} samples, {kind}"
    return CheckResult(True, float(zero.double().mean()), len(zero), evidence.named(zero), reason=reason)


@our_check("C2")
def finite_gradients(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient of NaN or infinity makes an attack return NaN or its input. Any sample flags."""
    bad = ~(_gradients(evidence, "cross entropy")[1] & _gradients(evidence, "margin")[1])
    reason = "NaN or infinite gradients"
    return CheckResult(bool(bad.any()), int(bad.sum()), len(bad), evidence.named(bad), reason=reason)


@our_check("C13")
def stable_loss(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient is uninformative where the loss jumps from one point to the next, since it tells nothing of the way ahead.

    Random points within 4/255 of each of up to 100 samples, 600 in all: mean change of the margin relative to its size (at
    least the median size, so that samples at the boundary do not count for more), clipped to 1.
    """
    n = min(len(evidence.ids), evidence.params.sanity.samples)
    x, y, classifier = evidence.data.inputs[:n], evidence.data.targets[:n], evidence.classifier
    generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "C13"))

    def margins_at(points: Tensor) -> Tensor:
        return classifier.criterion.margin_loss(classifier.logits(points), y)

    margins = margins_at(x)
    scale = margins.abs().clamp(min=max(median(margins.abs().flatten().tolist()) or 0.0, 1e-12))
    change, draws = torch.zeros(n), max(1, POINTS // n)
    for _ in range(draws):
        moved_margins = margins_at(probes.uniform_in_ball(x, EIGHT_255 / 2, generator))
        change += ((moved_margins - margins).abs() / scale).clamp(max=1)
    value = float((change / draws).mean())
    return CheckResult(value > limit, value, n, reason=f"the margin changes by {value:.0%} on average")


@our_check("C24")
def gradients_are_derivatives(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient with another sign or of another function sends every gradient attack the wrong way, at images of any size.

    The change of the margin between two points a thousandth of the range either side, along the sign of its gradient, over
    what the gradient says: 1 where it is the derivative. Two random points near each of 25 samples, half of the largest Linf
    budget inside the range. Flags where the lower 95 % bound of the share outside [0.5, 2] is above the threshold; HARD where the
    margin falls for more than half: such a gradient points down.
    """
    probes.need_gradients(evidence)
    need_deterministic(evidence)
    ratios = _rise_over_gradient(evidence)
    is_measured = ~ratios.isnan()
    n = int(is_measured.sum())
    if not n:
        raise NotApplicable("no gradient is large enough to be compared (C1)")
    off, down = is_measured & ~((ratios >= 0.5) & (ratios <= 2)), ratios < 0
    low, low_down = (binomial_interval(int(mask.sum()), n)[0] for mask in (off, down))
    reason = f"at {int(off.sum())} of {n} points the margin changes by less than half or more than twice what its gradient says"
    if down.any():
        reason += f", at {int(down.sum())} it falls where the gradient says that it rises"
    severity = Severity.HARD if low_down > 0.5 else Severity.WARN
    samples = evidence.named(off.any(0))
    return CheckResult(low > limit, int(off.sum()) / n, n, samples, reason=reason, severity=severity)


def _rise_over_gradient(evidence: Evidence) -> Tensor:
    """(2, n): the margin's change over what its gradient says; NaN where float32 cannot tell."""
    data, classifier = evidence.data, evidence.classifier
    (low, high), labels = data.value_range, data.targets[: evidence.few]
    hair = HAIR * (high - low)
    generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "C24"))
    ratios = []
    for share in (0.2, 1.0):
        # In the midst of the ball and the range: at a clipped value a model that clips is not differentiable.
        away = min(max(share * probes.largest_linf(evidence) / 2, 2 * hair), 0.45 * (high - low))
        inside = data.inputs[: len(labels)].clamp(low + away, high - away)
        points = probes.uniform_in_ball(inside, away - hair, generator)
        gradients = probes.known_gradients(evidence, points, labels, classifier.criterion.margin_loss)
        up, down = (classifier.logits(points + sign * hair * gradients.sign()) for sign in (1, -1))
        predicted_rise = 2 * hair * gradients.flatten(1).abs().sum(1)
        ratio = (classifier.criterion.margin(down, labels) - classifier.criterion.margin(up, labels)) / predicted_rise
        ratios.append(ratio.where(predicted_rise > TOLD * up.abs().amax(1), torch.nan))
    return torch.stack(ratios)


@our_check("C14")
def losses_agree(evidence: Evidence, limit: float) -> CheckResult:
    """Cross entropy and a loss that cannot saturate must find about the same examples.

    PGD under cross entropy and under the margin on the same samples, 40 steps in the largest Linf budget; flags where
    robust accuracies differ by more than the threshold and the exact McNemar test says so at 5 %.
    """
    probes.need_gradients(evidence)
    region, criterion = probes.linf_ball(evidence), evidence.classifier.criterion
    x, y = evidence.probe_samples()
    effort: PgdEffort = {
        "steps": 40,
        "step_size": region.epsilon / 10,
        "seed": derive_seed(evidence.subject.seed, "C14"),
    }
    broken, broken_by_margin = (
        probes.pgd(evidence.classifier, x, y, region.epsilon, loss=loss, **effort).broken
        for loss in (criterion.loss, criterion.margin_loss)
    )
    only_first, other = discordant(broken, broken_by_margin)
    gap = abs(only_first - other) / max(1, len(x))
    flagged = gap > limit and significantly_more(max(only_first, other), min(only_first, other))
    reason = f"only cross entropy breaks {only_first}, only the margin {other}"
    return CheckResult(flagged, gap, len(x), reason=reason)


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

    PGD on the margin at epsilon 0.5, 100 steps of each of three sizes; flags above 1/K by more than the 95 % interval. What
    sweeps measured at 0.5 and above is C11's business.
    """
    samples = evidence.params.sanity.samples
    return _survivors_at(evidence, 0.5, samples, allowed=1 / evidence.data.num_classes)


def _survivors_at(evidence: Evidence, epsilon: float, samples: int, allowed: float) -> CheckResult:
    probes.need_gradients(evidence)
    probes.need_several_answers(evidence)
    data, indices = evidence.data, evidence.probe_indices(samples)
    if not data.is_image:
        raise NotApplicable("tabular data has no grey")
    if not len(indices):
        raise NotApplicable("the model classifies no sample correctly")
    seed = derive_seed(evidence.subject.seed, "ceiling", str(epsilon))
    alive = torch.ones(len(indices), dtype=torch.bool)
    for step in (epsilon / 10, epsilon / 4, epsilon):
        surviving = alive.nonzero().flatten()
        if len(surviving):
            x, y = data.inputs[indices[surviving]], data.targets[indices[surviving]]
            effort: PgdEffort = {"steps": 100, "step_size": step, "seed": seed}
            with probes.interrupted_graph():
                attacked = probes.pgd(evidence.classifier, x, y, epsilon, until_broken=True, **effort)
            alive[surviving[attacked.broken]] = False
    # Of all assessed samples the misclassified ones are broken anyway; the bound is on those attacked here.
    rate, low, _ = rate_interval(alive)
    flagged = bool(alive.any()) if allowed == 0 else low > allowed
    reason = f"{int(alive.sum())} of {len(indices)} survive Linf {epsilon:g}"
    return CheckResult(flagged, rate, len(indices), evidence.named(indices[alive]), reason=reason)


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
    epsilon, classifier = probes.linf_ball(evidence).epsilon, evidence.classifier
    x, y = evidence.probe_samples(min(AVERAGED, evidence.params.sanity.samples))

    def broken(passes: int) -> float:
        effort: PgdEffort = {"steps": 20, "step_size": epsilon / 8, "seed": 0}
        attacked = probes.pgd(classifier, x, y, epsilon, passes=passes, **effort)
        mean = torch.stack(probes.several_passes(classifier, attacked.examples, EOT_PASSES)).mean(0)
        return float((~classifier.criterion.is_correct(mean, y)).double().mean())

    gap = broken(EOT_PASSES) - broken(1)
    return CheckResult(gap > limit, gap, len(x), reason=f"EOT breaks {gap:.1%} more")


@our_check("C16")
def works_when_frozen(evidence: Evidence, limit: float) -> CheckResult:
    """With its random stream fixed a random model is deterministic, and an attack must break it at a large budget.

    Only where A2 finds randomness: every pass is seeded alike, PGD at epsilon 0.5; flags where more than the threshold
    of the samples survive.
    """
    _only_random(evidence)
    classifier = evidence.classifier
    x, y = evidence.probe_samples(min(AVERAGED, evidence.params.sanity.samples))

    class Frozen(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with seeded(0):
                logits: Tensor = classifier.module(x)
            return logits

    effort: PgdEffort = {"steps": 50, "step_size": 0.05, "seed": 0}
    attacked = probes.pgd(replace(classifier, module=Frozen()), x, y, 0.5, **effort)
    alive = float((~attacked.broken).double().mean())
    return CheckResult(alive > limit, alive, len(x), reason=f"{alive:.0%} survive Linf 0.5")


@our_check("C17", "robust accuracy is off by {value:.1%} when evaluated again", n=lambda _: DRAWS)
def success_over_draws(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A random model evaluated by one draw gives a number that the next draw does not confirm.

    Only where A2 finds randomness: the stored examples of each attack are evaluated five times; flags where the standard
    deviation of robust accuracy, or its distance from the stored one, is above the threshold.
    """
    _only_random(evidence)
    for assessment in map(evidence.pictured, evidence.attacks()):
        examples, targets = assessment.tensor("perturbed_inputs"), assessment.tensor("targets")
        answers = [evidence.classifier.predict(examples, targets) for _ in range(DRAWS)]
        rates = torch.stack([assessment.right & (answer == targets) for answer in answers]).double().mean(1)
        stored = float((assessment.right & ~assessment.succeeded).double().mean())
        off = max(float(rates.std()), abs(float(rates.mean()) - stored))
        yield CheckResult(off > limit, off, assessments=[assessment.name])
