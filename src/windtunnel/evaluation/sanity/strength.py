"""Group D, strength and convergence: would a little more effort have broken more?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.rows import Invoker
from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance, within
from windtunnel.core.seeds import derive_seed
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.sanity.check import CheckResult, Severity, largest, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable
from windtunnel.evaluation.sanity.model import differentiable, no_hidden_quantisation, no_optimisation_at_inference
from windtunnel.evaluation.sanity.probes import Changes, need_gradients, pgd, rerun, rerun_attack
from windtunnel.evaluation.sanity.rates import rate_interval, significantly_more
from windtunnel.evaluation.summary.evidence import PerturbationBall

# The same method in both libraries, under equal settings (docs/algorithms.md).
TWINS = (
    ("FGSM", "LinfFastGradientAttack"),
    ("BIM", "LinfBasicIterativeAttack"),
    ("PGD", "LinfPGD"),
    ("PGDL2", "L2PGD"),
    ("MIFGSM", "LinfMomentumIterativeFastGradientMethod"),
    ("CW", "L2CarliniWagnerAttack"),
    ("DeepFool", "L2DeepFoolAttack"),
)
SCREENING = 1000
LAST_STEPS = 10


def _stated(assessment: Assessment, key: str | None) -> float | None:
    """Return a number among the arguments of the call; None where there is none."""
    value = assessment.calls[0].get(key) if key and len(assessment.calls) == 1 else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _steps(assessment: Assessment) -> int | None:
    budget_steps = assessment.semantics.perturbation.steps
    steps = (
        budget_steps
        if budget_steps is not None
        else _stated(assessment, assessment.row.steps if assessment.row else None)
    )
    return None if steps is None else int(steps)


def _step_size(assessment: Assessment) -> float | None:
    step_size = assessment.semantics.perturbation.step_size
    return step_size if step_size is not None else _stated(assessment, assessment.row.step if assessment.row else None)


def _iterative(evidence: Evidence) -> list[Assessment]:
    """Gradient attacks of the run with an epsilon and more than one step, which can be rerun."""
    return evidence.bounded(
        lambda p: p.iterative and p.name in evidence.params.attacks and _steps(p) is not None,
        "iterative gradient attack",
    )


def _stronger(
    evidence: Evidence, limit: float, changes: Callable[[Assessment], list[Changes]], change_text: str
) -> CheckResult:
    """Run each iterative attack with more effort on the same samples; flags where it breaks significantly more."""
    worst, bad, ids, most = 0.0, [], [], 0
    for assessment in _iterative(evidence):
        attempts = [rerun(evidence, assessment, change) for change in changes(assessment)]
        if not attempts or not len(attempts[0][0]):
            continue
        local, broken = max(attempts, key=lambda attempt: int((attempt[1] & ~assessment.succeeded[attempt[0]]).sum()))
        before = assessment.succeeded[local]
        gained, lost = int((broken & ~before).sum()), int((before & ~broken).sum())
        drop = (gained - lost) / len(local)
        worst, most = max(worst, drop), max(most, len(local))
        if drop > limit and significantly_more(gained, lost):
            bad.append(assessment.name)
            ids += [assessment.ids[i] for i in local[broken & ~before].tolist()]
    return listing(bad, f"{change_text} breaks more in", value=worst, n=most, samples=ids)


@our_check("D1")
def twice_the_steps(evidence: Evidence, limit: float) -> CheckResult:
    """An attack that is still gaining when it stops measures its own patience.

    Each iterative gradient attack with twice its steps on at most 100 samples; flags where robust accuracy falls by more
    than the threshold and the exact McNemar test says so at 5 %.
    """
    return _stronger(evidence, limit, lambda p: [Changes(steps=2 * (_steps(p) or 1))], "twice the steps")


@our_check("D2")
def more_restarts(evidence: Evidence, limit: float) -> CheckResult:
    """Each start sees another part of the loss surface. Five restarts against the attack's own, evaluated as in D1."""
    return _stronger(evidence, limit, lambda _: [Changes(restarts=5)], "five restarts")


@our_check("D3")
def step_size_well_chosen(evidence: Evidence, limit: float) -> CheckResult:
    """Steps too large jump over, steps too small never arrive.

    The attack with epsilon/10, epsilon/4 and 2.5 epsilon/steps; flags where the best of them breaks more, as in D1.
    """

    def sizes(assessment: Assessment) -> list[Changes]:
        region = assessment.ball
        if assessment.row is None or assessment.row.step is None:
            return []
        return [Changes(step_size=s * region.epsilon) for s in (0.1, 0.25, 2.5 / (_steps(assessment) or 1))]

    if not any(sizes(p) for p in _iterative(evidence)):
        raise NotApplicable("no attack takes a step size")
    return _stronger(evidence, limit, sizes, "another step size")


@our_check("D4")
def optimisation_finished(evidence: Evidence, limit: float) -> CheckResult:
    """A loss that still moves in the last steps has not arrived.

    PGD on the margin with the attack's epsilon, step size and steps, its loss kept at every step: per sample rescaled to
    [0, 1] and made monotone; a sample is unfinished where the last quarter of the steps, ten at most, gained more than 0.05.
    Flags where the lower 95 % bound of the share of unfinished among the samples that stayed unbroken is above the threshold.
    """
    need_gradients(evidence)
    worst, bad, n = 0.0, [], 0
    data, indices = evidence.subject.dataset, evidence.probe_indices()
    for assessment in _iterative(evidence):
        region, steps, size = assessment.ball, _steps(assessment) or 1, _step_size(assessment)
        if region.norm is not Norm.LINF or size is None:
            continue
        x, y = data.inputs[indices], data.targets[indices]
        seed = derive_seed(evidence.subject.seed, "D4", assessment.name)
        attacked = pgd(evidence.subject.classifier, x, y, region.epsilon, steps=steps, step_size=size, seed=seed)
        alive = ~attacked.broken
        if not alive.any():
            continue
        risen = attacked.losses.cummax(0).values[:, alive]
        # Of a short attack the last ten steps are most of it, and hold the way from the random start to the edge of the ball.
        last = max(1, min(LAST_STEPS, steps // 4))
        gained = (risen[-1] - risen[-1 - last]) / (risen[-1] - risen[0]).clamp(min=1e-12)
        share, low, _ = rate_interval(gained > 0.05)
        n, worst = max(n, int(alive.sum())), max(worst, share)
        if low > limit:
            bad.append(assessment.name)
    if not n:
        return CheckResult(flagged=False, value=0.0, n=0, note="every sample was broken")
    return listing(bad, "still rising at the end:", value=worst, n=n)


@our_check("D5")
def no_silent_success(evidence: Evidence, limit: float) -> CheckResult:
    """An attack passed through an adversarial example and returned something else.

    Each iterative attack is rerun, and every iterate inside its ball that the model misclassifies is noted; flagged
    where such a sample is broken by no attack of the run at that budget. PGD returns its last iterate, and now and then walks
    past an example: a WARN. HARD where the 95 % interval of the share of such samples lies above the threshold: then
    the worst case is not what the attack found. The value is the largest share.
    """
    missed = torch.zeros(len(evidence.ids), dtype=torch.bool)
    bad, n_samples, worst, hard = [], 0, 0.0, False
    for assessment in _iterative(evidence):
        region = assessment.ball
        indices = assessment.indices[assessment.tried.nonzero().flatten()[: evidence.params.sanity.samples]]
        if not len(indices):
            continue
        spy = Spy(evidence, indices, region)
        rerun_attack(spy.evidence, assessment, indices, Changes(batch_size=len(indices)))
        mine = [p for p in evidence.attacks() if p.region == region]
        lost = torch.zeros_like(missed)
        lost[indices[spy.seen]] = True
        lost &= ~evidence.union(mine, lambda p: p.succeeded)
        share, low, _ = rate_interval(lost[indices])
        n_samples, worst, hard = max(n_samples, len(indices)), max(worst, share), hard or low > limit
        if lost.any():
            bad.append(assessment.name)
            missed |= lost
    reason = f"examples of {int(missed.sum())} samples were seen and not returned in {', '.join(bad)}"
    severity = None if hard else Severity.WARN
    return CheckResult(
        bool(bad), worst, n=n_samples, samples=evidence.named(missed), assessments=bad, reason=reason, severity=severity
    )


class Spy:
    """The evidence with a model that notes which samples any forward pass showed misclassified inside the ball."""

    def __init__(self, evidence: Evidence, indices: Tensor, region: PerturbationBall) -> None:
        from dataclasses import replace

        clean, labels = evidence.subject.dataset.inputs[indices], evidence.subject.dataset.targets[indices]
        self.seen = seen = torch.zeros(len(indices), dtype=torch.bool)
        inner, criterion = evidence.subject.classifier.module, evidence.subject.classifier.criterion

        class Watching(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                logits: Tensor = inner(x)
                if x.shape == clean.shape:
                    values = x.detach().float().cpu()
                    near = within(distance(region.norm, values, clean), region.epsilon) & (
                        (values >= 0) & (values <= 1)
                    ).flatten(1).all(1)
                    seen.logical_or_(near & ~criterion.is_correct(logits.detach().cpu(), labels))
                return logits

        digest = f"{evidence.subject.classifier.digest} watched"
        classifier = replace(evidence.subject.classifier, module=Watching().eval(), digest=digest)
        self.evidence = replace(evidence, subject=replace(evidence.subject, classifier=classifier), notes={})


@our_check("D6")
def budget_used(evidence: Evidence, limit: float) -> CheckResult:
    """An attack whose steps cannot reach the edge of the ball was never given the budget.

    HARD where steps x step size < epsilon. WARN where more than the threshold of the unbroken samples ended nearer than
    0.95 epsilon under Linf; under the other norms clipping to the value range shortens every change, as PGDL2's. An attack that
    returns the clean input where it failed shows nothing of this.
    """
    short, lazy, worst = [], [], 0.0
    assessments = evidence.bounded(lambda p: p.gradient, "gradient attack")
    for assessment in assessments:
        region, steps, size = assessment.ball, _steps(assessment), _step_size(assessment)
        reach = None if steps is None or size is None else steps * size
        if (
            reach is not None
            and reach < region.epsilon * (1 - 1e-6)
            and assessment.row is not None
            and assessment.row.invoker is Invoker.PLAIN
        ):
            short.append(assessment.name)
        failed = assessment.tried & ~assessment.succeeded & assessment.right
        if failed.any() and assessment.shows_failures and region.norm is Norm.LINF:
            distances = assessment.distance(region.norm)[failed]
            share = float((distances < 0.95 * region.epsilon).double().mean())
            worst = max(worst, share)
            if share > limit:
                lazy.append(assessment.name)
    if short:
        return CheckResult(
            flagged=True,
            value=worst,
            n=len(assessments),
            assessments=short,
            reason=f"steps x step size is below epsilon in {', '.join(short)}",
        )
    reason = f"budget unused in {', '.join(lazy)}"
    return CheckResult(
        bool(lazy), worst, n=len(assessments), assessments=lazy, reason=reason, severity=Severity.WARN if lazy else None
    )


@our_check("D7")
def seeds_agree(evidence: Evidence, limit: float) -> CheckResult:
    """A number that moves with the seed is a draw, not a measurement.

    Each random bounded attack under three seeds; flags where robust accuracy ranges over more than the width of its 95 %
    interval.
    """
    worst, bad, n = 0.0, [], 0
    assessments = evidence.bounded(lambda p: p.name in evidence.params.attacks and p.stochastic, "random attack")
    for assessment in assessments:
        broken = [rerun(evidence, assessment, Changes(seed=evidence.subject.seed + k))[1] for k in (1, 2, 3)]
        rates = [float((~b).double().mean()) for b in broken]
        _, low, high = rate_interval(~broken[0])
        spread, n = max(rates) - min(rates), len(broken[0])
        worst = max(worst, spread)
        if spread > high - low:
            bad.append(assessment.name)
    return CheckResult(
        bool(bad), worst, n=n, assessments=bad, reason=f"robust accuracy moves by {worst:.1%} with the seed"
    )


@our_check("D8")
def query_curve_flat(evidence: Evidence, limit: float) -> CheckResult:
    """A query attack that is cut off while it still succeeds measures the budget of queries.

    Successes that needed more than 90 % of the largest number of queries spent on any sample, as a share of the samples.
    """
    shares = {}
    for assessment in evidence.of("queries"):
        queries, tried = assessment.tensor("queries").double(), assessment.right
        if tried.any() and (tried & ~assessment.succeeded).any():  # without failures nothing was cut off
            late = assessment.succeeded & (queries > 0.9 * queries[tried].max()) & tried
            shares[assessment.name] = int(late.sum()) / int(tried.sum())
    if not shares:
        return CheckResult(flagged=False, value=0.0, note="no sample was cut off")
    return largest(shares, limit, "still succeeding when queries ran out:")


@our_check("D9")
def implementations_agree(evidence: Evidence, limit: float) -> CheckResult:
    """The same method from two libraries must find about the same.

    Twins at the same budget on the same samples: flags where robust accuracies differ by more than the threshold and the
    exact McNemar test says so at 5 %.
    """
    names = {p.metadata.algorithm: p for p in evidence.attacks()}
    worst, bad, n, reason = 0.0, [], 0, ""
    for first, second in TWINS:
        if first not in names or second not in names or names[first].region != names[second].region:
            continue
        first_attack, other = names[first], names[second]
        shared = evidence.covered([first_attack]) & evidence.covered([other])
        broken_first, right = (evidence.union([p], lambda q: q.succeeded) & shared for p in (first_attack, other))
        a, b, size = int((broken_first & ~right).sum()), int((right & ~broken_first).sum()), max(1, int(shared.sum()))
        n, worst = n + 1, max(worst, abs(a - b) / size)
        if abs(a - b) / size > limit and significantly_more(max(a, b), min(a, b)):
            bad += [first_attack.name, other.name]
            reason = f"{first_attack.name} and {other.name} differ by {abs(a - b) / size:.1%}"
    if not n:
        raise NotApplicable("no method was run from two libraries at the same budget")
    return CheckResult(bool(bad), worst, n=n, assessments=bad, reason=reason)


@our_check("D10")
def search_finished(evidence: Evidence, limit: float) -> CheckResult:
    """A minimum-norm attack can reach any sample; where it reached none it failed, and the sample is not thereby robust.

    The share of attacked samples for which no example was found at any distance; flags where its lower 95 % bound is above
    the threshold.
    """
    shares, ids, each = [], list[str](), {}
    for assessment in evidence.attacks(lambda p: p.minimum_norm, "minimum-norm attack"):
        tried = assessment.tried & assessment.right
        if tried.any():
            lost = tried & (assessment.tensor("perturbed_predictions") == assessment.tensor("targets"))
            share, low, _ = rate_interval(lost[tried])
            shares.append(share)
            if low > limit:
                ids += assessment.named(lost)
                each[assessment.name] = (
                    f"{assessment.name} found none for {int(lost.sum())} of {int(tried.sum())} samples"
                )
    if not shares:
        raise NotApplicable("no minimum-norm attack was tried on any sample")
    reason = "; ".join(each.values())
    return CheckResult(
        bool(each), max(shares), len(shares), samples=ids, assessments=list(each), reason=reason, each=each
    )


@our_check("D11", threshold=SCREENING)
def standard_protocol(evidence: Evidence, limit: float) -> CheckResult:
    """A cheap protocol is good for screening, and its number must carry that name.

    Flags fewer samples than the threshold.
    """
    n = len(evidence.ids)
    return CheckResult(n < limit, n, n=n, reason=f"screening: {n} samples, not {limit:.0f}")


@our_check("D12")
def adaptive_evaluation(evidence: Evidence, limit: float) -> CheckResult:
    """Standard attacks know nothing of a purifier, a detector or a quantiser.

    Flags where A12, A13 or A14 flag, no attack is `algorithm: adaptive`, and params do not say that the attacks adapt
    (`sanity.adaptive: true`).
    """
    signs = []
    for name, look, bound in (
        ("A12", no_optimisation_at_inference, 0.0),
        ("A13", differentiable, 0.0),
        ("A14", no_hidden_quantisation, 0.4 / 255),
    ):
        try:
            if look(evidence, bound).flagged:
                signs.append(name)
        except NotApplicable:
            continue
    adapts = any(entry.algorithm == "adaptive" for entry in evidence.params.attacks.values())
    flagged = bool(signs) and not adapts and not evidence.params.sanity.adaptive
    return CheckResult(flagged, len(signs), reason=f"signs of a defence: {', '.join(signs)}")


@our_check("D13")
def none_far_from_the_strongest(evidence: Evidence, limit: float) -> CheckResult:
    """A gradient attack that leaves much more than another one at the same budget says little, and its row misleads.

    Iterative gradient attacks against the strongest of all attacks at their budget, on the samples that both were tried
    on: flags where the difference in accuracy is above the threshold and the exact McNemar test says so at 5 %. The
    worst case is not touched: it is the minimum over all attacks.
    """
    worst: dict[str, float] = {}
    each: dict[str, str] = {}
    all_attacks = evidence.attacks(lambda p: p.region is not None)
    for assessment in (p for p in all_attacks if p.iterative):
        for other in (p for p in all_attacks if p.region == assessment.region and p is not assessment):
            shared = evidence.covered([assessment]) & evidence.covered([other])
            mine, theirs = (evidence.union([p], lambda attack: attack.succeeded) & shared for p in (assessment, other))
            more, less = int((theirs & ~mine).sum()), int((mine & ~theirs).sum())
            n = int(shared.sum())
            gap = (more - less) / n if n else 0.0
            worst[assessment.name] = max(worst.get(assessment.name, 0.0), gap)
            if gap > limit and significantly_more(more, less) and gap >= worst[assessment.name]:
                where = _where(assessment)
                survival_rates = [1 - int(broken.sum()) / n for broken in (mine, theirs)]
                each[assessment.name] = (
                    f"{assessment.name} is far weaker than the strongest one at {where}: of {n} samples it leaves "
                    f"{survival_rates[0]:.1%} unbroken, "
                    f"{other.name} {survival_rates[1]:.1%}"
                )
    if not worst:
        raise NotApplicable("no budget at which two attacks, one of them iterative, were run on the same samples")
    return CheckResult(
        bool(each), max(worst.values()), len(worst), assessments=list(each), reason="; ".join(each.values()), each=each
    )


def _where(assessment: Assessment) -> str:
    region = assessment.region
    assert region is not None
    return place_text(region.norm, region.epsilon)
