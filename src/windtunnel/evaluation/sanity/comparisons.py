"""Group C, attacks against each other, and against themselves at other budgets: does a weaker one break what a stronger one missed?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from windtunnel.core.contracts import Norm, Objective, ThreatModel
from windtunnel.core.distances import within
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.evaluation.sanity.rates import rate_interval, significantly_more
from windtunnel.params.entry import parse_number
from windtunnel.records.files import read_json
from windtunnel.records.metadata import fitting
from windtunnel.records.regions import PerturbationBall

LOST = 3  # samples: that none of so many expected is lost has a chance of 5 % (Poisson)
Kinds = Mapping[str, Callable[[Assessment], bool]]  # two kinds of attacks, by name


def _is_black_box(assessment: Assessment) -> bool:
    return assessment.semantics.threat_model in (ThreatModel.BLACK_BOX_SCORE, ThreatModel.BLACK_BOX_DECISION)


@our_check("C3")
def black_box_not_better(evidence: Evidence, limit: float) -> CheckResult:
    """An adversary who sees less cannot do better, unless what the other one sees is misleading.

    At each budget, on the samples that both were tried on: flags where black-box attacks leave a robust accuracy lower
    by more than the threshold than white-box attacks, and the exact McNemar test says so at 5 %. The ids are of samples
    that only black-box attacks broke.
    """
    return _compare(evidence, limit, {"black-box": _is_black_box, "white-box": lambda p: p.gradient})


@our_check("C4")
def one_step_not_better(evidence: Evidence, limit: float) -> CheckResult:
    """An iterative attack contains the single step.

    Flags where more than the threshold of the samples, and more than one, were broken by one-step attacks alone, at the
    same budget.
    """
    kinds: Kinds = {"one-step": lambda p: p.one_step, "iterative": lambda p: p.iterative and not p.minimum_norm}
    return _compare(evidence, limit, kinds, exclusive=True)


@dataclass(frozen=True, slots=True)
class _Contest:
    """Attacks of two kinds at one budget on their n common samples: bool (N,), samples that only one of them broke."""

    where: str
    names: list[str]
    n: int
    only_first: Tensor
    only_second: Tensor


def _contests(evidence: Evidence, kinds: Kinds) -> list[_Contest]:
    """One for each budget that both kinds were run at. Raises NotApplicable for none."""
    contests = []
    all_attacks = evidence.attacks()
    for region in evidence.regions:
        first, second = ([p for p in all_attacks if p.region == region and keep(p)] for keep in kinds.values())
        n, only_first, only_second = broken_by_one(evidence, first, second)
        if n:
            names = [p.name for p in (*first, *second)]
            contests.append(_Contest(place_text(region.norm, region.epsilon), names, n, only_first, only_second))
    if not contests:
        raise NotApplicable(f"no budget at which both {' and '.join(kinds)} attacks were run on the same samples")
    return contests


def broken_by_one(
    evidence: Evidence, first: Sequence[Assessment], second: Sequence[Assessment]
) -> tuple[int, Tensor, Tensor]:
    """Return the number of samples that both sides were tried on, and those that only one side broke; bool (N,)."""
    shared = evidence.covered(first) & evidence.covered(second)
    broken_first, broken_second = (evidence.union(side, lambda p: p.succeeded) & shared for side in (first, second))
    return int(shared.sum()), broken_first & ~broken_second, broken_second & ~broken_first


def _compare(evidence: Evidence, limit: float, kinds: Kinds, *, exclusive: bool = False) -> CheckResult:
    """Test if attacks of the first kind break more than those of the second, at any budget that both were run at."""
    results = []
    for contest in _contests(evidence, kinds):
        more, less = int(contest.only_first.sum()), int(contest.only_second.sum())
        value = more / contest.n if exclusive else (more - less) / contest.n
        bad = value > limit and (more > 1 if exclusive else significantly_more(more, less))
        reason = f"{more} samples broken only by {next(iter(kinds))} attacks at {contest.where}"
        samples = evidence.named(contest.only_first)
        results.append((bad, value, CheckResult(bad, value, contest.n, samples, contest.names, reason)))
    return max(results, key=lambda result: result[:2])[2]


@our_check("C7")
def hard_label_not_better(evidence: Evidence, limit: float) -> CheckResult:
    """Attacks that see only the predicted class must not break what attacks with gradients leave.

    Flags where more than the threshold of the samples, and more than one, were broken by decision-based attacks alone,
    at one budget.
    """
    decides = ThreatModel.BLACK_BOX_DECISION
    kinds: Kinds = {"hard-label": lambda p: p.semantics.threat_model == decides, "gradient": lambda p: p.gradient}
    return _compare(evidence, limit, kinds, exclusive=True)


@our_check("C12")
def more_than_fgsm(evidence: Evidence, limit: float) -> CheckResult:
    """A model trained against single steps can be robust against them and against nothing else.

    Robust accuracy under one-step attacks less that under iterative ones, at one budget; flags above the threshold. Ensembles are
    left out: what targeted and black-box attacks add says nothing of the step that the gradient hides.
    """
    kinds: Kinds = {
        "one-step": lambda p: p.one_step,
        "iterative": lambda p: p.iterative and not p.minimum_norm and "ensemble" not in p.categories,
    }
    contests = _contests(evidence, kinds)
    gaps = [(int(c.only_second.sum()) - int(c.only_first.sum())) / c.n for c in contests]
    gap, contest = max(zip(gaps, contests, strict=True), key=lambda pair: pair[0])
    reason = f"{gap:.1%} apart at {contest.where}"
    return CheckResult(gap > limit, gap, contest.n, assessments=contest.names, reason=reason)


@our_check("C18")
def fixed_budget_finds_all(evidence: Evidence, limit: float) -> CheckResult:
    """An example nearer than epsilon, found by an attack that minimises the distance, was there to be found.

    Every example on disk of a minimum-norm attack inside a fixed budget of an iterative attack, measured in that norm;
    flags where the lower 95 % bound of the share missed is above the threshold.
    """
    finders = evidence.attacks(lambda p: p.minimum_norm, "minimum-norm attack")
    all_attacks, results = evidence.attacks(), []
    for region in evidence.regions:
        fixed = [p for p in all_attacks if p.region == region and p.iterative and not p.minimum_norm]
        covered = evidence.covered(fixed)
        n = int(covered.sum())
        if not n:
            continue

        def inside(assessment: Assessment, ball: PerturbationBall = region) -> Tensor:
            wrong = assessment.tensor("perturbed_predictions") != assessment.tensor("targets")
            return wrong & within(assessment.distance(ball.norm), ball.epsilon)

        missed = evidence.union(finders, inside) & covered & ~evidence.union(fixed, lambda p: p.succeeded)
        value, bad = int(missed.sum()) / n, rate_interval(missed[covered])[1] > limit
        reason = f"{int(missed.sum())} missed at {place_text(region.norm, region.epsilon)}"
        results.append((value, CheckResult(bad, value, n, evidence.named(missed), [p.name for p in fixed], reason)))
    if not results:
        raise NotApplicable("no iterative attack with a fixed budget")
    return max(results, key=lambda result: result[0])[1]


@our_check("C19")
def targeted_adds_little(evidence: Evidence, limit: float) -> CheckResult:
    """Aiming at each class in turn can find what the nearest class does not.

    Samples that only targeted attacks broke, as a share; above the threshold the headline must include them.
    """
    aimed = [p for p in evidence.of("attacks") if p.semantics.objective is Objective.TARGETED]
    if not aimed:
        raise NotApplicable("no targeted attack among the assessments")
    untargeted = [p for p in evidence.attacks() if p.region in {a.region for a in aimed}]
    n, only, _ = broken_by_one(evidence, aimed, untargeted)
    if not n:
        raise NotApplicable("no untargeted attack at the same budget on the same samples")
    value = int(only.sum()) / n
    return CheckResult(value > limit, value, n, evidence.named(only), [p.name for p in aimed])


@our_check("C20")
def diverse_attacks(evidence: Evidence, limit: float) -> CheckResult:
    """A defence against one kind of attack often falls to another.

    A headline needs a gradient attack, a score-based one, a decision-based one and one that minimises the distance. Where the
    decision-based one alone is missing that is INFO: the field's protocol (AutoAttack) has none, and a score tells more than a decision.
    """

    def kinds(assessment: Assessment) -> Iterator[str]:
        if "ensemble" in assessment.categories:  # standard and AutoAttack hold APGD, FAB and Square
            yield "gradient"
            if assessment.metadata.algorithm in ("standard", "exhaustive", "AutoAttack"):
                yield from ("score-based", "minimum-norm")
        if assessment.gradient:
            yield "minimum-norm" if assessment.minimum_norm else "gradient"
        if assessment.semantics.threat_model == ThreatModel.BLACK_BOX_SCORE:
            yield "score-based"
        if assessment.semantics.threat_model == ThreatModel.BLACK_BOX_DECISION and "noise" not in assessment.categories:
            yield "decision-based"

    have = {kind for attack in evidence.attacks() for kind in kinds(attack)}
    missing = [kind for kind in ("gradient", "score-based", "decision-based", "minimum-norm") if kind not in have]
    severity, reason = Severity.INFO if missing == ["decision-based"] else None, f"no {', '.join(missing)} attack"
    return CheckResult(bool(missing), len(missing), len(have), reason=reason, severity=severity)


@our_check("C21")
def not_too_good(evidence: Evidence, limit: float) -> CheckResult:
    """Robust accuracy above the best on record needs better evidence than usual.

    For `sanity.benchmark` cifar10, cifar100 (Linf 8/255) or imagenet (4/255): the worst case of all attacks, against the
    records of records.json, each by AutoAttack or by a lower adaptive evaluation.
    """
    benchmark = evidence.params.sanity.benchmark
    if benchmark is None:
        raise NotApplicable("sanity.benchmark is not given: no record to compare with")
    model, best, size, read = best_known(benchmark)
    mine = [p for p in evidence.attacks() if (r := p.region) and r.norm is Norm.LINF and r.epsilon >= size - 1e-9]
    if not mine:
        raise NotApplicable(f"no attack at Linf {size:.4g}")
    covered = evidence.present(mine)
    robust = evidence.subject.clean_correct & ~evidence.union(mine, lambda p: p.succeeded)
    value, record = float(robust[covered].double().mean()), limit or best
    whose = "sanity.thresholds.C21" if limit else f"{model}, looked up {read}"
    return CheckResult(value > record, value, n=int(covered.sum()), reason=f"above {record:.1%} ({whose})")


def _curves(evidence: Evidence) -> list[tuple[Assessment, Tensor, Tensor]]:
    """(sweep, epsilons (E,), correct (E, n)) of every sweep."""
    sweeps = evidence.of("sweeps")
    return [(p, p.tensor("epsilons"), p.tensor("sweep_predictions") == p.tensor("targets")) for p in sweeps]


@our_check("C10")
def monotone_in_epsilon(evidence: Evidence, limit: float) -> CheckResult:
    """A larger ball contains the smaller one, so that accuracy cannot rise.

    Counts samples that were broken at a smaller epsilon and not at a larger; flags where accuracy rises significantly
    (exact McNemar, 5 % over all steps of a sweep). With a single step, which overshoots by design, it is only INFO.
    """
    total, bad, single = 0, [], True
    for assessment, _, right in _curves(evidence):
        falls, rises = right[:-1] & ~right[1:], ~right[:-1] & right[1:]
        total += int(rises.sum())
        steps = zip(rises, falls, strict=True)
        if any(significantly_more(int(up.sum()), int(down.sum()), len(rises)) for up, down in steps):
            bad.append(assessment.name)
            single &= assessment.one_step
    severity = Severity.INFO if single else Severity.WARN
    return listing(bad, "accuracy rises with epsilon in", value=total, n=len(evidence.ids), severity=severity)


@our_check("C11", "flat above chance: {names}")
def no_plateau(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """More budget must break more samples until accuracy is down to chance.

    Flags a sweep whose last two intervals change accuracy by less than the threshold each while its lower 95 % bound is above
    1/K, where it was to fall: as fast as before it would have lost three samples or more (no fall is then one chance in twenty),
    or the sweep ends at half of the value range in Linf, where every image can be grey. A sweep that ends before anything
    breaks is F5's business.
    """
    chance = 1 / evidence.data.num_classes
    low_value, high_value = evidence.data.value_range
    for assessment, epsilons, right in _curves(evidence):
        accuracy = right.double().mean(1)
        is_flat = len(accuracy) >= 4 and not bool((accuracy[-3:].diff().abs() >= limit).any())
        if is_flat and rate_interval(right[-1])[1] > chance:
            first, third_last, last = (float(epsilons[i]) for i in (0, -3, -1))
            lost = int(right[0].sum()) - int(right[-3].sum())
            expected = lost * (last - third_last) / (third_last - first)
            grey = assessment.semantics.perturbation.norm == Norm.LINF and last >= (high_value - low_value) / 2
            is_flat = expected >= LOST or grey
        else:
            is_flat = False
        yield CheckResult(is_flat, float(accuracy[-1]), assessments=[assessment.name])


FILE = Path(__file__).with_name("records.json")


@dataclass(frozen=True, slots=True)
class _BenchmarkModel:
    """One model of a benchmark. external: the lower one of an adaptive evaluation, where there is one."""

    model: str
    clean: float
    autoattack: float
    paper: str
    external: float = 1.0
    by: str = ""


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


def best_known(benchmark: str) -> tuple[str, float, float, str]:
    """Return (model, its accuracy, epsilon in Linf, when that was looked up) of the highest record, each by its lowest evaluation."""
    content = fitting(_Records, read_json(FILE), str(FILE), "the best known accuracies")
    records = content.benchmarks[benchmark]
    accuracy, model = max((min(row.autoattack, row.external), row.model) for row in records.records)
    return model, accuracy, parse_number(records.epsilon), content.read
