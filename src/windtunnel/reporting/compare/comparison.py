"""Two runs or more, side by side: what was asked of them that differs, what they measured, and each against the first.

An assessment of two runs on the same samples is paired: which held in one and not in the other, and whether chance explains it.
Its accuracy curves are compared at each point, by a paired bootstrap.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest, bootstrap
from statsmodels.stats.multitest import multipletests
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import AssessmentKind, Json, Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.scratch import same_values
from windtunnel.core.statistics import IntervalMethod, binomial_interval
from windtunnel.evaluation.gate.non_inferiority import Paired, paired_interval
from windtunnel.evaluation.summary.slices import MEMBERS, slices_of
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.basis import Basis, leading_metrics
from windtunnel.records.files import is_tensor_summary
from windtunnel.records.metadata import Metadata, Rate, corruption_pairs, number, rate, read_metadata
from windtunnel.reporting.compare.runs import Run

RESAMPLES = 2000
_AT_ONCE = 50  # resamples in memory together
_HELD = (Verdict.ATTACK_FAILED, Verdict.VERIFIED, Verdict.CORRECT_UNDER_PERTURBATION)


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's curve: `scores` float64 (N, M) in [0, 1] are each sample's share of being right at the M points.

    of: what was averaged at the points; two curves of other things are not compared.
    """

    axis: str
    points: tuple[float, ...]
    scores: Tensor
    of: object = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The two rates at one point and their difference, second minus first, with its 95 % interval."""

    at: str
    first: float
    second: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CurveDifference:
    """Two curves, point by point (intervals are pointwise), and on the whole: `overall`, whose `at` says what it is."""

    axis: str
    points: tuple[CurvePoint, ...]
    overall: CurvePoint

    @property
    def moves(self) -> bool:
        """True if the two runs differ at a point."""
        return any(point.first != point.second for point in self.points)


def curve_of(artifacts: Artifacts) -> Curve | None:
    """Accuracy by epsilon (a sweep), severity (a suite of corruptions) or queries (a black-box attack); None for others."""
    targets, data = artifacts.tensor("targets"), artifacts.data
    if "sweep_predictions" in data:
        right = artifacts.tensor("sweep_predictions") == targets
        # A larger ball holds the example of the smaller one.
        scores = right.cummin(0).values.double().T
        return Curve("epsilon", tuple(round(e, 9) for e in artifacts.tensor("epsilons").tolist()), scores)
    if "corruption_predictions" in data:
        right = (artifacts.tensor("corruption_predictions") == targets).double()
        pairs = corruption_pairs(artifacts.metadata.kwargs)
        of_row = torch.tensor([float(severity) for _, severity in pairs])
        points = of_row.unique()
        scores = torch.stack([right[of_row == s].mean(0) for s in points], dim=1)
        return Curve("severity", tuple(points.tolist()), scores, pairs)
    options = artifacts.metadata.kwargs.extra
    if "queries" in data and options.get("max_queries") is not None:
        right = artifacts.tensor("clean_predictions") == targets
        most = int(number(options, "max_queries"))
        budgets = [b * 10**k for k in range(len(str(most))) for b in (1, 2, 5) if b * 10**k < most] + [most]
        broken = artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
        survived = [right & ~(broken & (artifacts.tensor("queries") <= budget)) for budget in budgets]
        return Curve("queries", tuple(map(float, budgets)), torch.stack(survived, dim=1).double())
    return None


def compare_curves(first: Artifacts, second: Artifacts) -> CurveDifference | None:
    """Return the difference of the two curves; None unless both have one at the same points, of two samples or more.

    Percentile bootstrap over samples, each resample keeping a sample's two curves together (Efron, Tibshirani 1993).
    The seed is fixed, so that two comparisons of the same runs are equal.
    """
    first_curve, two = curve_of(first), curve_of(second)
    if first_curve is None or two is None or len(first_curve.scores) < 2:
        return None
    if (first_curve.axis, first_curve.points, first_curve.of) != (two.axis, two.points, two.of):
        return None
    weights = _weights(first_curve)
    columns = [np.column_stack([c.scores.numpy(), c.scores.numpy() @ weights]) for c in (first_curve, two)]
    difference = columns[1] - columns[0]
    options = {"batch": _AT_ONCE, "axis": 0, "method": "percentile", "rng": np.random.default_rng(0)}
    interval = bootstrap((difference,), np.mean, n_resamples=RESAMPLES, **options).confidence_interval
    summary_name = "area under the curve" if first_curve.axis == "epsilon" else "mean of the rows above"
    names, means = [*(f"{p:g}" for p in first_curve.points), summary_name], [column.mean(0) for column in columns]
    rows = [
        CurvePoint(name, *map(float, values))
        for name, *values in zip(names, *means, interval.low, interval.high, strict=True)
    ]
    return CurveDifference(first_curve.axis, tuple(rows[:-1]), rows[-1])


def _weights(curve: Curve) -> NDArray[np.float64]:
    """Return the weight of each point: the trapezoid rule over [0, largest epsilon], or all alike."""
    if curve.axis != "epsilon":
        return np.full(len(curve.points), 1 / len(curve.points))
    steps = np.diff(np.array(curve.points))
    weights: NDArray[np.float64] = (np.append(steps, 0) + np.append(0, steps)) / 2 / curve.points[-1]
    return weights


@dataclass(frozen=True, slots=True)
class Pair:
    """One yes-or-no outcome per sample, in two runs.

    table: counts of the pairs. interval: of the difference second minus first, 95 %, Newcombe's method 10.
    p_value: McNemar's, exact. gained, lost: rows that hold in the second run alone, in the first alone.
    settings: what differs in how it was assessed, as paths into metadata.json. curve: None where there is none in both.
    """

    name: str
    first: Artifacts
    second: Artifacts
    table: Paired
    interval: tuple[float, float]
    p_value: float
    gained: tuple[int, ...]
    lost: tuple[int, ...]
    settings: tuple[str, ...]
    curve: CurveDifference | None = None

    @property
    def rates(self) -> tuple[float, float]:
        """Share of the n samples that hold in the first and in the second run."""
        table = self.table
        return (table.both + table.lost) / table.n, (table.both + table.gained) / table.n

    @property
    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The 95 % interval of each of `rates`, by the method of the assessment itself."""
        table, method = self.table, interval_method(self.name, self.first)
        before, after = (
            binomial_interval(table.both + other, table.n, method=method) for other in (table.lost, table.gained)
        )
        return before, after

    @property
    def bases(self) -> tuple[Basis, Basis]:
        """Region and number of samples in the first and in the second run."""
        first, second = (Basis.of(a.metadata)._replace(n=self.table.n) for a in (self.first, self.second))
        return first, second


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact p-value that flips either way are equally likely; 1 where nothing flipped.

    Source: McNemar 1947, doi:10.1007/BF02295996, with the binomial distribution in place of its limit.
    """
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def held(artifacts: Artifacts) -> Tensor:
    """Bool (N,): classified rightly, and neither broken nor left open by this assessment."""
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    return right & torch.isin(artifacts.tensor("verdicts"), torch.tensor([int(v) for v in _HELD]))


# Which assessments make which outcome of the summary.
WORST_CASE, CERTIFIED = "worst case", "certified"
MADE_BY = {WORST_CASE: AssessmentKind.EMPIRICAL_ATTACK, CERTIFIED: AssessmentKind.FORMAL_VERIFICATION}


def compare_assessment(
    name: str, first: Artifacts, second: Artifacts, without: Collection[str] = frozenset()
) -> list[Pair]:
    """Return the outcomes of one assessment, paired: one, or for the summary the worst case and the certified share.

    without: outcomes to leave out. Raises UserError where the two are of other algorithms, or were not made on the same
    samples: paired statistics on other samples would look right and mean nothing, so names alone are not trusted.
    """
    if reason := another_algorithm(first.metadata, second.metadata) or _why_not(first, second):
        raise UserError(f"{name}: {reason}")
    compared = (first, second, tuple(_differing(first, second)), compare_curves(first, second))
    of_first, of_second = outcomes_of(name, first), outcomes_of(name, second)
    outcomes = [
        (outcome, holds, of_second[outcome][0])
        for outcome, (holds, _) in of_first.items()
        if outcome in of_second and outcome not in without
    ]
    pairs = [_pair(outcome, before, after, *compared) for outcome, before, after in outcomes if len(before)]
    for outcome, before, after in outcomes if name == "summary" else ():
        for (column, value), members in _common_slices(first, second):
            pairs.append(_pair(f"{outcome}, {column} = {value}", before, after, *compared, members))
    return pairs


def another_algorithm(first: Metadata, second: Metadata) -> str:
    """In which way two assessments under one name are of different algorithms; empty where only settings differ."""
    for what, before, after in (
        ("library", first.library, second.library),
        ("algorithm", first.algorithm, second.algorithm),
        ("objective", first.semantics.objective, second.semantics.objective),
        ("norm", first.semantics.norm, second.semantics.norm),
    ):
        if before != after:
            return f"another {what} ({before} and {after})"
    return ""


def _why_not(first: Artifacts, second: Artifacts) -> str:
    if first.sample_names != second.sample_names:
        both = len({*first.sample_names} & {*second.sample_names})
        return (
            f"assessed on other samples ({len(first.sample_names)} and {len(second.sample_names)}, {both} of them in "
            f"both, or in another order); assess both on the same"
        )
    if not _same_images(first, second):
        return "the samples have the same names and other values: the data or its preparation changed"
    if not torch.equal(first.tensor("targets"), second.tensor("targets")):
        return (
            "the samples have other reference labels in the two (without labels these are the model's own predictions)"
        )
    return ""


def _same_images(first: Artifacts, second: Artifacts) -> bool:
    """Return True if the clean images that both have stored are equal; where there is none of both, their names stand for them."""
    first_rows, two = first.kept, second.kept
    if torch.equal(first_rows, two):
        return same_values(first.tensor("clean_inputs"), second.tensor("clean_inputs"))
    mine, theirs = torch.isin(first_rows, two).nonzero().flatten(), torch.isin(two, first_rows).nonzero().flatten()
    images = ((first.tensor("clean_inputs"), mine), (second.tensor("clean_inputs"), theirs))
    return same_values(*(scratch.samples_at(tensor, indices) for tensor, indices in images))


def outcomes_of(name: str, artifacts: Artifacts) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each outcome of an assessment by its name: the samples for which it holds and those it is of, both bool (N,)."""
    everywhere = torch.ones_like(artifacts.tensor("targets"), dtype=torch.bool)
    if name != "summary":
        # One outcome per sample, so for many perturbations of each it is the worst of them.
        scope = " (every corruption)" if "corruption_predictions" in artifacts.data else ""
        return {name + scope: (held(artifacts), everywhere)}
    outcomes = {}
    if "certified_accuracy" in artifacts.metrics:
        outcomes[CERTIFIED] = artifacts.tensor("certified_verdicts") == Verdict.VERIFIED, everywhere
    if "worst_case_accuracy" in artifacts.metrics:
        outcomes[WORST_CASE] = held(artifacts), artifacts.tensor("drawn") if "drawn" in artifacts.data else everywhere
    return outcomes


def interval_method(outcome: str, artifacts: Artifacts) -> IntervalMethod:
    """Return how an outcome of `outcomes_of` gets its interval: exactly where it is certified, as everywhere else."""
    of_summary = artifacts.name == "summary" and outcome.startswith(CERTIFIED)
    return "clopper_pearson" if of_summary or artifacts.kind is AssessmentKind.FORMAL_VERIFICATION else "wilson"


def _common_slices(first: Artifacts, second: Artifacts) -> Iterator[tuple[tuple[str, str], Tensor]]:
    """Yield the slices that two summaries have of the same samples, with their members, bool (N,)."""
    rows = [dict(zip(slices_of(a), a.data.get(MEMBERS, ()), strict=True)) for a in (first, second)]
    for name, members in rows[0].items():
        if name in rows[1] and torch.equal(members, rows[1][name]):
            yield name, members


def _pair(
    name: str,
    before: Tensor,
    after: Tensor,
    first: Artifacts,
    second: Artifacts,
    settings: tuple[str, ...],
    curve: CurveDifference | None,
    members: Tensor | None = None,
) -> Pair:
    """Pair two outcomes, bool (N,), on the samples `members`, bool (N,); on all where it is None."""
    of = torch.ones_like(before) if members is None else members
    gained, lost = (
        tuple(indices.nonzero().flatten().tolist()) for indices in (of & after & ~before, of & before & ~after)
    )
    counts = Paired(int((of & before & after).sum()), len(gained), len(lost), int((of & ~before & ~after).sum()))
    interval, p_value = paired_interval(counts, 0.025, "newcombe"), mcnemar_exact(len(gained), len(lost))
    return Pair(name, first, second, counts, interval, p_value, gained, lost, settings, curve)


# What is measured on the model, or is a digest of results on it: two models never have it alike under equal settings.
_OF_THE_MODEL = ("kwargs.logit_unit", "kwargs.tolerances.", "kwargs.survivors_of.", "kwargs.uncertified_by.")


def _differing(first: Artifacts, second: Artifacts) -> Iterator[str]:
    """`semantics.perturbation.epsilon`: where the two records of how they were made differ; the model is no setting."""
    keys = {"library", "algorithm", "library_version", "semantics", "kwargs", "call_kwargs"}
    first_settings, two = (dict(_leaves(a.metadata.model_dump(mode="json", include=keys))) for a in (first, second))
    # The numbers of a summary's kwargs are results; those of an assessment's are its options.
    results = ("kwargs.hard_failures", "kwargs.assessments")
    return (
        path
        for path in sorted({*first_settings, *two})
        if first_settings.get(path) != two.get(path) and path not in results
    )


def _leaves(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    if is_tensor_summary(value):
        return  # how many samples were left to work on depends on the model
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, "" if path.startswith(_OF_THE_MODEL) else repr(value)


_GROUPS = ("worst_case", "certified", "clean")


@dataclass(frozen=True, slots=True)
class Against:
    """A run against the first: what could be paired, Holm's adjusted p-value of each pair, and a line for what could not."""

    run: Run
    pairs: tuple[Pair, ...]
    adjusted: tuple[float, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`params` and `metrics` hold what differs: a name and the value in each run, None where a run has none.

    rates: of each metric that differs, per run its value with its interval; bases: what it is of.
    """

    runs: tuple[Run, ...]
    params: tuple[tuple[str, tuple[str | None, ...]], ...]
    metrics: tuple[tuple[str, tuple[float | None, ...]], ...]
    equal_metrics: int
    against: tuple[Against, ...]
    rates: Mapping[str, tuple[Rate | None, ...]]
    bases: Mapping[str, tuple[Basis, ...]]


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Compare each run with the first. What cannot be paired is said, not computed.

    Raises UserError for fewer than two runs, or where an artifact is damaged.
    """
    if len(runs) < 2:
        raise UserError("compare: at least two runs are needed")
    params = [(key, tuple(run.params.get(key) for run in runs)) for key in _keys([run.params for run in runs])]
    metrics = [(key, tuple(run.metrics.get(key) for run in runs)) for key in _as_read([run.metrics for run in runs])]
    differing = tuple(row for row in metrics if len(set(row[1])) > 1)
    bases = [run.bases() for run in runs]
    has_params = all(run.params for run in runs)
    return Comparison(
        tuple(runs),
        tuple(row for row in params if has_params and len(set(row[1])) > 1),
        differing,
        sum(len(set(values)) == 1 for _, values in metrics),
        tuple(_against(runs[0], run) for run in runs[1:]),
        {key: tuple(rate(run.metrics, key) for run in runs) for key, _ in differing},
        {key: tuple(of_run.get(key, Basis()) for of_run in bases) for key, _ in differing},
    )


def _keys(blocks: Sequence[Mapping[str, object]]) -> list[str]:
    """Every key, in the order of the first block that has it."""
    return list(dict.fromkeys(key for block in blocks for key in block))


def _as_read(blocks: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of metrics in the order in which they are read.

    Whether the numbers may be believed, the sandwich, the accuracy of each assessment, what else is known of the
    sandwich, the rest; within these as in metrics.json.
    """
    accuracies = leading_metrics()

    def place(key: str) -> tuple[int, int]:
        group, _, metric = key.partition("/")
        if key == "hard_failures":
            return 0, 0
        if group in _GROUPS:
            return (1 if metric == "accuracy" else 3), _GROUPS.index(group)
        return (2 if metric in accuracies else 4), 0

    return sorted(_keys(blocks), key=place)


def _not_the_same(kind: AssessmentKind, first: Run, run: Run) -> str:
    """List what only one of the runs has of this kind, or has under the same name with another algorithm; empty for nothing."""
    of_first, of_second = (
        {
            name: metadata
            for name, path in side.assessments().items()
            if name != "summary" and (metadata := read_metadata(path)).assessment_kind is kind
        }
        for side in (first, run)
    )
    lines = [
        f"{', '.join(only)} only in {side.label}"
        for side, mine, other in ((first, of_first, of_second), (run, of_second, of_first))
        if (only := [name for name in mine if name not in other])
    ]
    lines += [
        f"{name} is {why}"
        for name in of_first
        if name in of_second and (why := another_algorithm(of_first[name], of_second[name]))
    ]
    return "; ".join(lines)


def _against(first: Run, run: Run) -> Against:
    first_names, two = first.assessments(), run.assessments()
    pairs: list[Pair] = []
    refused = [f"{r.label}: its tensors are not available, so nothing is paired" for r in (first, run) if not r.reports]
    without = {outcome: line for outcome, kind in MADE_BY.items() if (line := _not_the_same(kind, first, run))}
    refused += [
        f"{outcome}: {line}" for outcome, line in without.items() if "summary" in first_names and "summary" in two
    ]
    for name in [name for name in first_names if name in two]:
        try:
            pairs += compare_assessment(name, read_artifacts(first_names[name]), read_artifacts(two[name]), without)
        except UserError as error:
            refused.append(str(error))
    if first.reports and run.reports:
        for mine, other, label in ((first_names, two, first.label), (two, first_names, run.label)):
            if only := [name for name in mine if name not in other]:
                refused.append(f"{', '.join(only)}: only in {label}")
    adjusted = multipletests([p.p_value for p in pairs], method="holm")[1].tolist() if pairs else []
    return Against(run, tuple(pairs), tuple(adjusted), tuple(refused))
