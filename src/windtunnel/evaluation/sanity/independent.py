"""Short attacks of our own on what the run's attacks left: what they break, the run missed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from windtunnel.core.binomial import binomial_interval
from windtunnel.core.seeds import derive_seed
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, Severity, Tier, check
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.probes import linf_ball, need_gradients, pgd, random_search, sign_steps
from windtunnel.evaluation.sanity.student import surrogate_of
from windtunnel.evaluation.summary.evidence import Region

QUERIES = 150
# Above this share of the samples the worst case is not the worst, and the number is not valid.
WRONG = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """Survivors of the run's iterative attacks at its largest Linf budget: `indices` of them are tried, standing for `weight`.

    weight: the share of the attacked samples that all survivors are.
    """

    region: Region
    indices: Tensor
    weight: float
    attacks: tuple[str, ...]


def target_of(evidence: Evidence) -> Target:
    """Raises NotApplicable where no iterative attack with a budget was run, whose survivors would mean something."""
    region, survivors = linf_ball(evidence)
    mine = [p for p in evidence.attacks() if p.region == region]
    if not any(p.iterative and not p.minimum_norm for p in mine):
        raise NotApplicable("no iterative gradient attack with an epsilon: nobody would call its survivors robust")
    indices = survivors.nonzero().flatten()[: evidence.few]
    weight = int(survivors.sum()) / max(1, int(evidence.covered(mine).sum()))
    return Target(region, indices, weight, tuple(p.name for p in mine))


def missed(evidence: Evidence, target: Target, broken: Tensor, words: str, limit: float) -> CheckResult:
    """The result of a probe that broke these (n,) of the target's rows.

    The value is the share of all attacked samples; it flags where the lower 95 % bound is above `limit`, and is HARD where
    that is above a tenth.
    """
    found, n = int(broken.sum()), len(broken)
    low = binomial_interval(found, n)[0] * target.weight
    ids = [evidence.ids[i] for i in target.indices[broken].tolist()]
    return CheckResult(
        low > limit and found > 2,
        found / n * target.weight,
        n=n,
        samples=ids,
        assessments=target.attacks,
        reason=f"{words} broke {found} of {n} samples that {', '.join(target.attacks)} left at Linf {target.region.epsilon:.4g}",
        severity=Severity.HARD if low > WRONG else Severity.WARN,
    )


NOBODY_LEFT = CheckResult(flagged=False, value=0.0, n=0, note="every sample was broken")


@check(
    "C6", "Transfer finds nothing new", Tier.PASSES, Severity.WARN, threshold=0.02,
    source="Carlini et al. 2019; Papernot et al. 2017",
    remedy="The model's gradients mislead where another model's do not: they are masked. windtunnel strengthen attacks by transfer.",
)  # fmt: skip
def transfer_finds_nothing(evidence: Evidence, limit: float) -> CheckResult:
    """Examples made on another model must not break what attacks on the model itself left.

    The surrogate is the directory `sanity.surrogate` (an earlier reports/model), or a small student trained on the model's
    own answers. 20 steps of PGD on it, in the largest Linf budget, on survivors of the run's iterative attacks. Flags where the
    lower 95 % bound of the share missed is above the threshold; HARD above 10 %.
    """
    target = target_of(evidence)
    if not len(target.indices):
        return NOBODY_LEFT
    data = evidence.subject.dataset
    x, y = data.inputs[target.indices], data.targets[target.indices]
    examples = sign_steps(surrogate_of(evidence, target.region.epsilon), x, y, target.region.epsilon)
    broken = evidence.subject.classifier.predict(examples) != y
    return missed(evidence, target, broken, "examples made on another model", limit)


@check(
    "C23", "Random search finds nothing new", Tier.PASSES, Severity.WARN, threshold=0.02,
    source="Athalye et al. 2018; Andriushchenko et al. 2020 (Square)",
    remedy="An adversary without gradients finds what gradients hide: they are masked. windtunnel strengthen adds Square, BPDA and EOT.",
)  # fmt: skip
def random_search_finds_nothing(evidence: Evidence, limit: float) -> CheckResult:
    """An adversary who sees the scores alone cannot do better than one with gradients, unless these mislead.

    150 queries of a random search over squares at the corners of the largest Linf budget, on survivors of the run's
    iterative attacks. Flags where the lower 95 % bound of the share missed is above the threshold; HARD above 10 %.
    """
    target = target_of(evidence)
    if not len(target.indices):
        return NOBODY_LEFT
    data = evidence.subject.dataset
    broken = random_search(
        evidence.subject.classifier, data.inputs[target.indices], data.targets[target.indices], target.region.epsilon,
        queries=QUERIES, seed=derive_seed(evidence.subject.seed, "C23"),
    )  # fmt: skip
    return missed(evidence, target, broken, f"{QUERIES} queries of random search", limit)


@check(
    "D14", "An independent PGD finds nothing new", Tier.PASSES, Severity.WARN, threshold=0.02,
    source="Carlini et al. 2019; Madry et al. 2018",
    remedy="The run's attacks are weak or broken: more steps and restarts, another loss, or the profile `standard`.",
)  # fmt: skip
def independent_pgd_finds_nothing(evidence: Evidence, limit: float) -> CheckResult:
    """A plain PGD that shares no code with the libraries must not break what they left.

    40 steps of epsilon/10 on the margin from a random start, on survivors of the run's iterative attacks in the largest Linf
    budget. Flags where the lower 95 % bound of the share missed is above the threshold; HARD above 10 %.
    """
    need_gradients(evidence)
    target = target_of(evidence)
    if not len(target.indices):
        return NOBODY_LEFT
    data, epsilon = evidence.subject.dataset, target.region.epsilon
    try:
        found = pgd(
            evidence.subject.classifier, data.inputs[target.indices], data.targets[target.indices], epsilon,
            steps=40, step_size=epsilon / 10, seed=derive_seed(evidence.subject.seed, "D14"), until_broken=True,
        )  # fmt: skip
    except RuntimeError as error:
        raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error
    return missed(evidence, target, found.broken, "40 steps of PGD on the margin", limit)
