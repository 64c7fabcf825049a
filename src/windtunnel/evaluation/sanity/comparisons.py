"""Group C, attacks against each other: does a weaker attack break samples that a stronger one missed?"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from windtunnel.core.contracts import Norm, Objective, ThreatModel
from windtunnel.core.distances import within
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.sanity.check import CheckResult, Severity, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable
from windtunnel.evaluation.sanity.rates import rate_interval, significantly_more
from windtunnel.evaluation.summary.evidence import PerturbationBall
from windtunnel.params.entry import parse_number
from windtunnel.records.files import read_json
from windtunnel.records.metadata import fitting

Keep = Callable[[Assessment], bool]
BLACK_BOX = (ThreatModel.BLACK_BOX_SCORE.value, ThreatModel.BLACK_BOX_DECISION.value)


@our_check("C3")
def black_box_not_better(evidence: Evidence, limit: float) -> CheckResult:
    """An adversary who sees less cannot do better, unless what the other one sees is misleading.

    At each budget, on the samples that both were tried on: flags where black-box attacks leave a robust accuracy lower
    by more than the threshold than white-box attacks, and the exact McNemar test says so at 5 %. The ids are of samples
    that only black-box attacks broke.
    """
    return _compare(
        evidence, lambda p: p.threat_model in BLACK_BOX, lambda p: p.gradient, limit, "black-box", "white-box"
    )


@our_check("C4")
def one_step_not_better(evidence: Evidence, limit: float) -> CheckResult:
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


@dataclass(frozen=True, slots=True)
class _Contest:
    """Attacks of two kinds at one budget on their n common samples: bool (N,), samples that only one of them broke."""

    region: PerturbationBall
    names: list[str]
    n: int
    only_first: Tensor
    only_second: Tensor

    @property
    def where(self) -> str:
        """The budget in words."""
        return place_text(self.region.norm, self.region.epsilon)


def _contests(evidence: Evidence, first_kind: Keep, other: Keep, description: str) -> list[_Contest]:
    """One for each budget that both kinds were run at. Raises NotApplicable for none."""
    contests = []
    all_attacks = evidence.attacks()
    for region in evidence.regions:
        first, second = ([p for p in all_attacks if p.region == region and keep(p)] for keep in (first_kind, other))
        shared = evidence.covered(first) & evidence.covered(second)
        if shared.any():
            broken_first, right = (evidence.union(side, lambda p: p.succeeded) & shared for side in (first, second))
            names = [p.name for p in (*first, *second)]
            contests.append(_Contest(region, names, int(shared.sum()), broken_first & ~right, right & ~broken_first))
    if not contests:
        raise NotApplicable(f"no budget at which {description} attacks were run on the same samples")
    return contests


def _compare(
    evidence: Evidence, first_kind: Keep, other: Keep, limit: float, first: str, second: str, *, exclusive: bool = False
) -> CheckResult:
    """Test if attacks of the first kind break more than those of the second, at any budget that both were run at."""
    results = []
    for contest in _contests(evidence, first_kind, other, f"both {first} and {second}"):
        more, less = int(contest.only_first.sum()), int(contest.only_second.sum())
        value = more / contest.n if exclusive else (more - less) / contest.n
        bad = value > limit and (more > 1 if exclusive else significantly_more(more, less))
        reason = f"{more} samples broken only by {first} attacks at {contest.where}"
        samples = evidence.named(contest.only_first)
        results.append(
            (value, CheckResult(bad, value, n=contest.n, samples=samples, assessments=contest.names, reason=reason))
        )
    return max(results, key=lambda entry: (entry[1].flagged, entry[0]))[1]


@our_check("C7")
def hard_label_not_better(evidence: Evidence, limit: float) -> CheckResult:
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


@our_check("C12")
def more_than_fgsm(evidence: Evidence, limit: float) -> CheckResult:
    """A model trained against single steps can be robust against them and against nothing else.

    Robust accuracy under one-step attacks less that under iterative ones, at one budget; flags above the threshold. Ensembles are
    left out: what targeted and black-box attacks add says nothing of the step that the gradient hides.
    """
    results = []
    for contest in _contests(
        evidence,
        lambda p: p.one_step,
        lambda p: p.iterative and not p.minimum_norm and "ensemble" not in p.categories,
        "one-step and iterative",
    ):
        gap = (int(contest.only_second.sum()) - int(contest.only_first.sum())) / contest.n
        reason = f"{gap:.1%} apart at {contest.where}"
        results.append((gap, CheckResult(gap > limit, gap, n=contest.n, assessments=contest.names, reason=reason)))
    return max(results, key=lambda entry: entry[0])[1]


@our_check("C18")
def fixed_budget_finds_all(evidence: Evidence, limit: float) -> CheckResult:
    """An example nearer than epsilon, found by an attack that minimises the distance, was there to be found.

    Every example on disk of a minimum-norm attack inside a fixed budget of an iterative attack, measured in that norm;
    flags where the lower 95 % bound of the share missed is above the threshold.
    """
    finders = [p for p in evidence.attacks(lambda p: p.minimum_norm, "minimum-norm attack")]
    best: CheckResult | None = None
    all_attacks = evidence.attacks()
    for region in evidence.regions:
        fixed = [p for p in all_attacks if p.region == region and p.iterative and not p.minimum_norm]
        covered = evidence.covered(fixed)
        if not covered.any():
            continue

        def inside(assessment: Assessment, ball: PerturbationBall = region) -> Tensor:
            wrong = assessment.tensor("perturbed_predictions") != assessment.tensor("targets")
            return wrong & within(assessment.distance(ball.norm), ball.epsilon)

        missed = evidence.union(finders, inside) & covered & ~evidence.union(fixed, lambda p: p.succeeded)
        value = int(missed.sum()) / int(covered.sum())
        if best is None or best.value is None or value > best.value:
            bad = rate_interval(missed[covered])[1] > limit
            reason = f"{int(missed.sum())} missed at {place_text(region.norm, region.epsilon)}"
            n = int(covered.sum())
            assessments = [p.name for p in fixed] if bad else ()
            best = CheckResult(bad, value, n=n, samples=evidence.named(missed), assessments=assessments, reason=reason)
    if best is None:
        raise NotApplicable("no iterative attack with a fixed budget")
    return best


@our_check("C19")
def targeted_adds_little(evidence: Evidence, limit: float) -> CheckResult:
    """Aiming at each class in turn can find what the nearest class does not.

    Samples that only targeted attacks broke, as a share; above the threshold the headline must include them.
    """
    aimed = [p for p in evidence.of("attacks") if p.semantics.objective is Objective.TARGETED]
    if not aimed:
        raise NotApplicable("no targeted attack among the assessments")
    untargeted = [p for p in evidence.attacks() if p.region in {a.region for a in aimed}]
    both = evidence.covered(aimed) & evidence.covered(untargeted)
    if not both.any():
        raise NotApplicable("no untargeted attack at the same budget on the same samples")
    only = evidence.union(aimed, lambda p: p.succeeded) & both & ~evidence.union(untargeted, lambda p: p.succeeded)
    value = int(only.sum()) / int(both.sum())
    return CheckResult(
        value > limit, value, n=int(both.sum()), samples=evidence.named(only), assessments=[p.name for p in aimed]
    )


@our_check("C20")
def diverse_attacks(evidence: Evidence, limit: float) -> CheckResult:
    """A defence against one kind of attack often falls to another.

    A headline needs a gradient attack, a score-based one, a decision-based one and one that minimises the distance. Where the
    decision-based one alone is missing that is INFO: the field's protocol (AutoAttack) has none, and a score tells more than a decision.
    """

    def kinds(assessment: Assessment) -> set[str]:
        kinds_present = set()
        if "ensemble" in assessment.categories:  # standard and AutoAttack hold APGD, FAB and Square
            kinds_present |= (
                {"gradient", "score-based", "minimum-norm"}
                if assessment.metadata.algorithm in ("standard", "exhaustive", "AutoAttack")
                else {"gradient"}
            )
        if assessment.gradient and not assessment.minimum_norm:
            kinds_present.add("gradient")
        if assessment.threat_model == BLACK_BOX[0]:
            kinds_present.add("score-based")
        if assessment.threat_model == BLACK_BOX[1] and "noise" not in assessment.categories:
            kinds_present.add("decision-based")
        if assessment.minimum_norm and assessment.gradient:
            kinds_present.add("minimum-norm")
        return kinds_present

    have = set().union(*(kinds(p) for p in evidence.attacks()))
    missing = [kind for kind in ("gradient", "score-based", "decision-based", "minimum-norm") if kind not in have]
    severity = Severity.INFO if missing == ["decision-based"] else None
    return CheckResult(
        bool(missing), len(missing), n=len(have), severity=severity, reason=f"no {', '.join(missing)} attack"
    )


@our_check("C21")
def not_too_good(evidence: Evidence, limit: float) -> CheckResult:
    """Robust accuracy above the best on record needs better evidence than usual.

    For `sanity.benchmark` cifar10, cifar100 (Linf 8/255) or imagenet (4/255): the worst case of all attacks, against the
    records of records.json, each by AutoAttack or by a lower adaptive evaluation.
    """
    benchmark = evidence.params.sanity.benchmark
    if benchmark is None:
        raise NotApplicable("sanity.benchmark is not given: no record to compare with")
    known = best_known(benchmark)
    size = known.epsilon
    mine = [
        p
        for p in evidence.attacks()
        if p.region is not None and p.region.norm is Norm.LINF and p.region.epsilon >= size - 1e-9
    ]
    if not mine:
        raise NotApplicable(f"no attack at Linf {size:.4g}")
    covered = evidence.present(mine)
    robust = evidence.subject.clean_correct & ~evidence.union(mine, lambda p: p.succeeded)
    value, record = float(robust[covered].double().mean()), limit or known.accuracy
    whose = "sanity.thresholds.C21" if limit else f"{known.model}, looked up {known.read}"
    return CheckResult(value > record, value, n=int(covered.sum()), reason=f"above {record:.1%} ({whose})")


FILE = Path(__file__).with_name("records.json")


@dataclass(frozen=True, slots=True)
class BestKnownAccuracy:
    """The best known robust accuracy of a benchmark under Linf `epsilon`. read: when it was looked up."""

    model: str
    accuracy: float
    epsilon: float
    read: str


@dataclass(frozen=True, slots=True)
class _BenchmarkModel:
    """One model of a benchmark. external: the lower one of an adaptive evaluation, where there is one."""

    model: str
    clean: float
    autoattack: float
    paper: str
    external: float | None = None
    by: str = ""

    @property
    def lowest(self) -> float:
        return self.autoattack if self.external is None else min(self.autoattack, self.external)


@dataclass(frozen=True, slots=True)
class _Benchmark:
    epsilon: str
    records: tuple[_BenchmarkModel, ...]


@dataclass(frozen=True, slots=True)
class _Records:
    source: str
    read: str
    how: str
    benchmarks: dict[str, _Benchmark]


def best_known(benchmark: str) -> BestKnownAccuracy:
    """Return the highest of the records, each by its lowest evaluation: the external one where there is one."""
    content = fitting(_Records, read_json(FILE), str(FILE), "the best known accuracies")
    benchmark_records = content.benchmarks[benchmark]
    best = max(benchmark_records.records, key=lambda entry: entry.lowest)
    return BestKnownAccuracy(best.model, best.lowest, parse_number(benchmark_records.epsilon), content.read)
