"""Group C, gradient masking: do the attacks fail because the model is robust, or because they cannot see?"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from scipy.stats import binomtest
from torch import Tensor

from windtunnel.core.contracts import Norm, ThreatModel
from windtunnel.core.distances import distance, within
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.sanity.attack import rate_interval
from windtunnel.sanity.check import NotApplicable, NotRun, Outcome, Severity, Tier, check
from windtunnel.sanity.evidence import Evidence, Piece
from windtunnel.sanity.model import is_random
from windtunnel.sanity.probes import (
    cross_entropy,
    input_gradients,
    margin_loss,
    need_gradients,
    pgd,
    several_passes,
    uniform_in_ball,
)
from windtunnel.summary.evidence import Region

ALPHA = 0.05
Keep = Callable[[Piece], bool]
NOISE_DRAWS = 1000
EOT_PASSES = 20
EIGHT_255 = 8 / 255
BEST_KNOWN = {"cifar10": 0.737, "cifar100": 0.427, "imagenet": 0.597}  # RobustBench, Linf 8/255, 8/255 and 4/255
BLACK_BOX = (ThreatModel.BLACK_BOX_SCORE.value, ThreatModel.BLACK_BOX_DECISION.value)


def significantly_more(more: int, less: int) -> bool:
    """One-sided exact McNemar: whether `more` discordant samples one way are too many for `less` the other way."""
    return more + less > 0 and binomtest(more, more + less, 0.5, alternative="greater").pvalue < ALPHA


def _gradients(evidence: Evidence, loss: str) -> Tensor:
    need_gradients(evidence)
    data, functions = evidence.subject.dataset, {"cross entropy": cross_entropy, "margin": margin_loss}

    def compute() -> Tensor:
        try:
            return input_gradients(evidence.subject.classifier, data.inputs, data.targets, functions[loss]).flatten(1)
        except RuntimeError as error:
            raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error

    return cast(Tensor, evidence.once(f"gradient {loss}", compute))


@check(
    "C1", "No zero gradients", Tier.PASSES, Severity.WARN,
    source="AutoAttack; Pintor et al. 2022 (unavailable gradients)",
    remedy="Where cross entropy saturates attack the margin (DLR, CW); where both are zero use BPDA or black-box attacks.",
)  # fmt: skip
def no_zero_gradients(evidence: Evidence, limit: float) -> Outcome:
    """Where the gradient of the loss by the input is exactly zero, a gradient attack stands still.

    The gradient of cross entropy at every clean input; flags for any sample without one, and says whether the margin
    (best wrong logit less the own) has one there. The value is the share of samples without.
    """
    zero = (_gradients(evidence, "cross entropy") == 0).all(1)
    if not zero.any():
        return Outcome(flagged=False, value=0.0, n=len(zero))
    both = zero & (_gradients(evidence, "margin") == 0).all(1)
    kind = "also of the margin" if both.any() else "not of the margin: the loss saturates, so use DLR"
    reason = f"cross entropy has no gradient for {int(zero.sum())} samples, {kind}"
    return Outcome(
        flagged=True, value=float(zero.double().mean()), n=len(zero), samples=evidence.named(zero), reason=reason
    )


@check(
    "C2", "Finite gradients", Tier.PASSES, Severity.HARD,
    source="practice",
    remedy="Find the operation whose derivative overflows (sqrt or log at 0, division); attacks turn NaN into noise.",
)  # fmt: skip
def finite_gradients(evidence: Evidence, limit: float) -> Outcome:
    """A gradient of NaN or infinity makes an attack return NaN or its input. Any sample flags."""
    bad = ~(_gradients(evidence, "cross entropy").isfinite().all(1) & _gradients(evidence, "margin").isfinite().all(1))
    return Outcome(
        bool(bad.any()),
        int(bad.sum()),
        n=len(bad),
        samples=evidence.named(bad),
        reason="NaN or infinite gradients",
    )


@check(
    "C3", "Black-box attacks do not beat white-box ones", Tier.STORED, Severity.WARN, threshold=0.002,
    source="Athalye et al. 2018; Carlini et al. 2019; AutoAttack (square)",
    remedy="The gradients mislead: use EOT, BPDA, another loss or more steps, and trust the worst case only.",
)  # fmt: skip
def black_box_not_better(evidence: Evidence, limit: float) -> Outcome:
    """An adversary who sees less cannot do better, unless what the other one sees is misleading.

    At each budget, on the samples that both were tried on: flags where black-box attacks leave a robust accuracy lower
    by more than the threshold than white-box attacks, and the exact McNemar test says so at 5 %. The ids are of samples
    that only black-box attacks broke.
    """
    return _compare(
        evidence, lambda p: p.threat_model in BLACK_BOX, lambda p: p.gradient, limit, "black-box", "white-box"
    )


@check(
    "C4", "One step does not beat many", Tier.STORED, Severity.WARN, threshold=0.01,
    source="Athalye et al. 2018; Carlini et al. 2019",
    remedy="Check the iterative attack's step size and steps; a rough loss surface is a sign of masked gradients.",
)  # fmt: skip
def one_step_not_better(evidence: Evidence, limit: float) -> Outcome:
    """An iterative attack contains the single step.

    Flags where more than the threshold of the samples, and more than one, were broken by one-step attacks alone, at the
    same budget.
    """
    return _compare(
        evidence,
        lambda p: p.one_step,
        lambda p: p.iterative and not p.minimum_norm,
        limit,
        "one-step",
        "iterative",
        exclusive=True,
    )


def _compare(
    evidence: Evidence, one: Keep, other: Keep, limit: float, first: str, second: str, *, exclusive: bool = False
) -> Outcome:
    """Whether attacks of the first kind break more than those of the second, at any budget that both were run at."""
    best: Outcome | None = None
    everyone = evidence.attacks()
    for region in evidence.regions:
        left, right = ([p for p in everyone if p.region == region and keep(p)] for keep in (one, other))
        shared = evidence.covered(left) & evidence.covered(right)
        if not shared.any():
            continue
        broken_left, broken_right = (evidence.union(side, lambda p: p.succeeded) & shared for side in (left, right))
        only, lost = broken_left & ~broken_right, broken_right & ~broken_left
        n, more, less = int(shared.sum()), int(only.sum()), int(lost.sum())
        value = more / n if exclusive else (more - less) / n
        bad = value > limit and (more > 1 if exclusive else significantly_more(more, less))
        if best is None or best.value is None or (bad, value) > (best.flagged, best.value):
            reason = f"{more} samples broken only by {first} attacks at {region.norm.value} {region.epsilon:.4g}"
            names = [p.name for p in (*left, *right)]
            best = Outcome(bad, value, n=n, samples=evidence.named(only), assessments=names, reason=reason)
    if best is None:
        raise NotApplicable(f"no budget at which both {first} and {second} attacks were run on the same samples")
    return best


def _linf_ball(evidence: Evidence) -> tuple[Region, Tensor]:
    """The largest Linf budget that attacks were run at, and the samples right that none of them broke; (N,) bool."""
    balls = [r for r in evidence.regions if r.norm is Norm.LINF]
    if not balls:
        raise NotApplicable("no attack was run in Linf")
    region = max(balls, key=lambda r: r.epsilon)
    mine = [p for p in evidence.attacks() if p.region == region]
    return region, evidence.covered(mine) & ~evidence.union(mine, lambda p: p.succeeded)


@check(
    "C5", "Random noise finds nothing new", Tier.ATTACKS, Severity.WARN,
    source="Carlini et al. 2019; Athalye et al. 2018",
    remedy="Attacks that miss what chance finds are broken or blind: look at C1, C13 and D1.",
)  # fmt: skip
def noise_finds_nothing(evidence: Evidence, limit: float) -> Outcome:
    """Attacks search a ball; drawing from it blindly must not find what they missed.

    1,000 uniform draws in the Linf ball around samples that no attack broke; flags for any sample that noise breaks.
    """
    region, survivors = _linf_ball(evidence)
    rows = survivors.nonzero().flatten()[: evidence.params.sanity.samples]
    if not len(rows):
        return Outcome(flagged=False, value=0, n=0, note="every sample was broken")
    data, generator = evidence.subject.dataset, torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "C5"))
    found = torch.zeros(len(rows), dtype=torch.bool)
    for _ in range(NOISE_DRAWS):
        drawn = uniform_in_ball(data.inputs[rows], region.epsilon, generator)
        found |= evidence.subject.classifier.predict(drawn) != data.targets[rows]
    ids = [evidence.ids[i] for i in rows[found].tolist()]
    return Outcome(
        bool(ids),
        len(ids),
        n=len(rows),
        samples=ids,
        reason=f"{NOISE_DRAWS} draws broke {len(ids)} samples",
    )


@check(
    "C6", "Transfer does not beat white-box attacks", Tier.ATTACKS, Severity.WARN,
    source="Carlini et al. 2019; Papernot et al. 2017",
    remedy="The model's gradients mislead where another model's do not: they are masked.",
)  # fmt: skip
def transfer_not_better(evidence: Evidence, limit: float) -> Outcome:
    """Examples made on another model must not break more than those made on the model itself.

    The surrogate is the directory `sanity.surrogate` (an earlier reports/model), or, for a model trained here, the same
    recipe under another seed. PGD on the surrogate in the largest Linf budget; flags where it significantly breaks more
    of the samples than the run's own attacks (exact McNemar, 5 %).
    """
    from windtunnel.sanity.surrogate import surrogate_of

    region, survivors = _linf_ball(evidence)
    other, rows = surrogate_of(evidence), evidence.probe_rows()
    data = evidence.subject.dataset
    x, y = data.inputs[rows], data.targets[rows]
    examples = _follow(other, x, y, region.epsilon)
    fooled = evidence.subject.classifier.predict(examples) != y
    broken = ~survivors[rows]
    only, lost = int((fooled & ~broken).sum()), int((broken & ~fooled).sum())
    ids = [evidence.ids[i] for i in rows[fooled & ~broken].tolist()]
    return Outcome(
        significantly_more(only, lost),
        (only - lost) / len(rows),
        n=len(rows),
        samples=ids,
        reason=f"{only} samples broken only by transfer",
    )


def _follow(classifier: object, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """The last iterates of PGD on another model."""
    from windtunnel.core.classifier import Classifier

    assert isinstance(classifier, Classifier)
    moved = x.clone()
    for _ in range(20):
        step = input_gradients(classifier, moved, y, margin_loss).sign()
        moved = (moved + epsilon / 8 * step).clamp(x - epsilon, x + epsilon).clamp(0, 1)
    return moved


@check(
    "C7", "Hard-label attacks do not beat gradient attacks", Tier.STORED, Severity.WARN, threshold=0.01,
    source="Carlini et al. 2019",
    remedy="An attack that sees only the class finds what gradients do not show: they are masked.",
)  # fmt: skip
def hard_label_not_better(evidence: Evidence, limit: float) -> Outcome:
    """Attacks that see only the predicted class must not break what attacks with gradients leave.

    Flags where more than the threshold of the samples, and more than one, were broken by decision-based attacks alone,
    at one budget.
    """
    return _compare(
        evidence,
        lambda p: p.threat_model == BLACK_BOX[1],
        lambda p: p.gradient,
        limit,
        "hard-label",
        "gradient",
        exclusive=True,
    )


@check(
    "C8", "An unbounded attack breaks everything", Tier.ATTACKS, Severity.HARD,
    source="Carlini et al. 2019; Athalye et al. 2018; Pintor et al. 2022 (unconstrained failure)",
    remedy="An attack that fails with no bound is broken, or blinded by masked gradients.",
)  # fmt: skip
def unbounded_attack_succeeds(evidence: Evidence, limit: float) -> Outcome:
    """With epsilon 1 every image can be made any other: an attack with gradients that then fails is not working.

    PGD on the margin at epsilon 1, 100 steps, 3 restarts; any sample that survives flags.
    """
    return _survivors_at(evidence, 1.0, allowed=0.0)


@check(
    "C9", "Robustness ends where all images can be grey", Tier.ATTACKS, Severity.HARD,
    source="Carlini et al. 2019",
    remedy="Above half the value range no classifier can be better than chance: the attack is not working.",
)  # fmt: skip
def theoretical_ceiling(evidence: Evidence, limit: float) -> Outcome:
    """At Linf 0.5 every image can be made the same grey, so that robust accuracy above 1/K is impossible.

    PGD on the margin at epsilon 0.5, and what the sweeps measured at 0.5 and above with iterative attacks; flags above
    1/K by more than the 95 % interval.
    """
    return _survivors_at(evidence, 0.5, allowed=1 / evidence.subject.dataset.num_classes)


def _survivors_at(evidence: Evidence, epsilon: float, allowed: float) -> Outcome:
    need_gradients(evidence)
    data, rows = evidence.subject.dataset, evidence.probe_rows()
    if not data.is_image:
        raise NotApplicable("tabular data has no grey")
    if not len(rows):
        raise NotApplicable("the model gets no sample right")
    seed = derive_seed(evidence.subject.seed, "ceiling", str(epsilon))
    try:
        alive = torch.ones(len(rows), dtype=torch.bool)
        for step in (epsilon / 10, epsilon / 4, epsilon):
            left = alive.nonzero().flatten()
            if len(left):
                found = pgd(evidence.subject.classifier, data.inputs[rows[left]], data.targets[rows[left]], epsilon,
                            steps=100, step_size=step, seed=seed)  # fmt: skip
                alive[left[found.broken]] = False
    except RuntimeError as error:
        raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error
    # Of all assessed samples the misclassified ones are broken anyway; the bound is on those attacked here.
    rate, low, _ = rate_interval(alive)
    flagged = bool(alive.any()) if allowed == 0 else low > allowed
    ids = [evidence.ids[i] for i in rows[alive].tolist()]
    return Outcome(
        flagged,
        rate,
        n=len(rows),
        samples=ids if flagged else (),
        reason=f"{int(alive.sum())} of {len(rows)} survive Linf {epsilon:g}",
    )


def _curves(evidence: Evidence) -> list[tuple[Piece, Tensor, Tensor]]:
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
    for piece, _, right in _curves(evidence):
        falls, rises = right[:-1] & ~right[1:], ~right[:-1] & right[1:]
        total += int(rises.sum())
        if any(significantly_more(int(up.sum()), int(down.sum())) for up, down in zip(rises, falls, strict=True)):
            bad.append(piece.name)
            single &= piece.one_step
    severity = Severity.INFO if single else Severity.WARN
    return Outcome(
        bool(bad),
        total,
        n=len(evidence.ids),
        assessments=bad,
        reason=f"accuracy rises with epsilon in {', '.join(bad)}",
        severity=severity,
    )


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
    for piece, _, right in _curves(evidence):
        accuracy = right.double().mean(1)
        _, low, _ = rate_interval(right[-1])
        ends.append(float(accuracy[-1]))
        if len(accuracy) > 3 and bool((accuracy[-3:].diff().abs() < limit).all()) and low > chance:
            bad.append(piece.name)
    return Outcome(bool(bad), max(ends), n=len(ends), assessments=bad, reason=f"flat above chance: {', '.join(bad)}")


@check(
    "C12", "Robust against more than FGSM", Tier.STORED, Severity.WARN, threshold=0.3,
    source="Wong et al. 2020, catastrophic overfitting",
    remedy="The model learned to hide its gradient from one step: report iterative attacks, train against them.",
)  # fmt: skip
def more_than_fgsm(evidence: Evidence, limit: float) -> Outcome:
    """A model trained against single steps can be robust against them and against nothing else.

    Robust accuracy under one-step attacks less that under iterative ones, at one budget; flags above the threshold.
    """
    return _gap(
        evidence, lambda p: p.one_step, lambda p: p.iterative and not p.minimum_norm, limit, "one-step and iterative"
    )


def _gap(evidence: Evidence, one: Keep, other: Keep, limit: float, words: str) -> Outcome:
    best: Outcome | None = None
    everyone = evidence.attacks()
    for region in evidence.regions:
        left, right = ([p for p in everyone if p.region == region and keep(p)] for keep in (one, other))
        shared = evidence.covered(left) & evidence.covered(right)
        if not shared.any():
            continue
        broken = [int((evidence.union(side, lambda p: p.succeeded) & shared).sum()) for side in (left, right)]
        n = int(shared.sum())
        gap = (broken[1] - broken[0]) / n
        if best is None or best.value is None or gap > best.value:
            names = [p.name for p in (*left, *right)]
            reason = f"{gap:.1%} apart at {region.norm.value} {region.epsilon:.4g}"
            best = Outcome(gap > limit, gap, n=n, assessments=names if gap > limit else (), reason=reason)
    if best is None:
        raise NotApplicable(f"no budget at which {words} attacks were run on the same samples")
    return best


@check(
    "C13", "Stable loss surface", Tier.PASSES, Severity.WARN, threshold=0.1,
    source="Pintor et al. 2022, unstable predictions (100 points, range 8/255)",
    remedy="Gradients point nowhere on a rough surface: average them (EOT), smooth the loss, or attack black-box.",
)  # fmt: skip
def stable_loss(evidence: Evidence, limit: float) -> Outcome:
    """Where the loss jumps from one point to the next, a gradient tells nothing of the way ahead.

    100 random points within 4/255 of each of up to 100 samples: mean change of the margin relative to its size (at
    least the median size, so that samples at the boundary do not count for more), clipped to 1.
    """
    data, rows = evidence.subject.dataset, torch.arange(min(len(evidence.ids), evidence.params.sanity.samples))
    x, y = data.inputs[rows], data.targets[rows]
    generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "C13"))
    here = margin_loss(evidence.subject.classifier.logits(x), y)
    scale = torch.maximum(here.abs(), here.abs().median()).clamp(min=1e-12)
    change = torch.zeros(len(rows))
    for _ in range(100):
        there = margin_loss(evidence.subject.classifier.logits(uniform_in_ball(x, EIGHT_255 / 2, generator)), y)
        change += ((there - here).abs() / scale).clamp(max=1)
    value = float((change / 100).mean())
    return Outcome(
        value > limit,
        value,
        n=len(rows),
        reason=f"the margin changes by {value:.0%} on average",
    )


@check(
    "C14", "Losses agree", Tier.ATTACKS, Severity.WARN, threshold=0.02,
    source="AutoAttack documentation",
    remedy="Report the worst case over both losses; cross entropy that is much weaker has saturated.",
)  # fmt: skip
def losses_agree(evidence: Evidence, limit: float) -> Outcome:
    """Cross entropy and a loss that cannot saturate must find about the same examples.

    PGD under cross entropy and under the margin on the same samples, 40 steps in the largest Linf budget; flags where
    robust accuracies differ by more than the threshold and the exact McNemar test says so at 5 %.
    """
    need_gradients(evidence)
    region, _ = _linf_ball(evidence)
    data, rows = evidence.subject.dataset, evidence.probe_rows()
    seed = derive_seed(evidence.subject.seed, "C14")
    broken = [
        pgd(evidence.subject.classifier, data.inputs[rows], data.targets[rows], region.epsilon, steps=40,
            step_size=region.epsilon / 10, seed=seed, loss=loss).broken
        for loss in (cross_entropy, margin_loss)
    ]  # fmt: skip
    one, other = int((broken[0] & ~broken[1]).sum()), int((broken[1] & ~broken[0]).sum())
    gap = abs(one - other) / max(1, len(rows))
    flagged = gap > limit and significantly_more(max(one, other), min(one, other))
    return Outcome(flagged, gap, n=len(rows), reason=f"only cross entropy breaks {one}, only the margin {other}")


@check(
    "C15", "Expectation over transformation adds nothing", Tier.ATTACKS, Severity.HARD, threshold=0.02,
    source="AutoAttack `rand`; auto-attack#15; Athalye et al. 2018",
    remedy="Attack with EOT (EOTPGD, or APGD with eot_iter: 20).",
)  # fmt: skip
def eot_adds_nothing(evidence: Evidence, limit: float) -> Outcome:
    """For a random model the gradient of one draw is noise, and an attack that follows it is weak.

    Only where A2 finds randomness: PGD with one gradient a step against PGD with the mean of 20, both judged by the mean
    logits of 20 passes; flags where the latter breaks more by more than the threshold.
    """
    _only_random(evidence)
    region, _ = _linf_ball(evidence)
    data, rows = evidence.subject.dataset, evidence.probe_rows()[:50]
    x, y = data.inputs[rows], data.targets[rows]

    def broken(passes: int) -> float:
        found = pgd(
            evidence.subject.classifier,
            x,
            y,
            region.epsilon,
            steps=20,
            step_size=region.epsilon / 8,
            seed=0,
            passes=passes,
        )
        mean = torch.stack(several_passes(evidence.subject.classifier, found.examples, EOT_PASSES)).mean(0)
        return float((mean.argmax(1) != y).double().mean())

    gap = broken(EOT_PASSES) - broken(1)
    return Outcome(gap > limit, gap, n=len(rows), reason=f"EOT breaks {gap:.1%} more")


def _only_random(evidence: Evidence) -> None:
    if not is_random(evidence):
        raise NotApplicable("the forward pass is deterministic (A2)")


@check(
    "C16", "Attacks work with the randomness frozen", Tier.ATTACKS, Severity.WARN, threshold=0.5,
    source="Carlini et al. 2019",
    remedy="An attack that fails even against one fixed draw is broken apart from the randomness.",
)  # fmt: skip
def works_when_frozen(evidence: Evidence, limit: float) -> Outcome:
    """With its random stream fixed a random model is deterministic, and an attack must break it at a large budget.

    Only where A2 finds randomness: every pass is seeded alike, PGD at epsilon 0.5; flags where more than the threshold
    of the samples survive.
    """
    _only_random(evidence)
    classifier, data, rows = evidence.subject.classifier, evidence.subject.dataset, evidence.probe_rows()[:50]

    class Frozen(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with seeded(0):
                logits: Tensor = classifier.module(x)
            return logits

    from dataclasses import replace

    frozen = replace(classifier, module=Frozen())
    found = pgd(frozen, data.inputs[rows], data.targets[rows], 0.5, steps=50, step_size=0.05, seed=0)
    alive = float((~found.broken).double().mean())
    return Outcome(alive > limit, alive, n=len(rows), reason=f"{alive:.0%} survive Linf 0.5")


@check(
    "C17", "Success over repeated draws", Tier.ATTACKS, Severity.HARD, threshold=0.01,
    source="auto-attack PR#104, #105",
    remedy="Judge each example by several draws of the model, and report mean and deviation.",
)  # fmt: skip
def success_over_draws(evidence: Evidence, limit: float) -> Outcome:
    """A random model judged by one draw gives a number that the next draw does not confirm.

    Only where A2 finds randomness: the stored examples of each attack are judged five times; flags where the standard
    deviation of robust accuracy, or its distance from the stored one, is above the threshold.
    """
    _only_random(evidence)
    worst, bad = 0.0, []
    for piece in evidence.attacks():
        examples, targets = piece.tensor("perturbed_inputs"), piece.tensor("targets")
        robust = torch.stack(
            [piece.right & (evidence.subject.classifier.predict(examples) == targets) for _ in range(5)]
        )
        rates = robust.double().mean(1)
        stored = float((piece.right & ~piece.succeeded).double().mean())
        off = max(float(rates.std()), abs(float(rates.mean()) - stored))
        worst = max(worst, off)
        if off > limit:
            bad.append(piece.name)
    return Outcome(
        bool(bad),
        worst,
        n=5,
        assessments=bad,
        reason=f"robust accuracy is off by {worst:.1%} when judged again",
    )


@check(
    "C18", "Fixed-budget attacks find what minimum-norm attacks find", Tier.STORED, Severity.WARN, threshold=0.01,
    source="AttackBench",
    remedy="Give the fixed-budget attack more steps or restarts, or report the minimum-norm attack's worst case.",
)  # fmt: skip
def fixed_budget_finds_all(evidence: Evidence, limit: float) -> Outcome:
    """An example nearer than epsilon, found by an attack that minimises the distance, was there to be found.

    Every example on disk of a minimum-norm attack inside a fixed budget of an iterative attack, measured in that norm;
    flags where the lower 95 % bound of the share missed is above the threshold.
    """
    finders = [p for p in evidence.attacks(lambda p: p.minimum_norm, "minimum-norm attack")]
    best: Outcome | None = None
    everyone = evidence.attacks()
    for region in evidence.regions:
        fixed = [p for p in everyone if p.region == region and p.iterative and not p.minimum_norm]
        covered = evidence.covered(fixed)
        if not covered.any():
            continue

        def inside(piece: Piece, ball: Region = region) -> Tensor:
            far = distance(ball.norm, piece.tensor("perturbed_inputs"), piece.tensor("clean_inputs"))
            return (piece.tensor("perturbed_predictions") != piece.tensor("targets")) & within(far, ball.epsilon)

        missed = evidence.union(finders, inside) & covered & ~evidence.union(fixed, lambda p: p.succeeded)
        value = int(missed.sum()) / int(covered.sum())
        if best is None or best.value is None or value > best.value:
            bad = rate_interval(missed[covered])[1] > limit
            reason = f"{int(missed.sum())} missed at {region.norm.value} {region.epsilon:.4g}"
            best = Outcome(
                bad,
                value,
                n=int(covered.sum()),
                samples=evidence.named(missed),
                assessments=[p.name for p in fixed] if bad else (),
                reason=reason,
            )
    if best is None:
        raise NotApplicable("no iterative attack with a fixed budget")
    return best


@check(
    "C19", "Targeted attacks add little", Tier.STORED, Severity.INFO, threshold=0.02,
    source="Carlini et al. 2019; AutoAttack",
    remedy="Put a targeted attack into the worst case (APGDT, FAB targeted, profile standard).",
)  # fmt: skip
def targeted_adds_little(evidence: Evidence, limit: float) -> Outcome:
    """Aiming at each class in turn can find what the nearest class does not.

    Samples that only targeted attacks broke, as a share; above the threshold the headline must include them.
    """
    aimed = [p for p in evidence.of("attacks") if p.semantics.get("objective") == "targeted"]
    if not aimed:
        raise NotApplicable("no targeted attack among the assessments")
    untargeted = [p for p in evidence.attacks() if p.region in {a.region for a in aimed}]
    both = evidence.covered(aimed) & evidence.covered(untargeted)
    if not both.any():
        raise NotApplicable("no untargeted attack at the same budget on the same samples")
    only = evidence.union(aimed, lambda p: p.succeeded) & both & ~evidence.union(untargeted, lambda p: p.succeeded)
    value = int(only.sum()) / int(both.sum())
    return Outcome(
        value > limit, value, n=int(both.sum()), samples=evidence.named(only), assessments=[p.name for p in aimed]
    )


@check(
    "C20", "Diverse attacks", Tier.STORED, Severity.WARN,
    source="Carlini et al. 2019, diverse set of attacks",
    remedy="Add the missing kinds, or the profile `standard` and one decision-based attack (HopSkipJumpAttack).",
)  # fmt: skip
def diverse_attacks(evidence: Evidence, limit: float) -> Outcome:
    """A defence against one kind of attack often falls to another.

    A headline needs a gradient attack, a score-based one, a decision-based one and one that minimises the distance.
    """

    def kinds(piece: Piece) -> set[str]:
        found = set()
        if "ensemble" in piece.families:  # standard and AutoAttack hold APGD, FAB and Square
            found |= (
                {"gradient", "score-based", "minimum-norm"}
                if str(piece.metadata["algorithm"]) in ("standard", "exhaustive", "AutoAttack")
                else {"gradient"}
            )
        if piece.gradient and not piece.minimum_norm:
            found.add("gradient")
        if piece.threat_model == BLACK_BOX[0]:
            found.add("score-based")
        if piece.threat_model == BLACK_BOX[1] and "noise" not in piece.families:
            found.add("decision-based")
        if piece.minimum_norm and piece.gradient:
            found.add("minimum-norm")
        return found

    have = set().union(*(kinds(p) for p in evidence.attacks()))
    missing = [kind for kind in ("gradient", "score-based", "decision-based", "minimum-norm") if kind not in have]
    return Outcome(bool(missing), len(missing), n=len(have), reason=f"no {', '.join(missing)} attack")


@check(
    "C21", "Not better than the best known", Tier.STORED, Severity.WARN,
    source="RobustBench",
    remedy="A number above the state of the art is more often a broken attack than a breakthrough: run the profile full.",
)  # fmt: skip
def not_too_good(evidence: Evidence, limit: float) -> Outcome:
    """Robust accuracy above the best on record needs better evidence than usual.

    For `sanity.benchmark` cifar10, cifar100 (Linf 8/255) or imagenet (4/255): the worst case of all attacks.
    """
    benchmark = evidence.params.sanity.benchmark
    if benchmark is None:
        raise NotApplicable("sanity.benchmark is not given: no record to compare with")
    size = 4 / 255 if benchmark == "imagenet" else EIGHT_255
    mine = [
        p
        for p in evidence.attacks()
        if p.region is not None and p.region.norm is Norm.LINF and p.region.epsilon >= size - 1e-9
    ]
    if not mine:
        raise NotApplicable(f"no attack at Linf {size:.4g}")
    covered = evidence.union(mine, lambda p: torch.ones(len(p.rows), dtype=torch.bool))
    robust = evidence.subject.clean_correct & ~evidence.union(mine, lambda p: p.succeeded)
    value, record = float(robust[covered].double().mean()), limit or BEST_KNOWN[benchmark]
    return Outcome(value > record, value, n=int(covered.sum()), reason=f"above {record:.1%}")


@check(
    "C22", "An undefended model is not robust", Tier.STORED, Severity.WARN, threshold=0.05,
    source="RobustBench, Standard 0.0 %",
    remedy="A plainly trained model that withstands 8/255 on natural images is being attacked badly.",
)  # fmt: skip
def undefended_not_robust(evidence: Evidence, limit: float) -> Outcome:
    """Plain training gives no robustness on natural images.

    Only for colour images of at least 32 pixels, a model trained here by the standard recipe, and Linf 8/255 or more;
    small grey scans, such as digits, can withstand it honestly.
    """
    data, model = evidence.subject.dataset, evidence.params.model
    natural = data.is_image and data.inputs.shape[1] == 3 and min(data.inputs.shape[2:]) >= 32
    if not natural or model.source != "train" or model.train.recipe != "standard":
        raise NotApplicable("for undefended models of natural images (3 channels, 32 pixels and more, recipe standard)")
    mine = [
        p
        for p in evidence.attacks()
        if p.region is not None and p.region.norm is Norm.LINF and p.region.epsilon >= EIGHT_255 - 1e-9
    ]
    covered = evidence.covered(mine)
    if not covered.any():
        raise NotApplicable("no attack at Linf 8/255 or more")
    value = float((~evidence.union(mine, lambda p: p.succeeded))[covered].double().mean())
    return Outcome(value > limit, value, n=int(covered.sum()), reason=f"robust accuracy {value:.1%}")
