"""Group C, what else breaks the samples: chance, another model's examples, no bound at all."""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.core.seeds import derive_seed
from windtunnel.evaluation.sanity.check import NotApplicable, NotRun, Outcome, Severity, Tier, check
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.probes import (
    input_gradients,
    linf_ball,
    margin_loss,
    need_gradients,
    pgd,
    uniform_in_ball,
)
from windtunnel.evaluation.sanity.rates import rate_interval, significantly_more

NOISE_DRAWS = 1000


@check(
    "C5", "Random noise finds nothing new", Tier.ATTACKS, Severity.WARN,
    source="Carlini et al. 2019; Athalye et al. 2018",
    remedy="Attacks that miss what chance finds are broken or blind: look at C1, C13 and D1.",
)  # fmt: skip
def noise_finds_nothing(evidence: Evidence, limit: float) -> Outcome:
    """Attacks search a ball; drawing from it blindly must not find what they missed.

    1,000 uniform draws in the Linf ball around samples that no attack broke; flags for any sample that noise breaks.
    """
    region, survivors = linf_ball(evidence)
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
    from windtunnel.evaluation.sanity.surrogate import surrogate_of

    region, survivors = linf_ball(evidence)
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
