"""Compute the states and rates of each slice (camera, site, lighting) at the global budget, with simultaneous intervals."""

from collections.abc import Sequence

from torch import Tensor

from windtunnel.core.contracts import Json
from windtunnel.core.sample_states import SampleState, state_counts
from windtunnel.core.statistics import BinomialRate, binomial_rate
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.sandwich import options_of_summary
from windtunnel.records.tables import SliceRow, written

LEVEL = 0.95
TABLE = "slices"  # key of the table among the metrics of the summary
MEMBERS = "slice_members"  # key of robustness_data.pt


def slice_metrics(
    names: Sequence[Sequence[str]], members: Tensor, states: Tensor, drawn: Tensor, *, examined: bool
) -> dict[str, Json]:
    """Return the table of slices, and the rate of the weakest at each end of the sandwich.

    The intervals of one rate hold for all S slices at once in at least 95 % of runs: each is at the level 1 - 0.05 / S
    (Bonferroni). So the interval of the weakest slice is right although it was chosen for being lowest, and slices of
    several columns may overlap.

    Args:
        names: S pairs (column, value).
        members: bool (S, N), the samples of each.
        states: int64 (N,), states at the global budget.
        drawn: bool (N,), in the draw of an attack at this budget.
        examined: True if anything was verified.
    """
    level = 1 - (1 - LEVEL) / max(1, len(names))
    is_certified = states == SampleState.CERTIFIED.code
    is_robust = is_certified | (states == SampleState.SURVIVED.code)
    sandwiched = drawn if drawn.any() else drawn | ~drawn
    rows: list[SliceRow] = []
    of_ends: dict[str, list[BinomialRate]] = {}
    for (column, value), mine in zip(names, members, strict=True):
        rates = {"clean": _rate(states[mine] != SampleState.MISCLASSIFIED.code, level)}
        if (mine & drawn).any():
            rates["worst_case"] = _rate(is_robust[mine & drawn], level)
        if examined and (mine & sandwiched).any():
            chosen = is_certified[mine & sandwiched]
            rates["certified"] = binomial_rate(int(chosen.sum()), len(chosen), level, "clopper_pearson")
        numbers: dict[str, float] = {}
        for end, rate in rates.items():
            numbers |= rate.metrics(f"{end}_accuracy")
            of_ends.setdefault(end, []).append(rate)
        counts = {"n": int(mine.sum()), "n_attacked": int((mine & drawn).sum()), "states": state_counts(states[mine])}
        rows.append(SliceRow.model_validate({"column": column, "value": value, **counts, **numbers}))
    metrics: dict[str, Json] = {TABLE: written(rows)} if rows else {}
    for end in ("worst_case", "certified"):
        if end in of_ends:
            weakest = min(of_ends[end], key=lambda rate: rate.value)
            metrics |= weakest.metrics(f"{end}_weakest_slice_accuracy")
    return metrics


def _rate(is_held: Tensor, level: float) -> BinomialRate:
    return binomial_rate(int(is_held.sum()), len(is_held), level)


def slices_of(summary: Artifacts) -> tuple[tuple[str, str], ...]:
    """Return the (column, value) of each row of `slice_members`; none where the run has no slices."""
    return options_of_summary(summary.metadata).slices
