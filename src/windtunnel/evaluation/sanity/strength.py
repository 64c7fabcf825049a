"""Group D, strength and convergence: would a little more effort have broken more?"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.rows import Invoker
from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance, within
from windtunnel.core.seeds import derive_seed
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, Severity, folded, largest, listing, our_check
from windtunnel.evaluation.sanity.comparisons import broken_by_one
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.evaluation.sanity.model import differentiable, no_hidden_quantisation, no_optimisation_at_inference
from windtunnel.evaluation.sanity.probes import need_gradients, pgd, rerun, rerun_attack
from windtunnel.evaluation.sanity.rates import discordant, rate_interval, significantly_more
from windtunnel.records.regions import PerturbationBall

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
    steps: float | None = assessment.semantics.perturbation.steps
    if steps is None and assessment.row:
        steps = _stated(assessment, assessment.row.steps)
    return None if steps is None else int(steps)


def _step_size(assessment: Assessment) -> float | None:
    size = assessment.semantics.perturbation.step_size
    return _stated(assessment, assessment.row.step) if size is None and assessment.row else size


def _iterative(evidence: Evidence) -> list[Assessment]:
    """Gradient attacks of the run with an epsilon and more than one step, which can be rerun."""
    return evidence.bounded(
        lambda p: p.iterative and p.name in evidence.params.attacks and _steps(p) is not None,
        "iterative gradient attack",
    )


def _stronger(
    evidence: Evidence, limit: float, changes: Callable[[Assessment], list[dict[str, float]]]
) -> Iterator[CheckResult]:
    """Run each iterative attack with more effort on the same samples; flags where it breaks significantly more."""
    for assessment in _iterative(evidence):
        attempts = [rerun(evidence, assessment, **change) for change in changes(assessment)]
        if not attempts or not len(attempts[0][0]):
            continue
        local, broken = max(attempts, key=lambda attempt: int((attempt[1] & ~assessment.succeeded[attempt[0]]).sum()))
        before = assessment.succeeded[local]
        gained, lost = discordant(broken, before)
        drop = (gained - lost) / len(local)
        bad, samples = drop > limit and significantly_more(gained, lost), assessment.named(local[broken & ~before])
        yield CheckResult(bad, max(0.0, drop), len(local), samples, [assessment.name])


@our_check("D1", "twice the steps breaks more in {names}", n=max)
def twice_the_steps(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """An attack that is still gaining when it stops measures its own patience.

    Each iterative gradient attack with twice its steps on at most 100 samples; flags where robust accuracy falls by more
    than the threshold and the exact McNemar test says so at 5 %.
    """
    return _stronger(evidence, limit, lambda p: [{"steps": 2 * (_steps(p) or 1)}])


@our_check("D2", "five restarts breaks more in {names}", n=max)
def more_restarts(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """Each start sees another part of the loss surface. Five restarts against the attack's own, evaluated as in D1."""
    return _stronger(evidence, limit, lambda _: [{"restarts": 5}])


@our_check("D3", "another step size breaks more in {names}", n=max)
def step_size_well_chosen(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """Steps too large jump over, steps too small never arrive.

    The attack with epsilon/10, epsilon/4 and 2.5 epsilon/steps; flags where the best of them breaks more, as in D1.
    """

    def sizes(assessment: Assessment) -> list[dict[str, float]]:
        if assessment.row is None or assessment.row.step is None:
            return []
        shares = (0.1, 0.25, 2.5 / (_steps(assessment) or 1))
        return [{"step_size": share * assessment.ball.epsilon} for share in shares]

    if not any(sizes(p) for p in _iterative(evidence)):
        raise NotApplicable("no attack takes a step size")
    return _stronger(evidence, limit, sizes)


@our_check("D4")
def optimisation_finished(evidence: Evidence, limit: float) -> CheckResult:
    """A loss that still moves in the last steps has not arrived.

    PGD on the margin with the attack's epsilon, step size and steps, its loss kept at every step: per sample rescaled to
    [0, 1] and made monotone; a sample is unfinished where the last quarter of the steps, ten at most, gained more than 0.05.
    Flags where the lower 95 % bound of the share of unfinished among the samples that stayed unbroken is above the threshold.
    """
    need_gradients(evidence)
    x, y = evidence.probe_samples()
    results = []
    for assessment in _iterative(evidence):
        region, steps, size = assessment.ball, _steps(assessment) or 1, _step_size(assessment)
        if region.norm is not Norm.LINF or size is None:
            continue
        seed = derive_seed(evidence.subject.seed, "D4", assessment.name)
        attacked = pgd(evidence.classifier, x, y, region.epsilon, steps=steps, step_size=size, seed=seed)
        alive = ~attacked.broken
        if not alive.any():
            continue
        risen = attacked.losses.cummax(0).values[:, alive]
        # Of a short attack the last ten steps are most of it, and hold the way from the random start to the edge of the ball.
        last = max(1, min(LAST_STEPS, steps // 4))
        gained = (risen[-1] - risen[-1 - last]) / (risen[-1] - risen[0]).clamp(min=1e-12)
        share, low, _ = rate_interval(gained > 0.05)
        results.append(CheckResult(low > limit, share, len(gained), assessments=[assessment.name]))
    if not results:
        return CheckResult(flagged=False, value=0.0, n=0, note="every sample was broken")
    return folded(results, "still rising at the end: {names}", n=max)


@our_check("D5")
def no_silent_success(evidence: Evidence, limit: float) -> CheckResult:
    """An attack passed through an adversarial example and returned something else.

    Each iterative attack is rerun, and every iterate inside its ball that the model misclassifies is noted; flagged
    where such a sample is broken by no attack of the run at that budget. PGD returns its last iterate, and now and then walks
    past an example: a WARN. HARD where the 95 % interval of the share of such samples lies above the threshold: then
    the worst case is not what the attack found. The value is the largest share.
    """
    missed = torch.zeros(len(evidence.ids), dtype=torch.bool)
    bad, n, worst, hard = [], 0, 0.0, False
    for assessment in _iterative(evidence):
        region = assessment.ball
        indices = assessment.indices[assessment.tried.nonzero().flatten()[: evidence.params.sanity.samples]]
        if not len(indices):
            continue
        spy = Spy(evidence, indices, region)
        rerun_attack(spy.evidence, assessment, indices, batch_size=len(indices))
        mine = [p for p in evidence.attacks() if p.region == region]
        lost = torch.zeros_like(missed)
        lost[indices[spy.seen]] = True
        lost &= ~evidence.union(mine, lambda p: p.succeeded)
        share, low, _ = rate_interval(lost[indices])
        n, worst, hard = max(n, len(indices)), max(worst, share), hard or low > limit
        bad += [assessment.name] if lost.any() else []
        missed |= lost
    reason = f"examples of {int(missed.sum())} samples were seen and not returned in {', '.join(bad)}"
    severity = None if hard else Severity.WARN
    return CheckResult(bool(bad), worst, n, evidence.named(missed), bad, reason, severity=severity)


class Spy:
    """The evidence with a model that notes which samples any forward pass showed misclassified inside the ball."""

    def __init__(self, evidence: Evidence, indices: Tensor, region: PerturbationBall) -> None:
        clean, labels = evidence.data.inputs[indices], evidence.data.targets[indices]
        self.seen = seen = torch.zeros(len(indices), dtype=torch.bool)
        watched = evidence.classifier
        inner, criterion = watched.module, watched.criterion

        class Watching(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                logits: Tensor = inner(x)
                if x.shape == clean.shape:
                    values = x.detach().float().cpu()
                    is_image = ((values >= 0) & (values <= 1)).flatten(1).all(1)
                    near = within(distance(region.norm, values, clean), region.epsilon)
                    seen.logical_or_(near & is_image & ~criterion.is_correct(logits.detach().cpu(), labels))
                return logits

        classifier = replace(watched, module=Watching().eval(), digest=f"{watched.digest} watched")
        self.evidence = replace(evidence, subject=replace(evidence.subject, classifier=classifier), notes={})


@our_check("D6")
def budget_used(evidence: Evidence, limit: float) -> CheckResult:
    """An attack whose steps cannot reach the edge of the ball was never given the budget.

    HARD where steps x step size < epsilon and it left a sample that no gradient attack in the same ball broke. WARN where more than
    the threshold of the unbroken samples ended nearer than 0.95 epsilon under Linf; under the other norms clipping to the value range
    shortens every change, as PGDL2's. An attack that returns the clean input where it failed shows nothing of this.
    """
    short, lazy, worst = [], [], 0.0
    assessments = evidence.bounded(lambda p: p.gradient, "gradient attack")
    for assessment in assessments:
        region, steps, size = assessment.ball, _steps(assessment), _step_size(assessment)
        reach = torch.inf if steps is None or size is None else steps * size
        is_plain = assessment.row is not None and assessment.row.invoker is Invoker.PLAIN
        failed = assessment.tried & ~assessment.succeeded & assessment.right
        in_ball = [other for other in assessments if other.ball == region]
        unbroken = evidence.everywhere(assessment, failed) & ~evidence.union(in_ball, lambda p: p.succeeded)
        if is_plain and unbroken.any() and reach < region.epsilon * (1 - 1e-6):
            short.append(assessment.name)
        if failed.any() and assessment.shows_failures and region.norm is Norm.LINF:
            distances = assessment.distance(region.norm)[failed]
            share = float((distances < 0.95 * region.epsilon).double().mean())
            worst = max(worst, share)
            if share > limit:
                lazy.append(assessment.name)
    if short:
        return listing(short, "steps x step size is below epsilon in", value=worst, n=len(assessments))
    return listing(lazy, "budget unused in", value=worst, n=len(assessments), severity=Severity.WARN)


@our_check("D7", "robust accuracy moves by {value:.1%} with the seed", n=max)
def seeds_agree(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A number that moves with the seed is a draw, not a measurement.

    Each random bounded attack under three seeds; flags where robust accuracy ranges over more than the width of its 95 %
    interval.
    """
    for assessment in evidence.bounded(
        lambda p: p.name in evidence.params.attacks and p.semantics.stochastic, "random attack"
    ):
        broken = [rerun(evidence, assessment, seed=evidence.subject.seed + k)[1] for k in (1, 2, 3)]
        rates = [float((~b).double().mean()) for b in broken]
        _, low, high = rate_interval(~broken[0])
        spread = max(rates) - min(rates)
        yield CheckResult(spread > high - low, spread, len(broken[0]), assessments=[assessment.name])


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


@our_check("D9", none="no method was run from two libraries at the same budget")
def implementations_agree(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """The same method from two libraries must find about the same.

    Twins at the same budget on the same samples: flags where robust accuracies differ by more than the threshold and the
    exact McNemar test says so at 5 %.
    """
    attacks = {p.metadata.algorithm: p for p in evidence.attacks()}
    for twins in TWINS:
        first, other = map(attacks.get, twins)
        if first is None or other is None or first.region != other.region:
            continue
        n, only_first, only_other = broken_by_one(evidence, [first], [other])
        less, more = sorted((int(only_first.sum()), int(only_other.sum())))
        gap = (more - less) / max(1, n)
        reason = f"{first.name} and {other.name} differ by {gap:.1%}"
        flagged = gap > limit and significantly_more(more, less)
        yield CheckResult(flagged, gap, assessments=[first.name, other.name], reason=reason)


@our_check("D10", none="no minimum-norm attack was tried on any sample")
def search_finished(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A minimum-norm attack can reach any sample; where it reached none it failed, which proves nothing of the sample.

    The share of attacked samples for which no example was found at any distance; flags where its lower 95 % bound is above
    the threshold.
    """
    for assessment in evidence.attacks(lambda p: p.minimum_norm, "minimum-norm attack"):
        tried = assessment.tried & assessment.right
        if tried.any():
            lost = tried & (assessment.tensor("perturbed_predictions") == assessment.tensor("targets"))
            share, low, _ = rate_interval(lost[tried])
            reason = f"{assessment.name} found none for {int(lost.sum())} of {int(tried.sum())} samples"
            yield CheckResult(low > limit, share, 1, assessment.named(lost), [assessment.name], reason)


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
            n, only_mine, only_other = broken_by_one(evidence, [assessment], [other])
            more, less = int(only_other.sum()), int(only_mine.sum())
            gap = (more - less) / n if n else 0.0
            worst[assessment.name] = max(worst.get(assessment.name, 0.0), gap)
            if gap > limit and significantly_more(more, less) and gap >= worst[assessment.name]:
                shared = evidence.covered([assessment]) & evidence.covered([other])
                broken = (evidence.union([p], lambda q: q.succeeded) & shared for p in (assessment, other))
                mine, theirs = (1 - int(mask.sum()) / n for mask in broken)
                where = place_text(assessment.ball.norm, assessment.ball.epsilon)
                each[assessment.name] = (
                    f"{assessment.name} is far weaker than the strongest one at {where}: of {n} samples it leaves "
                    f"{mine:.1%} unbroken, {other.name} {theirs:.1%}"
                )
    if not worst:
        raise NotApplicable("no budget at which two attacks, one of them iterative, were run on the same samples")
    reason, names = "; ".join(each.values()), list(each)
    return CheckResult(bool(each), max(worst.values()), len(worst), assessments=names, reason=reason, each=each)
