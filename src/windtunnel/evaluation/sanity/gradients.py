"""Group C, gradients: is there a way to follow, and does it lead anywhere?"""

from functools import partial

import torch
from torch import Tensor

from windtunnel.core.classifier import forward_samples
from windtunnel.core.seeds import derive_seed
from windtunnel.core.statistics import binomial_interval, median
from windtunnel.evaluation.sanity import probes
from windtunnel.evaluation.sanity.check import CheckResult, Severity, our_check
from windtunnel.evaluation.sanity.evidence import Evidence, NotApplicable, NotRun
from windtunnel.evaluation.sanity.model import is_random
from windtunnel.evaluation.sanity.rates import significantly_more

EIGHT_255 = 8 / 255
POINTS = 600  # of all samples: their mean is known to two points or better
HAIR = 1e-3  # of the range: small for a network, and large for float32
TOLD = 1e-4  # of the largest logit: a smaller change drowns in rounding


def _gradients(evidence: Evidence, loss: str) -> tuple[Tensor, Tensor]:
    """Return two masks: the gradient of `loss` is zero everywhere, and it is finite, at every sample; both bool (N,)."""
    probes.need_gradients(evidence)
    data, criterion = evidence.subject.dataset, evidence.subject.classifier.criterion
    functions = {"cross entropy": criterion.loss, "margin": criterion.margin_loss}

    def compute() -> tuple[Tensor, Tensor]:
        zero, finite = [], []
        try:
            size = forward_samples(data.inputs)
            for x, y in zip(data.inputs.split(size), data.targets.split(size), strict=True):
                input_gradient = probes.input_gradients(evidence.subject.classifier, x, y, functions[loss]).flatten(1)
                zero.append((input_gradient == 0).all(1))
                finite.append(input_gradient.isfinite().all(1))
            return torch.cat(zero), torch.cat(finite)
        except RuntimeError as error:
            raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error

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
    return CheckResult(
        flagged=True, value=float(zero.double().mean()), n=len(zero), samples=evidence.named(zero), reason=reason
    )


@our_check("C2")
def finite_gradients(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient of NaN or infinity makes an attack return NaN or its input. Any sample flags."""
    bad = ~(_gradients(evidence, "cross entropy")[1] & _gradients(evidence, "margin")[1])
    return CheckResult(
        bool(bad.any()), int(bad.sum()), n=len(bad), samples=evidence.named(bad), reason="NaN or infinite gradients"
    )


@our_check("C13")
def stable_loss(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient is uninformative where the loss jumps from one point to the next, since it tells nothing of the way ahead.

    Random points within 4/255 of each of up to 100 samples, 600 in all: mean change of the margin relative to its size (at
    least the median size, so that samples at the boundary do not count for more), clipped to 1.
    """
    data, indices = evidence.subject.dataset, torch.arange(min(len(evidence.ids), evidence.params.sanity.samples))
    x, y = data.inputs[indices], data.targets[indices]
    generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "C13"))
    criterion = evidence.subject.classifier.criterion
    margins = criterion.margin_loss(evidence.subject.classifier.logits(x), y)
    scale = margins.abs().clamp(min=max(median(margins.abs().flatten().tolist()) or 0.0, 1e-12))
    change, draws = torch.zeros(len(indices)), max(1, POINTS // len(indices))
    for _ in range(draws):
        moved_margins = criterion.margin_loss(
            evidence.subject.classifier.logits(probes.uniform_in_ball(x, EIGHT_255 / 2, generator)), y
        )
        change += ((moved_margins - margins).abs() / scale).clamp(max=1)
    value = float((change / draws).mean())
    return CheckResult(value > limit, value, n=len(indices), reason=f"the margin changes by {value:.0%} on average")


@our_check("C24")
def gradients_are_derivatives(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient with another sign or of another function sends every gradient attack the wrong way, at images of any size.

    The change of the margin between two points a thousandth of the range either side, along the sign of its gradient, over
    what the gradient says: 1 where it is the derivative. Two random points near each of 25 samples, half of the largest Linf
    budget inside the range. Flags where the lower 95 % bound of the share outside [0.5, 2] is above the threshold; HARD where the
    margin falls for more than half: such a gradient points down.
    """
    probes.need_gradients(evidence)
    if is_random(evidence):
        raise NotApplicable("the forward pass is random (A2)")
    ratios = _rise_over_gradient(evidence)
    is_measured = ~ratios.isnan()
    n = int(is_measured.sum())
    if not n:
        raise NotApplicable("no gradient is large enough to be compared (C1)")
    off, down = is_measured & ~((ratios >= 0.5) & (ratios <= 2)), ratios < 0
    low, low_down = (binomial_interval(int(mask.sum()), n)[0] for mask in (off, down))
    samples = evidence.named(
        torch.zeros(len(evidence.ids), dtype=torch.bool).index_fill(0, off.any(0).nonzero().flatten(), True)
    )
    reason = (
        f"at {int(off.sum())} of {n} points the margin changes by less than half or more than twice what its gradient says"
        + (f", at {int(down.sum())} it falls where the gradient says that it rises" if down.any() else "")
    )
    severity = Severity.HARD if low_down > 0.5 else Severity.WARN
    return CheckResult(low > limit, int(off.sum()) / n, n=n, samples=samples, reason=reason, severity=severity)


def _rise_over_gradient(evidence: Evidence) -> Tensor:
    """(2, n): the margin's change over what its gradient says; NaN where float32 cannot tell."""
    data, classifier = evidence.subject.dataset, evidence.subject.classifier
    (low, high), labels = data.value_range, data.targets[: evidence.few]
    hair = HAIR * (high - low)
    generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "C24"))
    ratios = []
    for share in (0.2, 1.0):
        # In the midst of the ball and the range: at a clipped value a model that clips is not differentiable.
        away = min(max(share * probes.largest_linf(evidence) / 2, 2 * hair), 0.45 * (high - low))
        inside = data.inputs[: len(labels)].clamp(low + away, high - away)
        points = probes.uniform_in_ball(inside, away - hair, generator)
        try:
            gradients = probes.input_gradients(classifier, points, labels, classifier.criterion.margin_loss)
        except RuntimeError as error:
            raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error
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
    region, _ = probes.linf_ball(evidence)
    data, indices = evidence.subject.dataset, evidence.probe_indices()
    seed, criterion = derive_seed(evidence.subject.seed, "C14"), evidence.subject.classifier.criterion
    x, y, size = data.inputs[indices], data.targets[indices], region.epsilon / 10
    attack = partial(probes.pgd, evidence.subject.classifier, x, y, region.epsilon, steps=40, step_size=size, seed=seed)
    broken = [attack(loss=loss).broken for loss in (criterion.loss, criterion.margin_loss)]
    only_first, other = int((broken[0] & ~broken[1]).sum()), int((broken[1] & ~broken[0]).sum())
    gap = abs(only_first - other) / max(1, len(indices))
    flagged = gap > limit and significantly_more(max(only_first, other), min(only_first, other))
    return CheckResult(
        flagged, gap, n=len(indices), reason=f"only cross entropy breaks {only_first}, only the margin {other}"
    )
