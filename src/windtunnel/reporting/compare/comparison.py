"""Two runs or more, side by side: what was asked of them that differs, what they measured, and each against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statsmodels.stats.multitest import multipletests

from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.basis import Basis, leading_metrics
from windtunnel.records.metadata import Rate, rate, read_metadata
from windtunnel.reporting.compare.paired import MADE_BY, Pair, another_algorithm, compare_assessment
from windtunnel.reporting.compare.runs import Run

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
