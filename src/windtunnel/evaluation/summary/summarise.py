"""The summary: the robustness sandwich at each budget, and contradictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from windtunnel.boundary.data.slices import Slices
from windtunnel.core.contracts import (
    Algorithm,
    AssessmentKind,
    Caveat,
    Json,
    Norm,
    PerturbationBudget,
    Randomness,
    Semantics,
    ThreatModel,
    Verdict,
)
from windtunnel.core.sample_states import STATE_CODES, SampleState, state_counts
from windtunnel.core.statistics import BinomialRate, IntervalMethod, binomial_interval, binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import budget_text, place_text
from windtunnel.evaluation.summary.evidence import (
    NOBODY,
    RegionEvidence,
    nearest_distances,
    nearest_examples,
    region_evidence,
)
from windtunnel.evaluation.summary.reproducibility import is_randomised, reproducibility, reproducibility_caveat
from windtunnel.evaluation.summary.slices import MEMBERS, slice_metrics
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.records.regions import PerturbationBall, of_a_smoothed_model, region_of
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.records.storage import DISTANCES
from windtunnel.records.tables import ClassShare, written


def summarise(
    subject: Subject,
    budget: PerturbationBudget,
    clean: Artifacts,
    assessments: Sequence[Artifacts],
    findings: Sequence[FindingRecord] = (),
    decided_by_seed: Sequence[str] = (),
    slices: Slices | None = None,
    budget_names: Mapping[tuple[Norm, float], str] = MappingProxyType({}),
) -> AssessmentResult:
    """Derive the state of each sample and the robustness sandwich, at `budget` and at every other one used.

    `findings`: of the stage `sanity`. `budget_names`: see `params.load.budget_names`.

    The extra keys of robustness_data.pt: `certified_verdicts`, `worst_by`,
    `certified_by` (indices into kwargs.assessments, -1 for none), `sample_states` (codes of kwargs.state_codes) and `drawn`
    at the global budget, and `sandwich_states`, `sandwich_drawn`, `sandwich_broken` (misclassified samples included),
    `sandwich_certified` (B, N) for the B regions of metrics.sandwich, and `slice_members` (S, N) for the S of kwargs.slices.
    """
    assert budget.epsilon is not None  # the global budget always has one
    headline = PerturbationBall(budget.norm, budget.epsilon)
    regions = [headline, *sorted(_regions(assessments) - {headline}, key=lambda r: (r.norm, r.epsilon))]
    by_region = [region_evidence(region, clean, assessments) for region in regions]
    first = by_region[0]
    names = [a.name for a in assessments]
    facts = reproducibility(assessments, subject.seed, str(subject.classifier.device), findings, decided_by_seed)
    failures = [*_contradictions(by_region, clean, names), *_sanity_failures(findings)]
    inputs, predictions, pictured = nearest_examples(first, subject, assessments)
    data: Tensors = {
        **base_data(subject, torch.where(first.incorrect, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))),
        "perturbed_inputs": inputs,
        "perturbed_predictions": predictions,
        "perturbation_distance": torch.where(first.broken, first.distances, 0.0).float(),
        "worst_by": first.broken_by,
        "certified_verdicts": torch.where(first.certified, int(Verdict.VERIFIED), int(Verdict.UNKNOWN)),
        "certified_by": first.certified_by,
        "sample_states": first.states,
        "drawn": first.drawn,
        "sandwich_states": torch.stack([o.states for o in by_region]),
        "sandwich_drawn": torch.stack([o.drawn for o in by_region]),
        "sandwich_broken": torch.stack([o.incorrect for o in by_region]),
        "sandwich_certified": torch.stack([o.certified for o in by_region]),
    }
    if not pictured.all():
        data[DISTANCES] = nearest_distances(first, subject, assessments)
    of_slices: dict[str, Json] = {}
    if slices:
        data[MEMBERS], examined = slices.members, bool(first.examined.any())
        of_slices = slice_metrics(slices.names, slices.members, first.states, first.drawn, examined=examined)
    correct, n = int(subject.clean_correct.sum()), len(subject.dataset)
    titles = [budget_names.get((region.norm, region.epsilon)) for region in regions]
    sandwich: list[Json] = [_layer(o, names, title) for o, title in zip(by_region, titles, strict=True)]
    metrics: dict[str, Json] = {
        **binomial_rate(correct, n).metrics("clean_accuracy"),
        **_layer_rates(first),
        **_class_rates(first, subject),
        **of_slices,
        "n_samples": n,
        "hard_failures": len(failures),
        "sandwich": sandwich,
    }
    return AssessmentResult(
        name="summary",
        semantics=Semantics(replace(SUMMARY, randomness=_randomness(assessments)), budget),
        data=data,
        metrics=metrics,
        caveats=(*_caveats(first, failures, assessments), reproducibility_caveat(facts)),
        kwargs={
            **base_kwargs(subject),
            "assessments": names,
            "hard_failures": failures,
            "reproducibility": facts,
            "state_codes": STATE_CODES,
            **({"slices": [list(name) for name in slices.names]} if slices else {}),
        },
        pictured=None if pictured.all() else pictured,
    )


def _randomness(assessments: Sequence[Artifacts]) -> Randomness:
    """Return where the draws of the summary come from: it is stochastic where what it joins is."""
    drawn = [a.metadata.semantics.randomness for a in assessments if is_randomised(a)]
    # "": of an older version.
    return Randomness(drawn[0] or Randomness.GLOBAL_RNG) if drawn else Randomness.DETERMINISTIC


def _regions(assessments: Sequence[Artifacts]) -> set[PerturbationBall]:
    return {
        region
        for a in assessments
        if a.kind != AssessmentKind.STATISTICAL_SAMPLING and not of_a_smoothed_model(a) and (region := region_of(a))
    }


def _layer_rates(result: RegionEvidence) -> dict[str, Json]:
    """Return the rates of one layer: over the union of the draws, and the bounds over all samples."""
    certified = result.states == SampleState.CERTIFIED.code
    rates: dict[str, Json] = {}
    if result.drawn.any():
        unbroken = result.drawn & ~result.incorrect
        rates |= binomial_rate(int(unbroken.sum()), int(result.drawn.sum())).metrics("worst_case_accuracy")
    if result.examined.any():
        # Clopper-Pearson for certificates: a claim of safety needs an interval that is never too narrow.
        samples = {"certified_accuracy": _sandwiched(result), "certified_accuracy_all": torch.ones_like(result.drawn)}
        for name, of in samples.items():
            rates |= binomial_rate(int(certified[of].sum()), int(of.sum()), method="clopper_pearson").metrics(name)
    if len(result.states):
        rates["robust_accuracy_at_most"] = float((~result.incorrect).double().mean())
    return rates


def _sandwiched(result: RegionEvidence) -> Tensor:
    """Return the samples that both ends of the sandwich are of: the union of the draws, or all where nothing attacked."""
    return result.drawn if result.drawn.any() else torch.ones_like(result.drawn)


def _class_rates(result: RegionEvidence, subject: Subject) -> dict[str, Json]:
    """Return what `_layer_rates` states of the samples of the sandwich, class by class and by the same interval."""
    of = _sandwiched(result)
    targets, names = subject.dataset.targets[of], subject.dataset.class_names
    rates: dict[str, Json] = {}
    if result.drawn.any():
        rates |= class_metrics("worst_case", ~result.incorrect[of], targets, names)
    if result.examined.any():
        certified = result.states[of] == SampleState.CERTIFIED.code
        rates |= class_metrics("certified", certified, targets, names, "clopper_pearson")
    return rates


def _layer(result: RegionEvidence, names: Sequence[str], title: str | None) -> dict[str, Json]:
    """Return one row of `sandwich`: the rates at one budget, the states, and who set them."""

    def who(indices: Tensor) -> list[Json]:
        return [names[i] for i in indices.unique().tolist() if i != NOBODY]

    return {
        **({"name": title} if title else {}),
        "norm": result.region.norm.value,
        "epsilon": result.region.epsilon,
        "n": len(result.broken),
        "n_attacked": int(result.drawn.sum()),
        "n_examined": int(result.examined.sum()),
        **_layer_rates(result),
        "states": state_counts(result.states),
        "draws": [draw.model_dump(mode="json") for draw in result.draws],
        "attacked_by": who(result.broken_by),
        "certified_by": who(result.certified_by),
    }


def _contradictions(by_region: Sequence[RegionEvidence], clean: Artifacts, names: Sequence[str]) -> list[str]:
    """Return a line for each sample that is certified and broken in one region: an unsound verifier or another property."""
    lines = []
    for result in by_region:
        for i in (result.certified & result.incorrect).nonzero().flatten().tolist():
            breaker = int(result.broken_by[i])
            by = names[breaker] if breaker != NOBODY else "its clean prediction"
            lines.append(
                f"sample {clean.sample_names[i]} is verified by {names[int(result.certified_by[i])]} and broken by {by} "
                f"at {place_text(result.region.norm, result.region.epsilon)}"
            )
    return lines


def _sanity_failures(findings: Sequence[FindingRecord]) -> list[str]:
    return [
        f"sanity check {row.id} failed: {row.title} ({row.reason or row.value})"
        for row in findings
        if row.status is Status.FAIL and row.severity is Severity.HARD
    ]


def _caveats(first: RegionEvidence, failures: Sequence[str], assessments: Sequence[Artifacts]) -> Iterator[Caveat]:
    n = len(first.broken)
    if failures:
        yield Caveat("hard_failure", "These numbers are not valid: " + "; ".join(failures[:3]))
    where = budget_text(first.region.norm, first.region.epsilon)
    if not first.drawn.any():
        yield Caveat("not_attacked", f"No attack ran at {where}: there is no worst-case accuracy at the global budget.")
    elif not first.drawn.all():
        yield Caveat(
            "partly_attacked",
            f"{int(first.drawn.sum())} of {n} samples were in the draw of an attack at {where}; worst-case accuracy is "
            f"of these alone; the other {int((~first.drawn).sum())} were in none.",
        )
    if first.draws and all(draw.selection == "first" for draw in first.draws):
        yield Caveat(
            "first_samples",
            f"The attacks at {where} took the first samples ({', '.join(d.name for d in first.draws)}): their accuracy is "
            f"no unbiased estimate for all samples. samples.selection: random or stratified gives one.",
        )
    if first.examined.any() and not first.examined.all():
        missing = int((~first.examined).sum())
        text = f"{missing} of {n} samples were not sent to a verifier and count as not certified."
        yield Caveat("partly_verified", text)
    proofs = [a for a in assessments if a.kind == AssessmentKind.FORMAL_VERIFICATION and not of_a_smoothed_model(a)]
    if all(a.metadata.semantics.perturbation.is_around_corrupted for a in proofs):
        yield Caveat("nothing_verified", "No formal verification ran: nothing here is verified.")


SUMMARY = Algorithm(
    library="windtunnel",
    name="worst_case",
    kind=AssessmentKind.EMPIRICAL_ATTACK,
    threat_model=ThreatModel.WHITE_BOX,
    norm=Norm.LINF,
    categories=frozenset({"ensemble"}),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset(),
    summary="per sample, the worst empirical outcome and the best certificate of all assessments",
)


def with_failed_entries(summary: AssessmentResult, assessments: Sequence[tuple[str, Artifacts]]) -> AssessmentResult:
    """Return the summary with a hard failure and a caveat for each entry without a result; the gate refuses hard failures.

    Args:
        summary: without them.
        assessments: the family and the artifacts of every entry, in the order of the run.
    """
    failed = {f"{family}.{a.name}": a.metadata.failure for family, a in assessments if a.metadata.failure}
    if not failed:
        return summary
    lines = [
        f"{where} failed and has no result ({failure.reason}): "
        + ("run dvc repro again" if failure.is_temporary else "change the entry or remove it")
        for where, failure in failed.items()
    ]
    failures = summary.kwargs["hard_failures"]
    assert isinstance(failures, list)
    return replace(
        summary,
        metrics={**summary.metrics, "hard_failures": len(failures) + len(lines)},
        kwargs={
            **summary.kwargs,
            "hard_failures": [*failures, *lines],
            "failed": [a.name for _, a in assessments if a.metadata.failure],
        },
        caveats=(*(Caveat("entry_failed", line) for line in lines), *summary.caveats),
    )


LEVEL = 0.95


def class_metrics(
    name: str, is_held: Tensor, targets: Tensor, class_names: Sequence[str], method: IntervalMethod = "wilson"
) -> dict[str, Json]:
    """`{name}_per_class`, and what to lead with: `{name}_weakest_class_accuracy` and `{name}_class_gap`, with intervals.

    is_held: (N,) bool, which samples count for their class; targets: (N,) int64, indices into `class_names`. A row per class:
    `class`, `n`, and `accuracy` with its 95 % interval where n is not 0. The gap is the best class's accuracy minus the
    weakest's, in [0, 1], over the classes with samples (its interval: `gap_interval`); without two of these there is nothing
    to lead with. The weakest class's interval is that of its row, which does not know that it was chosen for being lowest.
    """
    rates = []
    for label in range(len(class_names)):
        mine = targets == label
        rates.append(binomial_rate(int(is_held[mine].sum()), int(mine.sum()), LEVEL, method))
    lines = [ClassShare.of(rate, **{"class": word}) for word, rate in zip(class_names, rates, strict=True)]
    metrics: dict[str, Json] = {f"{name}_per_class": written(lines)}
    present = [rate for rate in rates if rate.n]
    if len(present) > 1:
        weakest = min(present, key=lambda rate: rate.value)
        metrics |= weakest.metrics(f"{name}_weakest_class_accuracy")
        low, high = gap_interval(present)
        metrics[f"{name}_class_gap"] = max(rate.value for rate in present) - weakest.value
        metrics |= {f"{name}_class_gap_ci_low": low, f"{name}_class_gap_ci_high": high}
    return metrics


def gap_interval(rates: Sequence[BinomialRate]) -> tuple[float, float]:
    """Interval of the largest minus the smallest of at least two independent binomial rates with samples, in [0, 1].

    The two are chosen after the fact, as the extremes of K, so that an interval of their difference alone would find a gap
    among classes that are all alike. Here all K true rates lie in their intervals at once in at least 95 % of runs:
    Clopper-Pearson's, each at the level 0.95^(1/K) (Šidák 1967, doi:10.1080/01621459.1967.10482935). Where they do, the gap lies
    between the highest lower end minus the lowest upper end (0 where these overlap) and the largest distance of one class's
    upper end from another's lower end. A lower end of 0 says that the gap may be chance.
    """
    each = LEVEL ** (1 / len(rates))
    ends = [binomial_interval(rate.successes, rate.n, each, "clopper_pearson") for rate in rates]
    lows, highs = zip(*ends, strict=True)
    # Two of each, since no class is apart from itself.
    lowest = sorted(range(len(rates)), key=lambda i: lows[i])[:2]
    highest = sorted(range(len(rates)), key=lambda i: -highs[i])[:2]
    widest = max(highs[i] - lows[j] for i in highest for j in lowest if i != j)
    return max(0.0, max(lows) - min(highs)), widest
